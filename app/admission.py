"""Admission: how many requests are in the house, and how much planned work runs at once.

Two gates. `enter` counts requests and never waits: one too many is 429. `acquire` weighs a
request's planned work (source pixels, feature bytes) once the plan is known and waits its turn in
a bounded queue, lower priority number first. Work larger than a whole budget runs alone instead of
never.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from app.errors import DrainingError, OverloadedError


@dataclass(frozen=True, slots=True)
class Work:
    """What executing the items of one request takes."""

    pixels: int = 0
    """Source pixels to decode."""
    nbytes: int = 0
    """Bytes of features to hold until the answer is out."""

    def __add__(self, other: Work) -> Work:
        return Work(self.pixels + other.pixels, self.nbytes + other.nbytes)

    def __sub__(self, other: Work) -> Work:
        return Work(self.pixels - other.pixels, self.nbytes - other.nbytes)

    def fits(self, budget: Work) -> bool:
        """Return whether both quantities stay within a budget."""
        return self.pixels <= budget.pixels and self.nbytes <= budget.nbytes

    def clamped(self, budget: Work) -> Work:
        """Return this work, at most a whole budget of it."""
        return Work(min(self.pixels, budget.pixels), min(self.nbytes, budget.nbytes))


@dataclass(order=True, slots=True)
class _Waiter:
    priority: int
    number: int
    work: Work = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


@dataclass(slots=True)
class Permit:
    """Leave to execute; released once, by whoever holds it last."""

    admission: Admission
    work: Work
    _released: bool = False

    def release(self) -> None:
        """Give the work's share back; doing so twice changes nothing."""
        if not self._released:
            self._released = True
            self.admission.give_back(self.work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()


class Admission:
    """Permits for requests and for their planned work; belongs to the event loop.

    Args:
        max_requests: Requests in the house at once, waiting ones included.
        budget: Planned work that may be in execution at once.
    """

    def __init__(self, max_requests: int, budget: Work) -> None:
        self._max_requests = max_requests
        self._budget = budget
        self._running = Work()
        self._waiters: list[_Waiter] = []
        self._numbers = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self.num_requests = 0
        self.is_draining = False

    @property
    def num_waiting(self) -> int:
        """Requests whose work waits for its turn."""
        return sum(not w.turn.done() for w in self._waiters)

    @property
    def running(self) -> Work:
        """Planned work in execution."""
        return self._running

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request in for as long as the context lasts; never waits.

        Raises:
            DrainingError: While the service shuts down.
            OverloadedError: If the house is full.
        """
        if self.is_draining:
            raise DrainingError(
                "The service is shutting down; send the request to another instance."
            )
        if self.num_requests >= self._max_requests:
            raise OverloadedError(
                f"{self._max_requests} requests are being served; try again after Retry-After."
            )
        self.num_requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if not self.num_requests:
                self._idle.set()

    async def acquire(self, work: Work, priority: int = 0) -> Permit:
        """Wait until the work fits, lower priority number first, then first come first served.

        Cancellation: Leaves the queue; nothing is held.
        """
        work = work.clamped(self._budget)
        if not self._waiters and (self._running + work).fits(self._budget):
            self._running += work
            return Permit(self, work)
        waiter = _Waiter(
            priority, next(self._numbers), work, asyncio.get_running_loop().create_future()
        )
        heapq.heappush(self._waiters, waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.give_back(work)
            else:
                waiter.turn.cancel()
                self._admit()
            raise
        return Permit(self, work)

    def give_back(self, work: Work) -> None:
        """Return a permit's share and let in who fits now."""
        self._running -= work
        self._admit()

    def _admit(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.turn.done():
                if not (self._running + waiter.work).fits(self._budget):
                    return
                self._running += waiter.work
                waiter.turn.set_result(None)
            heapq.heappop(self._waiters)

    async def drain(self) -> None:
        """Refuse new requests and wait until those in the house are done."""
        self.is_draining = True
        await self._idle.wait()
