"""Which packets are decoded for the frames that are asked for."""

import pytest

from processors.decode.packet_index import PacketIndex, Run, find_runs, split_runs

CLOSED = PacketIndex(tuple(range(12)), (0, 3, 1, 2, 4, 5, 6, 9, 7, 8, 10, 11), (0, 6), 12, 1)
"""Two groups of pictures; 1, 2, 7 and 8 are shown before the packet they follow."""
OPEN = PacketIndex(tuple(range(8)), (0, 1, 4, 2, 3, 6, 5, 7), (0, 2), 8, 1)
"""2 and 3 follow the keyframe 4 and are shown before it."""


def run(first: int, last: int, count: int, skipped: int, wanted: list[int]) -> Run:
    return Run(first, last, count, skipped, frozenset(wanted))


@pytest.mark.parametrize(
    ("index", "wanted", "runs"),
    [
        (CLOSED, [0], [run(0, 0, 1, 0, [0])]),
        (CLOSED, [2], [run(0, 2, 4, 0, [2])]),
        (CLOSED, [3], [run(0, 3, 2, 0, [3])]),
        (CLOSED, [0, 7], [run(0, 0, 1, 0, [0]), run(6, 7, 3, 5, [7])]),
        (CLOSED, [7], [run(6, 7, 3, 6, [7])]),
        (CLOSED, [5, 6], [run(0, 5, 6, 0, [5]), run(6, 6, 1, 0, [6])]),
        (CLOSED, [11, 2], [run(0, 2, 4, 0, [2]), run(6, 11, 6, 2, [11])]),
        (OPEN, [4], [run(4, 4, 1, 2, [4])]),
        (OPEN, [2], [run(0, 2, 4, 0, [2])]),
        (OPEN, [3, 7], [run(0, 7, 8, 0, [3, 7])]),
        (OPEN, [1, 5], [run(0, 1, 2, 0, [1]), run(4, 5, 5, 0, [5])]),
        (OPEN, [], []),
    ],
    ids=str,
)
def test_runs(index: PacketIndex, wanted: list[int], runs: list[Run]) -> None:
    """Runs begin at keyframes, end with a wanted frame, and join where they share packets."""
    assert find_runs(index, wanted) == runs


def test_without_keyframes_everything_before_is_needed() -> None:
    """What begins nowhere is decoded from the start."""
    index = PacketIndex((0, 1, 2), (0, 1, 2), (), 3, 1)
    assert find_runs(index, [2]) == [run(0, 2, 3, 0, [2])]
    leading = PacketIndex((0, 1, 2), (1, 0, 2), (0,), 3, 1)
    assert find_runs(leading, [0]) == [run(1, 0, 2, 0, [0])]


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        ([], []),
        ([1], [[1]]),
        ([60, 60, 60], [[60], [60], [60]]),
        ([1, 1, 20, 1, 40, 3], [[1, 1, 20], [1, 40], [3]]),
        ([1] * 20, [[1] * 16, [1] * 4]),
    ],
    ids=str,
)
def test_batches(counts: list[int], batches: list[list[int]]) -> None:
    """Runs stay in their order; a decoder is not made for a few packets."""
    runs = [run(0, 0, count, 0, []) for count in counts]
    assert [[one.count for one in batch] for batch in split_runs(runs)] == batches
