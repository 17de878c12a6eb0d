"""A bounded table of computed values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_REMEMBERED = 4096
"""Values remembered where nobody says otherwise."""


class Memo(Generic[T]):
    """A bounded table of computed values, oldest use out first; threads may share it."""

    def __init__(self, size: int = MAX_REMEMBERED) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key, computing it at its first use."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
