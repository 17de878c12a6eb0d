"""Which pages of the store are whose: oldest free fit, with neighbours that merge.

Pure bookkeeping in pages; knows neither memory nor keys. Free extents stand in queues by size
class, oldest first, and an allocation takes the one that has been free for longest among those that
fit: memory is reused as late as possible, so a reader with a stale location most likely still finds
what it was promised.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

_STEPS = 8
"""Size classes per power of two."""


class Extent:
    """A run of pages, free or used, linked to its neighbours in the same segment."""

    __slots__ = ("age", "is_free", "left", "right", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        """First page, counted over all segments."""
        self.size = size
        """Pages."""
        self.is_free = False
        self.age = 0
        """When it became free: smaller is longer ago."""
        self.left: Extent | None = None
        self.right: Extent | None = None


class PageAllocator:
    """Hands out runs of pages from a few fixed segments.

    Args:
        segment_pages: Pages of each segment; runs never cross from one to the next.
    """

    def __init__(self, segment_pages: Sequence[int]) -> None:
        self.largest_segment = max(segment_pages)
        self.total_pages = 0
        self.free_pages = 0
        self._clock = 0
        self._cursor = 0
        self._first_pages: list[int] = []
        self._queues: list[list[Extent]] = [
            [] for _ in range(_size_class(self.largest_segment) + 1)
        ]
        for pages in segment_pages:
            self._first_pages.append(self.total_pages)
            self.free(Extent(self.total_pages, pages))
            self.total_pages += pages

    def allocate(self, size: int) -> Extent | None:
        """Take `size` pages from the extent that has been free for longest, or return None."""
        extent = self._oldest_fit(size)
        if extent is None:
            return None
        self._dequeue(extent)
        # Within an extent go on where the last allocation ended: what was freed a moment ago has
        # merged into it and should not be what is taken next.
        skip = self._cursor - extent.start
        if 0 < skip <= extent.size - size:
            head, extent = extent, _cut(extent, skip)
            extent.age = head.age
            self._enqueue(head)
        self._split(extent, size)
        self._cursor = extent.start + size
        return extent

    def free(self, extent: Extent) -> None:
        """Give a used extent back; it merges with its free neighbours."""
        if extent.left is not None and extent.left.is_free:
            left = extent.left
            self._dequeue(left)
            _absorb(left, extent)
            extent = left
        if extent.right is not None and extent.right.is_free:
            self._dequeue(extent.right)
            _absorb(extent, extent.right)
        # As young as its youngest part: what was freed a moment ago is not reused at once.
        self._clock += 1
        extent.age = self._clock
        self._enqueue(extent)

    def shrink(self, extent: Extent, size: int) -> None:
        """Cut a used extent down to `size` pages and free the rest."""
        if size < extent.size:
            self.free(_cut(extent, size))

    def extend(self, extent: Extent, size: int) -> bool:
        """Grow a used extent to `size` pages in place; False where there is no room behind it."""
        right = extent.right
        if size <= extent.size:
            return True
        if right is None or not right.is_free or extent.size + right.size < size:
            return False
        self._dequeue(right)
        extent.age = right.age
        _absorb(extent, right)
        self._split(extent, size)
        return True

    def locate(self, extent: Extent) -> tuple[int, int]:
        """Return (index of the segment, first page within it)."""
        index = bisect_right(self._first_pages, extent.start) - 1
        return index, extent.start - self._first_pages[index]

    def _oldest_fit(self, size: int) -> Extent | None:
        own = _size_class(size)
        heads = [queue[0] for queue in self._queues[own:] if queue and queue[0].size >= size]
        if heads:
            return min(heads, key=_age)
        # What is left are extents of the very class behind one that is too small.
        return next((extent for extent in self._queues[own] if extent.size >= size), None)

    def _split(self, extent: Extent, size: int) -> None:
        """Keep `size` pages of an extent just taken; the rest is as old as it was."""
        if size < extent.size:
            tail = _cut(extent, size)
            tail.age = extent.age
            self._enqueue(tail)

    def _enqueue(self, extent: Extent) -> None:
        extent.is_free = True
        self.free_pages += extent.size
        insort(self._queues[_size_class(extent.size)], extent, key=_age)

    def _dequeue(self, extent: Extent) -> None:
        extent.is_free = False
        self.free_pages -= extent.size
        queue = self._queues[_size_class(extent.size)]
        del queue[bisect_left(queue, _age(extent), key=_age)]


def _age(extent: Extent) -> tuple[int, int]:
    """Order of reuse: longest free first, then by place, since parts of one share its age."""
    return extent.age, extent.start


def _absorb(left: Extent, right: Extent) -> None:
    left.size += right.size
    left.right = right.right
    if right.right is not None:
        right.right.left = left


def _cut(extent: Extent, size: int) -> Extent:
    """Shorten an extent to `size` pages and return the rest as its right neighbour."""
    tail = Extent(extent.start + size, extent.size - size)
    tail.left, tail.right = extent, extent.right
    if extent.right is not None:
        extent.right.left = tail
    extent.right, extent.size = tail, size
    return tail


def _size_class(size: int) -> int:
    """Class of a size: eight per power of two, so the sizes of a class differ by an eighth."""
    shift = max(size.bit_length() - 4, 0)
    return shift * _STEPS + (size >> shift)
