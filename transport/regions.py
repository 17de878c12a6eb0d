"""Who holds which part of the store: reservations, keys, pins and eviction.

    reserve ──▶ being written ──commit──▶ ready ◀──pin/unpin──▶ idle ──evicted──▶ gone
                     └────────abort───▶ void ──────────────last unpin──────────────┘

`RegionTable` is the policy, the same for every kind of memory; `Arena` puts it over shared memory,
`CudaPool` over device memory. It belongs to one thread (the event loop), while other threads and
processes read and write the memory itself.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from transport.allocator import Extent, PageAllocator
from transport.errors import FeatureLost, ItemTooLargeError, StoreFullError


@dataclass(frozen=True, slots=True)
class Region:
    """Where something lies; small and picklable, means the same in every process."""

    segment: str
    """Name of the segment (of the pool, for device memory)."""
    offset: int
    """Bytes from the segment's start; a multiple of the page size."""
    nbytes: int
    generation: int
    """What its generation word says while it is readable: even, and never used twice."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What a store holds and did; bytes are whole pages."""

    capacity_bytes: int
    free_bytes: int
    idle_bytes: int
    """Ready and held by nobody: kept for look-ups, evictable."""
    held_bytes: int
    """Leased, pinned or being written: never evicted."""
    regions: int
    writing: int
    """Regions being written."""
    hits: int
    misses: int
    evictions: int
    refusals: int
    """Reservations refused because the store was full."""


class _State(Enum):
    WRITING = "writing"
    READY = "ready"
    VOID = "void"


class _Entry:
    """A region's life."""

    __slots__ = ("extent", "key", "last_use", "pins", "region", "state")

    def __init__(self, key: Hashable | None, region: Region, extent: Extent) -> None:
        self.key = key
        self.region = region
        self.extent = extent
        self.state = _State.WRITING
        self.pins = 1
        self.last_use = 0


