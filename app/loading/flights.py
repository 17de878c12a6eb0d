"""Equal fetches in flight are made once and shared by all who wait for them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from app.staging import StagedMedia
from processors.errors import MmprepError
from transport.errors import TransportError


class _Flight:
    """A fetch under way and how many wait for it."""

    __slots__ = ("is_settled", "num_waiting", "task")

    def __init__(self, task: asyncio.Task[StagedMedia]) -> None:
        self.task = task
        self.num_waiting = 0
        self.is_settled = False

    async def leave(self) -> None:
        """Count a waiter out; the last one cancels the fetch and sees it end."""
        self.num_waiting -= 1
        if not self.num_waiting and not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,))
        self.settle()

    def settle(self) -> None:
        """Release the fetch's own hold once it has landed and nobody waits."""
        if self.num_waiting or self.is_settled or not self.task.done():
            return
        self.is_settled = True
        if not self.task.cancelled() and self.task.exception() is None:
            self.task.result().release()


class Flights:
    """Fetches under way, by what they fetch; belongs to the event loop."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, _Flight] = {}
        self._tasks: set[asyncio.Task[StagedMedia]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def join(
        self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, StagedMedia]]
    ) -> StagedMedia:
        """Return a share of what the fetch of a key gives, starting it if none is under way.

        Raises:
            MmprepError: What the fetch raises; each waiter gets a copy of its own.

        Cancellation: The fetch goes on as long as anyone else waits.
        """
        flight = self._by_key.get(key)
        if flight is None or flight.task.cancelling() or flight.task.done():
            flight = self._start(key, fetch)
        flight.num_waiting += 1
        try:
            return (await asyncio.shield(flight.task)).share()
        except (MmprepError, TransportError) as error:
            raise copy.copy(error) from error
        finally:
            await flight.leave()

    async def aclose(self) -> None:
        """Cancel every fetch and wait until its connection is closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(
        self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, StagedMedia]]
    ) -> _Flight:
        flight = _Flight(asyncio.create_task(fetch()))
        self._by_key[key] = flight
        self._tasks.add(flight.task)

        def land(task: asyncio.Task[StagedMedia]) -> None:
            self._tasks.discard(task)
            if self._by_key.get(key) is flight:
                del self._by_key[key]
            flight.settle()

        flight.task.add_done_callback(land)
        return flight
