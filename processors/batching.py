"""Equal-shaped items of several threads through one call, within a bounded wait.

On a device one call over several items costs little more than a call over one. The first thread
that brings an item of a kind waits a moment for others, runs the call for all, and hands out the
results. Whether the results are those of the items alone is the caller's to prove beforehand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class _Batch(Generic[T, R]):
    """Items that wait for one call."""

    items: list[T] = field(default_factory=list)
    results: list[R] = field(default_factory=list)
    error: Exception | None = None
    is_full: threading.Event = field(default_factory=threading.Event)
    is_done: threading.Event = field(default_factory=threading.Event)


class MicroBatcher(Generic[T, R]):
    """Runs items of equal kind together; threads share it.

    Args:
        run: Gives a result for each of several items of one kind, in their order.
        max_items: Of one call.
        wait_s: How long the first item waits for others.
    """

    def __init__(
        self, run: Callable[[Sequence[T]], Sequence[R]], *, max_items: int, wait_s: float
    ) -> None:
        self._run = run
        self._max_items = max_items
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Batch[T, R]] = {}

    def submit(self, kind: Hashable, item: T) -> tuple[R, int]:
        """Return an item's result, and how many items ran together.

        Args:
            kind: Items of equal kind may share a call.
            item: The item.

        Raises:
            Exception: What the call raised; an item alone in its call is to blame for it, others
                are run again one by one first.

        Blocking: `wait_s`, and as long as the call takes.
        """
        with self._lock:
            batch = self._open.get(kind)
            is_first = batch is None
            if batch is None:
                batch = self._open[kind] = _Batch()
            place = len(batch.items)
            batch.items.append(item)
            if len(batch.items) == self._max_items:
                del self._open[kind]
                batch.is_full.set()
        if is_first:
            self._lead(kind, batch)
        else:
            batch.is_done.wait()
        if batch.error is None:
            return batch.results[place], len(batch.items)
        if len(batch.items) == 1:
            raise batch.error
        (result,) = self._run([item])
        return result, 1

    def _lead(self, kind: Hashable, batch: _Batch[T, R]) -> None:
        """Wait for others, then run the call for all of them."""
        batch.is_full.wait(self._wait_s)
        with self._lock:
            if self._open.get(kind) is batch:
                del self._open[kind]
        try:
            batch.results = list(self._run(batch.items))
        # Kept for every thread that waits; each raises it, or runs its own item again.
        except Exception as error:  # noqa: BLE001
            batch.error = error
        finally:
            batch.is_done.set()
