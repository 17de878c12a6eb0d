"""A bounded table of computed values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MAX_REMEMBERED = 4096
"""Values remembered where nobody says otherwise."""


class Memo(Generic[K, T]):
    """A bounded table of computed values, oldest use out first; threads may share it.

    Args:
        size: What all values together may weigh.
        weigh: What a key and its value weigh; by default one, so that values are counted.
    """

    def __init__(
        self, size: int = MAX_REMEMBERED, weigh: Callable[[K, T], int] = lambda key, value: 1
    ) -> None:
        self._size = size
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[K, T] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: K) -> T | None:
        """Return the value of a key where it was computed before; counts as a use."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def keep(self, key: K, value: T) -> None:
        """Remember a value, in the place of an earlier one of that key."""
        with self._lock:
            if key in self._values:
                self._weight -= self._weigh(key, self._values.pop(key))
            self._values[key] = value
            self._weight += self._weigh(key, value)
            while self._weight > self._size:
                self._weight -= self._weigh(*self._values.popitem(last=False))

    def get(self, key: K, compute: Callable[[], T]) -> T:
        """Return the value of a key, computing it at its first use."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        self.keep(key, value)
        return value
