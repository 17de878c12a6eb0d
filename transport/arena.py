"""The feature store in shared memory: a table of regions over a few fixed segments.

A region is `64-byte control block | safetensors document`, the document on a multiple of 4096. The
control block lies in the last bytes of the page before: u64 LE generation (odd while the region is
being written or after it was given up), u64 LE document size.

Example:
    with Arena("9f2c", [2 << 30]) as arena:
        [region] = arena.reserve([(("6f1c…", "float32", "plain"), layout.nbytes)])
        arena.view(region)[: layout.data_start] = layout.header
        ...                      # a worker writes the data through its SegmentMap
        arena.commit(region)
        ...                      # the lease table pins it for the answer
        arena.unpin(region)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from transport.errors import SegmentError
from transport.regions import Region as Region
from transport.regions import RegionTable
from transport.regions import StoreStatistics as StoreStatistics
from transport.segments import (
    CONTROL_BYTES,
    DEFAULT_DIRECTORY,
    PAGE_BYTES,
    OwnedSegment,
    remove_dead_segments,
    segment_name,
)
from transport.segments import SegmentMap as SegmentMap


class Arena(RegionTable):
    """The owner's side of the store, or of a staging area, in shared memory.

    Blocking: making it allocates and zeroes all of its memory, about a second per GiB or two.

    Args:
        instance: Name of this run of the service: lower-case letters and digits.
        segment_nbytes: Bytes of each segment, rounded down to pages. One item lies within one.
        purpose: Told apart in the names of segments.
        directory: Memory file system to use.
        mode: Permission bits of the segments; a consumer of another user needs 0o640 and `group`,
            or 0o644.
        group: Numeric group of the segments, or None.

    Raises:
        SegmentError: If the memory cannot be had, with what would help.
    """

    def __init__(
        self,
        instance: str,
        segment_nbytes: Sequence[int],
        *,
        purpose: str = "store",
        directory: str = DEFAULT_DIRECTORY,
        mode: int = 0o600,
        group: int | None = None,
    ) -> None:
        remove_dead_segments(directory)
        sizes = [nbytes - nbytes % PAGE_BYTES for nbytes in segment_nbytes]
        if min(sizes, default=0) < 2 * PAGE_BYTES:
            raise SegmentError("a segment needs at least two pages of 4096 bytes")
        self._owned: list[OwnedSegment] = []
        try:
            for number, nbytes in enumerate(sizes):
                name = segment_name(instance, purpose, number)
                self._owned.append(
                    OwnedSegment(name, nbytes, directory=directory, mode=mode, group=group)
                )
        except SegmentError:
            self.close()
            raise
        self._by_name = {segment.name: segment for segment in self._owned}
        super().__init__(
            [(segment.name, segment.nbytes) for segment in self._owned],
            page_bytes=PAGE_BYTES,
            control_bytes=CONTROL_BYTES,
        )

    def view(self, region: Region) -> memoryview:
        """Return the region's bytes, writable, for whoever in this process fills or sends them.

        Raises:
            FeatureLost: If the region is gone.
        """
        current = self._standing(region).region
        whole = self._by_name[current.segment].view
        return whole[current.offset : current.offset + current.nbytes]

    def close(self) -> None:
        """Remove the segments; idempotent. Consumers keep what they have mapped."""
        while self._owned:
            self._owned.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _publish(self, region: Region, generation: int) -> None:
        words = self._by_name[region.segment].words
        control = (region.offset - CONTROL_BYTES) // 8
        words[control + 1] = region.nbytes
        words[control] = generation
