"""Verdicts are computed from what was measured, and ratios from sides that took turns."""

import pytest

from bench.results import Row, at_least, at_most, verdict_of
from bench.stats import Spread, percentile, ratio_of, spread


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (at_least(2.5), 2.5, "met"),
        (at_least(2.5), 2.25, "within 10 %"),
        (at_least(2.5), 2.24, "not met"),
        (at_most(1.8), 1.8, "met"),
        (at_most(1.8), 1.98, "within 10 %"),
        (at_most(1.8), 1.99, "not met"),
        (None, 1.0, "no goal"),
    ],
)
def test_verdicts_follow_from_the_value(target, value, verdict) -> None:
    """Each verdict at its edge, for both kinds of bound, as it is read back from JSON."""
    row = Row("what", Spread(value, value, value, 1), "x", target)
    assert verdict_of(row.to_json()) == verdict


def test_a_ratio_is_taken_within_each_round() -> None:
    """A round in which both sides are slow changes nothing."""
    over, under = [[2.0, 2.0], [20.0, 20.0]], [[1.0, 1.0], [10.0, 10.0]]
    assert ratio_of(over, under) == Spread(2.0, 2.0, 2.0, 2)


def test_spread_of_one_value_and_of_none() -> None:
    """One value is its own spread; none is an error, not a zero."""
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


def test_percentile_is_a_value_that_was_measured() -> None:
    """The 99th percentile of a hundred values is the 99th."""
    assert percentile(range(1, 101), 99) == 99
    assert percentile([5.0], 99) == 5.0
