"""Medians with their spread, and ratios of sides that took turns."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median, its quartiles, and of how many values."""

    median: float
    low: float
    high: float
    samples: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Summarise values.

    Raises:
        ValueError: If there are none.
    """
    if not values:
        raise ValueError("nothing was measured")
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high, len(values))


def ratio_of(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> Spread:
    """Return the ratio of two sides' medians, round by round: what is slow in both cancels."""
    rounds = zip(over, under, strict=True)
    return spread([statistics.median(a) / statistics.median(b) for a, b in rounds])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    at = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(at) - 1)]
