"""Micro-batches: who runs together, how long anyone waits, and whose fault a failure is."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from processors.batching import MicroBatcher

LONG_S = 30.0


class Doubler:
    """Doubles numbers; keeps what ran together, and chokes on zero."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        if 0 in items:
            raise ValueError("zero")
        return [2 * item for item in items]


def test_a_full_batch_does_not_wait() -> None:
    """As many as fit run in one call, each with its own result."""
    run = Doubler()
    batcher = MicroBatcher(run, max_items=4, wait_s=LONG_S)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: batcher.submit("kind", n), range(1, 5)))
    assert found == [(2, 4), (4, 4), (6, 4), (8, 4)]
    assert [sorted(call) for call in run.calls] == [[1, 2, 3, 4]]


def test_one_item_runs_alone_after_its_wait() -> None:
    """Nobody else comes: the item is not held up for ever."""
    run = Doubler()
    batcher = MicroBatcher(run, max_items=4, wait_s=0.001)
    assert batcher.submit("kind", 5) == (10, 1)
    assert batcher.submit("kind", 6) == (12, 1)
    assert run.calls == [[5], [6]]


def test_kinds_do_not_mix() -> None:
    """Items of different kinds never share a call."""
    run = Doubler()
    batcher = MicroBatcher(run, max_items=2, wait_s=LONG_S)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: batcher.submit(n % 2, n), range(1, 5)))
    assert [result for result, _ in found] == [2, 4, 6, 8]
    assert {size for _, size in found} == {2}
    assert all(len({item % 2 for item in call}) == 1 for call in run.calls)


def test_a_failure_is_its_own_items_alone() -> None:
    """The others of a failed call are run again and get their results."""
    run = Doubler()
    batcher = MicroBatcher(run, max_items=3, wait_s=LONG_S)

    def submit(number: int) -> object:
        try:
            return batcher.submit("kind", number)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(submit, [0, 1, 2]))
    assert found == ["zero", (2, 1), (4, 1)]


def test_an_item_that_fails_alone_raises() -> None:
    """There is nobody else to blame."""
    run = Doubler()
    with pytest.raises(ValueError, match="zero"):
        MicroBatcher(run, max_items=2, wait_s=0.001).submit("kind", 0)
    assert run.calls == [[0]]


def test_a_batch_under_way_takes_no_more() -> None:
    """Who comes while a call runs begins the next batch."""
    may_end, has_begun = threading.Event(), threading.Event()
    calls: list[int] = []

    def run(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        has_begun.set()
        assert may_end.wait(LONG_S)
        return list(items)

    batcher = MicroBatcher(run, max_items=2, wait_s=0.001)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(batcher.submit, "kind", 1)
        assert has_begun.wait(LONG_S)
        second = threads.submit(batcher.submit, "kind", 2)
        may_end.set()
        assert first.result(LONG_S) == (1, 1)
        assert second.result(LONG_S) == (2, 1)
    assert calls == [1, 1]
