"""Which waiting job is next: by priority, then shortest first with ageing.

A job's turn is its arrival plus a few times its expected run time, so small jobs pass big ones that
came a little earlier, and no job waits for ever.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from app.jobs import CopyJob, ExecuteJob, Job, JobValue

PIXELS_PER_S = 80e6
"""Decoded and processed per lane, roughly; only the order of jobs depends on it."""
AGEING = 4.0
"""How many times its own run time a job lets smaller ones pass."""
_numbers = itertools.count()


@dataclass(order=True, slots=True)
class Ticket:
    """A job on its way through the pool."""

    priority: int
    turn: float
    number: int = field(init=False, default_factory=lambda: next(_numbers))
    job: Job = field(compare=False, kw_only=True)
    arrived: float = field(compare=False, kw_only=True)
    result: asyncio.Future[JobValue] = field(compare=False, kw_only=True)
    alone: bool = field(compare=False, default=False, kw_only=True)
    """Runs only where nothing else runs: it is suspected of having killed a worker."""
    retried: bool = field(compare=False, default=False, kw_only=True)
    """Whether it has been put back once already as a bystander."""
    timer: asyncio.TimerHandle | None = field(compare=False, default=None, kw_only=True)
    """Ends the job that runs too long."""

    @property
    def is_small(self) -> bool:
        """Whether it takes the lane for plans and templates."""
        return not isinstance(self.job, ExecuteJob | CopyJob)


def make_ticket(job: Job, priority: int, cost: int, now: float) -> Ticket:
    """Return a job's ticket; `cost` in pixels to decode."""
    return Ticket(
        priority,
        now + AGEING * cost / PIXELS_PER_S,
        job=job,
        arrived=now,
        result=asyncio.get_running_loop().create_future(),
    )


class Queue:
    """Waiting tickets, best first."""

    def __init__(self) -> None:
        self._heap: list[Ticket] = []

    def __len__(self) -> int:
        return sum(not ticket.result.done() for ticket in self._heap)

    def __bool__(self) -> bool:
        """Whether there may be something to take, told without looking at what was given up."""
        return bool(self._heap)

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        heapq.heappush(self._heap, ticket)

    def take(self, fits: Callable[[Ticket], bool]) -> Ticket | None:
        """Remove and return the best ticket if it fits; those given up meanwhile are dropped."""
        while self._heap and self._heap[0].result.done():
            heapq.heappop(self._heap)
        if not self._heap or not fits(self._heap[0]):
            return None
        return heapq.heappop(self._heap)

    def drain(self) -> list[Ticket]:
        """Remove and return everything that waits."""
        waiting = [ticket for ticket in self._heap if not ticket.result.done()]
        self._heap.clear()
        return waiting