class RegionTable(ABC):
    """Reserves, finds, pins and evicts regions of a few fixed segments.

    Args:
        segments: (name, bytes) of each segment.
        page_bytes: Regions start on multiples of this.
        control_bytes: Bytes directly before each region that stay free for its control block.
    """

    def __init__(
        self, segments: Sequence[tuple[str, int]], *, page_bytes: int, control_bytes: int
    ) -> None:
        self._page_bytes = page_bytes
        self._control_bytes = control_bytes
        # The first region's control block needs a page before it.
        self._lead_pages = 1 if control_bytes else 0
        self._segments = tuple(segments)
        self._allocator = PageAllocator(
            [nbytes // page_bytes - self._lead_pages for _, nbytes in segments]
        )
        self._entries: dict[int, _Entry] = {}  # by generation
        self._by_start: dict[int, _Entry] = {}  # by first page
        self._by_key: dict[Hashable, _Entry] = {}  # being written or ready
        self._idle: dict[int, _Entry] = {}  # by generation; least recently used first
        self._idle_pages = 0
        self._writing = 0
        self._uses = 0
        self._hits = self._misses = self._evictions = self._refusals = 0
        # Random, so that neither an earlier life of a page nor its data is taken for a generation;
        # below 2**53, so that every JSON reader keeps it exact.
        self._next_generation = secrets.randbits(51) * 2
        self.before_reserve: Callable[[], None] | None = None
        """Called at the start of `reserve`: the lease table lets go of what is due."""
        self.on_evict: Callable[[Hashable], None] | None = None
        """Told the key of each region that is evicted, after it is gone."""

    @property
    def segments(self) -> tuple[tuple[str, int], ...]:
        """(name, bytes) of each segment."""
        return self._segments

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all pages that regions can take."""
        return self._allocator.total_pages * self._page_bytes

    def reserve(self, wanted: Sequence[tuple[Hashable | None, int]]) -> list[Region]:
        """Reserve all regions of a request, or none; idle regions are evicted to make room.

        Each region starts being written (its generation word is odd) and pinned once for the
        caller, who ends with exactly one `unpin`, whether it was committed or not.

        Args:
            wanted: (key, bytes) of each region. A region without a key is never found by
                `lookup`, and is gone with its last pin.

        Returns:
            The regions in the order wanted; `generation` is the one they will have when ready.

        Raises:
            StoreFullError: If regions that are leased, pinned or being written are in the way.
            ItemTooLargeError: If the request would not fit into the empty store.
            ValueError: If a key is held already; look it up first.
        """
        if self.before_reserve is not None:
            self.before_reserve()
        sizes = [self._pages(nbytes) for _, nbytes in wanted]
        keys = [key for key, _ in wanted if key is not None]
        if len(set(keys)) < len(keys) or any(key in self._by_key for key in keys):
            raise ValueError("a key to reserve is held already")
        if max(sizes, default=0) > self._allocator.largest_segment:
            raise ItemTooLargeError("the item is larger than a segment of the feature store")
        if sum(sizes) > self._allocator.total_pages:
            raise ItemTooLargeError("the request is larger than the feature store")
        self._require_room(sum(sizes))
        regions: dict[int, Region] = {}
        try:
            # Largest first: where there is no room for all, it shows before much is evicted.
            for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
                key, nbytes = wanted[index]
                regions[index] = self._reserve_one(key, nbytes, sizes[index])
        except StoreFullError:
            for region in regions.values():
                self.unpin(region)
            if self._is_unused():
                raise ItemTooLargeError(
                    "the request does not fit into the store's segments"
                ) from None
            self._refusals += 1
            raise
        return [regions[index] for index in range(len(sizes))]

    def shrink(self, region: Region, nbytes: int) -> Region:
        """Cut a region that is being written down to `nbytes`; the rest is free.

        Raises:
            FeatureLost: If the region is gone.
            ValueError: If it is not being written, or is smaller than that.
        """
        entry = self._being_written(region)
        if nbytes > region.nbytes:
            raise ValueError("shrinking does not grow")
        self._allocator.shrink(entry.extent, self._pages(nbytes))
        return self._resized(entry, nbytes)

    def try_extend(self, region: Region, nbytes: int) -> Region | None:
        """Grow a region that is being written in place, if there is free room behind it.

        Returns:
            The region with its new size, or None where it must move.

        Raises:
            FeatureLost: If the region is gone.
            ValueError: If it is not being written.
        """
        entry = self._being_written(region)
        if not self._allocator.extend(entry.extent, self._pages(nbytes)):
            return None
        return self._resized(entry, max(nbytes, region.nbytes))

    def commit(self, region: Region) -> None:
        """Declare a region written: readable, and found by its key from now on.

        Raises:
            FeatureLost: If the region is gone.
            ValueError: If it is not being written.
        """
        entry = self._being_written(region)
        entry.state = _State.READY
        self._writing -= 1
        self._publish(entry.region, entry.region.generation)

    def abort(self, region: Region) -> None:
        """Give up a region that is being written: its key is free, readers will never see it ready.

        Call it only after nothing writes there any more (the worker has returned or is dead): the
        memory is free at once. Pins on it, the caller's included, are taken back as usual. Does
        nothing to a region that was aborted before.

        Raises:
            FeatureLost: If the region is gone.
            ValueError: If it was committed.
        """
        if not self._is_void(region):
            self._void(self._being_written(region))

    def lookup(self, key: Hashable) -> Region | None:
        """Find the ready region of a key; pin it before anything can evict it."""
        entry = self._by_key.get(key)
        if entry is None or entry.state is not _State.READY:
            self._misses += 1
            return None
        self._hits += 1
        return entry.region

    def is_ready(self, region: Region) -> bool:
        """Whether the region stands and has been committed."""
        entry = self._entries.get(region.generation)
        return entry is not None and entry.state is _State.READY

    def stands(self, region: Region) -> bool:
        """Whether the region still has its memory and was not given up."""
        entry = self._entries.get(region.generation)
        return entry is not None and entry.state is not _State.VOID

    def pin(self, region: Region) -> None:
        """Keep a region from eviction until as many `unpin`s.

        Raises:
            FeatureLost: If the region is gone.
        """
        entry = self._standing(region)
        if entry.pins == 0:
            del self._idle[region.generation]
            self._idle_pages -= entry.extent.size
        entry.pins += 1

    def unpin(self, region: Region) -> None:
        """Take one pin back; the last one makes the region evictable, or free if it has no use.

        A region without a key, or not committed by then, is freed at once.

        Raises:
            FeatureLost: If the region is gone.
            ValueError: If it is not pinned.
        """
        entry = self._entry(region)
        if entry.pins == 0:
            raise ValueError("the region is not pinned")
        entry.pins -= 1
        if entry.pins:
            return
        if entry.state is _State.READY and entry.key is not None:
            self._uses += 1
            entry.last_use = self._uses
            self._idle[region.generation] = entry
            self._idle_pages += entry.extent.size
            return
        if entry.state is _State.WRITING:
            self._void(entry)
        elif entry.state is _State.READY:
            self._free(entry)
        del self._entries[region.generation]

    def drop_idle(self) -> None:
        """Evict everything that nobody holds."""
        for entry in list(self._idle.values()):
            self._evict(entry)

    def statistics(self) -> StoreStatistics:
        """Return what the store holds and did."""
        free, idle = self._allocator.free_pages, self._idle_pages
        return StoreStatistics(
            capacity_bytes=self.capacity_bytes,
            free_bytes=free * self._page_bytes,
            idle_bytes=idle * self._page_bytes,
            held_bytes=self.capacity_bytes - (free + idle) * self._page_bytes,
            regions=len(self._entries),
            writing=self._writing,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            refusals=self._refusals,
        )

    @abstractmethod
    def _publish(self, region: Region, generation: int) -> None:
        """Store a region's generation (odd: not readable) where readers look for it."""

    def _pages(self, nbytes: int) -> int:
        if nbytes < 0:
            raise ValueError("a region has no negative size")
        return max(1, -(-(nbytes + self._control_bytes) // self._page_bytes))

    def _entry(self, region: Region) -> _Entry:
        entry = self._entries.get(region.generation)
        if entry is None:
            raise FeatureLost("the features are not in the store any more")
        return entry

    def _is_void(self, region: Region) -> bool:
        return self._entry(region).state is _State.VOID

    def _standing(self, region: Region) -> _Entry:
        if self._is_void(region):
            raise FeatureLost("making these features failed; post the request again")
        return self._entry(region)

    def _being_written(self, region: Region) -> _Entry:
        entry = self._entry(region)
        if entry.state is not _State.WRITING:
            raise ValueError("the region is not being written")
        return entry

    def _reserve_one(self, key: Hashable | None, nbytes: int, pages: int) -> Region:
        while (extent := self._allocator.allocate(pages)) is None:
            for victim in self._find_victims(pages):
                self._evict(victim)
        index, page = self._allocator.locate(extent)
        self._next_generation += 2
        offset = (page + self._lead_pages) * self._page_bytes
        region = Region(self._segments[index][0], offset, nbytes, self._next_generation)
        entry = _Entry(key, region, extent)
        self._entries[region.generation] = self._by_start[extent.start] = entry
        if key is not None:
            self._by_key[key] = entry
        self._writing += 1
        self._publish(region, region.generation - 1)
        return region

    def _resized(self, entry: _Entry, nbytes: int) -> Region:
        entry.region = replace(entry.region, nbytes=nbytes)
        self._publish(entry.region, entry.region.generation - 1)
        return entry.region

    def _is_unused(self) -> bool:
        """Whether nobody holds anything, so that no waiting makes more room."""
        return self._allocator.free_pages + self._idle_pages == self._allocator.total_pages

    def _require_room(self, pages: int) -> None:
        if pages > self._allocator.free_pages + self._idle_pages:
            self._refusals += 1
            raise StoreFullError("the feature store is full of features in use; try again later")

    def _find_victims(self, pages: int) -> list[_Entry]:
        """Find idle regions that together with free neighbours make one run of `pages`.

        Starts at the least recently used and grows to both sides, the less recently used first, so
        that little more is lost than is needed.
        """
        too_small: set[int] = set()
        for entry in self._idle.values():
            if entry.extent.start not in too_small:
                run = self._grow_run(entry.extent, pages)
                if sum(extent.size for extent in run) >= pages:
                    return [self._by_start[extent.start] for extent in run if not extent.is_free]
                too_small.update(extent.start for extent in run)
        raise StoreFullError("features in use leave no room in one piece; try again later")

    def _grow_run(self, extent: Extent, pages: int) -> list[Extent]:
        run, total = [extent], extent.size
        left, right = extent.left, extent.right
        while total < pages:
            side = min((left, right), key=self._cost)
            if side is None or self._cost(side) == _NEVER:
                break
            run.append(side)
            total += side.size
            if side is left:
                left = side.left
            else:
                right = side.right
        return run

    def _cost(self, extent: Extent | None) -> float:
        if extent is None:
            return _NEVER
        if extent.is_free:
            return 0
        entry = self._by_start[extent.start]
        return _NEVER if entry.pins else entry.last_use

    def _evict(self, entry: _Entry) -> None:
        del self._idle[entry.region.generation]
        self._idle_pages -= entry.extent.size
        self._evictions += 1
        del self._by_key[entry.key]
        del self._entries[entry.region.generation]
        self._free(entry)
        if self.on_evict is not None:
            self.on_evict(entry.key)

    def _void(self, entry: _Entry) -> None:
        entry.state = _State.VOID
        self._writing -= 1
        if entry.key is not None:
            del self._by_key[entry.key]
        self._free(entry)

    def _free(self, entry: _Entry) -> None:
        # Odd before anything else may be written there.
        self._publish(entry.region, entry.region.generation + 1)
        del self._by_start[entry.extent.start]
        self._allocator.free(entry.extent)


_NEVER = float("inf")
