"""How much at once and how slow at most: permits by host, the rate of a stream, a time budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Clock = Callable[[], float]


class HostPermits:
    """Bounds fetches at once, per host and over all.

    A host's permit is taken first, so that those who queue for one slow host do not hold the
    permits everyone else needs. Nobody waits for a host while holding an overall permit.
    """

    def __init__(self, total: int, per_host: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_host = per_host
        self._hosts: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @property
    def num_hosts(self) -> int:
        """Hosts that anyone holds or waits for."""
        return len(self._hosts)

    @asynccontextmanager
    async def hold(self, host: str) -> AsyncIterator[None]:
        """Hold a permit for one fetch from a host.

        Cancellation: Nothing is held.
        """
        permits, users = self._hosts.get(host) or (asyncio.Semaphore(self._per_host), 0)
        self._hosts[host] = (permits, users + 1)
        try:
            async with permits, self._total:
                yield
        finally:
            permits, users = self._hosts[host]
            if users == 1:
                del self._hosts[host]
            else:
                self._hosts[host] = (permits, users - 1)


class RateGuard:
    """Tells a stream whose average rate has fallen below a minimum.

    Args:
        min_bytes_per_s: The minimum; 0 turns the rule off.
        grace_s: Seconds before it counts.
        clock: Seconds from anywhere.
    """

    def __init__(
        self, min_bytes_per_s: float, grace_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._min_bytes_per_s = min_bytes_per_s
        self._grace_s = grace_s
        self._clock = clock
        self._start = clock()
        self._received = 0

    def is_too_slow(self, nbytes: int) -> bool:
        """Count bytes received and return whether the stream is to be cut."""
        self._received += nbytes
        elapsed = self._clock() - self._start
        return elapsed > self._grace_s and self._received < elapsed * self._min_bytes_per_s


class TimeBudget:
    """Seconds that several stretches of work share; the time between them is free."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    @asynccontextmanager
    async def spend(self) -> AsyncIterator[None]:
        """Run a stretch of work.

        Raises:
            TimeoutError: When the budget is used up.
        """
        start = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._left)):
                yield
        finally:
            self._left -= time.monotonic() - start
