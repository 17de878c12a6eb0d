"""A short-lived cache of fetched media, bounded by bytes, that honours Cache-Control."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_DIRECTIVE = re.compile(r"([a-z-]+)(?:\s*=\s*\"?([0-9]{1,9})\"?)?")


class Held(Protocol):
    """What the cache keeps: something with a size that is given back explicitly."""

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


H = TypeVar("H", bound=Held)


def freshness_s(cache_control: str, age: str, vary: str) -> float:
    """Return for how many seconds an answer may be used again; 0 where it may not be.

    Args:
        cache_control: The header's value, empty if there is none.
        age: Likewise; seconds the answer has spent in caches already.
        vary: Likewise. Requests differ in nothing but their URL, so only `*` forbids reuse.
    """
    found = dict(_DIRECTIVE.findall(cache_control.lower()))
    if vary.strip() == "*" or not found.keys().isdisjoint({"no-store", "no-cache", "private"}):
        return 0.0
    lifetime = found.get("s-maxage") or found.get("max-age") or "0"
    spent = float(age) if age.isascii() and age.isdigit() else 0.0
    return max(0.0, float(lifetime) - spent)


@dataclass(slots=True)
class _Entry(Generic[H]):
    held: H
    expires: float


class ByteCache(Generic[H]):
    """Least recently used media within a byte budget; belongs to the event loop.

    Args:
        max_bytes: Budget; 0 keeps nothing.
        max_s: Seconds an entry is kept at most.
        clock: Seconds from anywhere.
    """

    def __init__(
        self, max_bytes: int, max_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._max_s = max_s
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry[H]] = OrderedDict()
        self.nbytes = 0

    def get(self, key: Hashable) -> H | None:
        """Return what is held for a key and fresh; it stays the cache's."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.held

    def can_keep(self, nbytes: int, fresh_s: float) -> bool:
        """Return whether something of this size and freshness would be kept."""
        return 0 < nbytes <= self._max_bytes and fresh_s > 0

    def put(self, key: Hashable, held: H, fresh_s: float) -> None:
        """Take over something that `can_keep` approves of, at the expense of the oldest."""
        if key in self._entries:
            self._drop(key)
        while self.nbytes + held.nbytes > self._max_bytes:
            self.evict()
        self._entries[key] = _Entry(held, self._clock() + min(fresh_s, self._max_s))
        self.nbytes += held.nbytes

    def evict(self) -> bool:
        """Give back the least recently used entry; False if there is none."""
        if not self._entries:
            return False
        self._drop(next(iter(self._entries)))
        return True

    def clear(self) -> None:
        """Give everything back."""
        while self.evict():
            pass

    def _drop(self, key: Hashable) -> None:
        held = self._entries.pop(key).held
        self.nbytes -= held.nbytes
        held.release()
