"""Which packets are decoded for the frames that are asked for."""

import pytest

from processors.decode.packet_index import PacketIndex, Run, find_runs

CLOSED = PacketIndex(tuple(range(12)), (0, 3, 1, 2, 4, 5, 6, 9, 7, 8, 10, 11), (0, 6), 12, 1)
"""Two groups of pictures; 1, 2, 7 and 8 are shown before the packet they follow."""
OPEN = PacketIndex(tuple(range(8)), (0, 1, 4, 2, 3, 6, 5, 7), (0, 2), 8, 1)
"""2 and 3 follow the keyframe 4 and are shown before it."""


@pytest.mark.parametrize(
    ("index", "wanted", "runs"),
    [
        (CLOSED, [0], [Run(0, 0, 0)]),
        (CLOSED, [2], [Run(0, 2, 0)]),
        (CLOSED, [3], [Run(0, 3, 0)]),
        (CLOSED, [0, 7], [Run(0, 0, 0), Run(6, 7, 5)]),
        (CLOSED, [7], [Run(6, 7, 6)]),
        (CLOSED, [5, 6], [Run(0, 6, 0)]),
        (CLOSED, [11, 2], [Run(0, 2, 0), Run(6, 11, 2)]),
        (OPEN, [4], [Run(4, 4, 2)]),
        (OPEN, [2], [Run(0, 2, 0)]),
        (OPEN, [3, 7], [Run(0, 7, 0)]),
        (OPEN, [1, 5], [Run(0, 5, 0)]),
        (OPEN, [], []),
    ],
    ids=str,
)
def test_runs(index: PacketIndex, wanted: list[int], runs: list[Run]) -> None:
    """Runs begin at keyframes, end with a wanted frame, and join where they touch."""
    assert find_runs(index, wanted) == runs


def test_without_keyframes_everything_before_is_needed() -> None:
    """What begins nowhere is decoded from the start."""
    index = PacketIndex((0, 1, 2), (0, 1, 2), (), 3, 1)
    assert find_runs(index, [2]) == [Run(0, 2, 0)]
    leading = PacketIndex((0, 1, 2), (1, 0, 2), (0,), 3, 1)
    assert find_runs(leading, [0]) == [Run(1, 0, 0)]
