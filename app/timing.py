"""Stage times of one request, in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Adds up how long a request spends where; `total` runs from receipt.

    Args:
        received: When the request came, on the event loop's clock.
    """

    def __init__(self, received: float) -> None:
        self._received = received
        self._ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall time of a block to a stage."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            yield
        finally:
            self.add(name, (loop.time() - start) * 1000)

    def add(self, name: str, ms: float) -> None:
        """Add to a stage; items of one request may overlap, so a sum may exceed `total`."""
        self._ms[name] = self._ms.get(name, 0.0) + ms

    def finish(self) -> dict[str, float]:
        """Return the stages so far, and the total."""
        total = (asyncio.get_running_loop().time() - self._received) * 1000
        return {**self._ms, "total": total}
