"""What a goal's measurement says: rows with a goal, and series for the plots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.stats import Spread

Verdict = Literal["met", "within 10 %", "not met", "no goal"]
TOLERANCE = 0.1


@dataclass(frozen=True)
class Target:
    """A bound on a row's value."""

    bound: float
    is_least: bool

    def judge(self, value: float) -> Verdict:
        excess = value / self.bound if self.is_least else 2 - value / self.bound
        if excess >= 1:
            return "met"
        # Rounded, so that a value on the edge does not depend on how a double is spelt.
        return "within 10 %" if round(excess, 9) >= 1 - TOLERANCE else "not met"


def at_least(bound: float) -> Target:
    return Target(bound, is_least=True)


def at_most(bound: float) -> Target:
    return Target(bound, is_least=False)


@dataclass(frozen=True)
class Row:
    """One measured value.

    Attributes:
        what: What was measured, in a few words.
        value: The value; a ratio wherever there is something to compare with.
        unit: Of the value: "x faster than HF", "ms", "bytes a pixel".
        target: The goal, None for a value that only explains.
        sides: What the value was made of, by side: `{"mmprep": "12.1 ms"}`.
        note: What a reader must know.
    """

    what: str
    value: Spread
    unit: str
    target: Target | None = None
    sides: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        target = self.target
        return {
            "what": self.what,
            "value": self.value.to_json(),
            "unit": self.unit,
            "target": None
            if target is None
            else {"bound": target.bound, "is_least": target.is_least},
            "sides": dict(self.sides),
            "note": self.note,
        }


@dataclass
class Found:
    """What one module of `bench.goals` measured.

    Attributes:
        rows: For the table.
        series: For the plots, by name.
        missing: What could not be measured, and why.
    """

    rows: list[Row] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [row.to_json() for row in self.rows],
            "series": self.series,
            "missing": [{"what": what, "why": why} for what, why in self.missing],
        }


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """Judge a row as `Row.to_json` wrote it."""
    target = row["target"]
    if target is None:
        return "no goal"
    return Target(target["bound"], target["is_least"]).judge(row["value"]["median"])
