"""How the C allocator of the API process keeps what requests take and give back.

By itself it hands the top of the heap back to the kernel after each body that is let go of, and
faults it in anew for the next; and it learns from the first large block to keep all others.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 64 << 20
"""Free bytes at the top of the heap that are kept."""
GROWTH_BYTES = 4 << 20
"""What the heap grows by."""
LARGE_BYTES = 1 << 20
"""Blocks from here on are mapped by themselves, and given back at once."""


def tune() -> bool:
    """Set the allocator up; what `MALLOC_*` variables say is left as it is.

    Returns:
        Whether it was: other C libraries than glibc have no such settings.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_TOP_PAD, GROWTH_BYTES),
        (_MMAP_THRESHOLD, LARGE_BYTES),
    )
    return all(mallopt(name, value) for name, value in settings)
