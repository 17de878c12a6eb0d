"""Stage times of one request, in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Adds up how long a request spends where; `total` runs from when this is made."""

    def __init__(self) -> None:
        # Not the loop's clock: uvloop's goes in steps of 1 ms.
        self._received = time.perf_counter()
        self._ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, (time.perf_counter() - start) * 1000)

    def add(self, name: str, ms: float) -> None:
        """Add to a stage; items of one request may overlap, so a sum may exceed `total`."""
        self._ms[name] = self._ms.get(name, 0.0) + ms

    def finish(self) -> dict[str, float]:
        """Return the stages so far, and the total."""
        total = (time.perf_counter() - self._received) * 1000
        return {**self._ms, "total": total}
