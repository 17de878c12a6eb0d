"""Where large pictures are decoded into: buffers that are mapped apart from the heap and reused.

A picture of the heap's would leave a hole behind that a larger one does not fit into: a worker then
holds both. A buffer goes back when the last array that views it is gone.
"""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np

LARGE_NBYTES = 4 << 20
"""Smaller arrays come from the heap."""
MAX_KEPT_NBYTES = 320 << 20
"""Of all buffers that wait for the next picture: as much as the largest by default takes. What is
given back to the system is faulted in anew, at a quarter of what decoding into it costs."""


class Buffers:
    """Buffers of which a few are kept for the next pictures; threads may share it."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        # An array may go, and its buffer come back, in the midst of taking another.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a uint8 array that holds whatever was there before; contiguous and writable.

        Raises:
            MemoryError: If the system does not give as much.
        """
        nbytes = int(np.prod(shape, dtype=np.int64))
        if nbytes < LARGE_NBYTES:
            return np.empty(shape, np.uint8)
        buffer = self._take(nbytes)
        array = np.frombuffer(buffer, np.uint8, nbytes)
        # All views have this array, not the buffer, as their base.
        weakref.finalize(array, self._give, buffer).atexit = False
        return array.reshape(shape)

    def _take(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            # The latest first: of what it held, most is still in the caches.
            fitting = [buffer for buffer in reversed(self._free) if len(buffer) >= nbytes]
            if fitting:
                smallest = min(fitting, key=len)
                self._free.remove(smallest)
                return smallest
            # Pictures are larger now; what was kept would only stand beside this one.
            self._free.clear()
        try:
            # Private, so that it counts as the worker's own and is bounded with it.
            return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as exc:
            raise MemoryError(f"no {nbytes} bytes for pixels") from exc

    def _give(self, buffer: mmap.mmap) -> None:
        with self._lock:
            self._free.append(buffer)
            while sum(map(len, self._free)) > MAX_KEPT_NBYTES:
                del self._free[0]


_buffers = Buffers()
empty_pixels = _buffers.empty
"""See `Buffers.empty`; of the process."""
