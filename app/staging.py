"""Encoded media in shared memory, where workers read them without another copy.

A medium is written once, by whoever receives it, and told from then on by segment, offset and size.
Holders are counted; the memory is free when the last one has let go and no thread writes there any
more. Big copies and hashes run in threads, never on the event loop, to which everything here
belongs; small ones run on it, which costs less than a hop to a thread, a bounded amount in each
turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from processors.errors import MediaTooLargeError
from processors.hashing import content_digest
from transport.arena import Arena, Region
from transport.errors import ItemTooLargeError, StoreFullError

QUICK_BYTES = 1024 * 1024
"""Bytes that are copied, decoded or hashed on the loop in one turn of it, in about 0.4 ms."""
FIRST_CAPACITY_BYTES = 256 * 1024
"""What a buffer of unknown size starts with."""
PROMISED_BYTES = 8 << 20
"""What a promised size reserves at once; beyond it, the bytes must come before the memory does."""

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class _Block:
    """A region of the arena and how many hold it."""

    __slots__ = ("_arena", "_holders", "region")

    def __init__(self, arena: Arena, region: Region) -> None:
        self._arena = arena
        self._holders = 1
        self.region = region

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._arena.unpin(self.region)

    def view(self) -> memoryview:
        return self._arena.view(self.region)


class StagedMedia:
    """Encoded bytes of one medium in shared memory, held by one holder.

    Attributes:
        offset: Bytes from the start of the segment.
        nbytes: Encoded bytes; may be 0.
        digest: Content digest, 32 bytes.
    """

    __slots__ = ("_block", "_is_held", "digest", "nbytes", "offset")

    def __init__(self, block: _Block, start: int, nbytes: int, digest: bytes) -> None:
        self._block = block
        self._is_held = True
        self.offset = block.region.offset + start
        self.nbytes = nbytes
        self.digest = digest

    @property
    def segment(self) -> str:
        """Name of the segment, for `SegmentMap`."""
        return self._block.region.segment

    def view(self) -> memoryview:
        """Return the bytes; the view must not outlive the hold."""
        start = self.offset - self._block.region.offset
        return self._block.view()[start : start + self.nbytes].toreadonly()

    def share(self) -> StagedMedia:
        """Return another holder of the same bytes, released on its own.

        Raises:
            ValueError: If this one is released already.
        """
        if not self._is_held:
            msg = "a released medium cannot be shared"
            raise ValueError(msg)
        self._block.hold()
        start = self.offset - self._block.region.offset
        return StagedMedia(self._block, start, self.nbytes, self.digest)

    def release(self) -> None:
        """Let go; doing so twice changes nothing."""
        if self._is_held:
            self._is_held = False
            self._block.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"StagedMedia({self.segment!r}, offset={self.offset}, nbytes={self.nbytes})"


class StagingArea:
    """Where media are staged; closed with `aclose` before its arena.

    Args:
        arena: Shared memory of its own, apart from the features'.
        num_threads: Threads that copy, decode base64 and hash.
    """

    def __init__(self, arena: Arena, *, num_threads: int = 2) -> None:
        self._arena = arena
        self._threads = ThreadPoolExecutor(num_threads, "mmprep-staging")
        self._quick_bytes = QUICK_BYTES
        self.reclaim: Callable[[], bool] | None = None
        """Asked for room when there is none; gives something back and says whether it did."""

    def buffer(self, *, expected_bytes: int | None, max_bytes: int) -> StagingBuffer:
        """Return an empty buffer to stream a medium into.

        Args:
            expected_bytes: Size where it is promised; reserved at once if it is moderate.
            max_bytes: Limit while appending.

        Raises:
            MediaTooLargeError: If more is expected than the limit or the area allows.
            StoreFullError: If there is no room now.
        """
        if expected_bytes is not None and expected_bytes > max_bytes:
            raise too_large(max_bytes)
        first = FIRST_CAPACITY_BYTES if expected_bytes is None else PROMISED_BYTES
        most = max_bytes if expected_bytes is None else expected_bytes
        return StagingBuffer(self, self.reserve(min(first, most)), most, max_bytes)

    async def fill(
        self, capacity: int, write: Callable[[memoryview], int], *, is_quick: bool = False
    ) -> StagedMedia:
        """Stage what a function writes.

        Args:
            capacity: Bytes the function may write at most.
            write: Called with the memory; returns how many bytes it wrote.
            is_quick: Whether it writes about as fast as memory is copied; then it may be called on
                the loop, otherwise in a thread.

        Raises:
            MediaTooLargeError: If the area could never hold that much.
            StoreFullError: If there is no room now.
            Exception: Whatever `write` raises.

        Cancellation: The memory is let go when the thread has returned.
        """
        block = self.reserve(capacity)

        def work() -> tuple[int, bytes]:
            view = block.view()
            nbytes = write(view)
            return nbytes, content_digest(view[:nbytes])

        try:
            is_quick = is_quick and self._may_be_quick(capacity)
            nbytes, digest = work() if is_quick else await self.compute(block, work)
            self.seal(block, nbytes)
        except BaseException:
            block.drop()
            raise
        return StagedMedia(block, 0, nbytes, digest)

    def reserve(self, nbytes: int) -> _Block:
        """Reserve memory, held once.

        Raises:
            MediaTooLargeError: If the area could never hold that much.
            StoreFullError: If there is no room now.
        """
        while True:
            try:
                [region] = self._arena.reserve([(None, nbytes)])
                return _Block(self._arena, region)
            except ItemTooLargeError as error:
                raise MediaTooLargeError(
                    "The medium is larger than the staging area in shared memory "
                    "(MMPREP_STORE__STAGING_BYTES)."
                ) from error
            except StoreFullError as error:
                if self.reclaim is None or not self.reclaim():
                    raise StoreFullError(
                        "The staging area is full of media being processed; try again later."
                    ) from error

    def try_extend(self, block: _Block, nbytes: int) -> bool:
        """Grow memory in place, where there is room behind it."""
        region = self._arena.try_extend(block.region, nbytes)
        if region is not None:
            block.region = region
        return region is not None

    def seal(self, block: _Block, nbytes: int) -> None:
        """Give back what was reserved beyond the bytes written, and end the writing."""
        if nbytes < block.region.nbytes:
            block.region = self._arena.shrink(block.region, nbytes)
        self._arena.commit(block.region)

    async def handle(self, block: _Block, nbytes: int, work: Callable[[], T]) -> T:
        """Run a function that copies or hashes bytes of a block, few on the loop, many in a thread.

        Cancellation: The thread goes on; the block stays held until it returns.
        """
        return work() if self._may_be_quick(nbytes) else await self.compute(block, work)

    def _may_be_quick(self, nbytes: int) -> bool:
        """Return whether so many bytes may still be worked on in this turn of the loop."""
        if nbytes > self._quick_bytes:
            return False
        if self._quick_bytes == QUICK_BYTES:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._quick_bytes -= nbytes
        return True

    def _begin_turn(self) -> None:
        self._quick_bytes = QUICK_BYTES

    async def compute(self, block: _Block, work: Callable[[], T]) -> T:
        """Run a function that touches a block in a thread.

        Cancellation: The thread goes on; the block stays held until it returns.
        """
        loop = asyncio.get_running_loop()
        block.hold()
        job = self._threads.submit(work)
        # Not on the awaited future: that one is done as soon as it is cancelled, the thread is not.
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(block.drop))
        return await asyncio.wrap_future(job)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function that touches no shared memory in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def aclose(self) -> None:
        """Wait for the threads; media still held keep their memory until the arena closes."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.sleep(0)  # the holds that the last jobs gave back


class StagingBuffer:
    """Memory that grows while a medium streams in; ends with `finish` or `release`."""

    def __init__(self, area: StagingArea, block: _Block, likely_bytes: int, max_bytes: int) -> None:
        self._area = area
        self._block: _Block | None = block
        self._likely_bytes = likely_bytes
        self._max_bytes = max_bytes
        self.nbytes = 0
        """Bytes appended so far."""

    async def append(self, data: Buffer) -> None:
        """Add bytes at the end; the caller must not change them until this returns.

        Raises:
            MediaTooLargeError: If the limit would be exceeded; nothing is added then.
            StoreFullError: If the buffer cannot grow now.
        """
        start, stop = self.nbytes, self.nbytes + len(data)
        if stop > self._max_bytes:
            raise too_large(self._max_bytes)
        if stop > self._held().region.nbytes:
            await self._grow(stop)
        block = self._held()
        await self._area.handle(block, len(data), lambda: _copy(block.view()[start:stop], data))
        self.nbytes = stop

    async def read(self, start: int, nbytes: int) -> bytes:
        """Return a copy of a part of what was appended."""
        block = self._held()
        return await self._area.handle(
            block, nbytes, lambda: bytes(block.view()[start : start + nbytes])
        )

    async def finish(self) -> StagedMedia:
        """Return what was appended as one medium, hashed; the buffer is used up.

        Cancellation: The memory stays the buffer's.
        """
        [whole] = await self.split([(0, self.nbytes)])
        return whole

    async def split(self, parts: Sequence[tuple[int, int]]) -> list[StagedMedia]:
        """Return parts of what was appended as media, hashed; the buffer is used up.

        Args:
            parts: (start, bytes) of each.

        Cancellation: The memory stays the buffer's.
        """
        block = self._held()

        def hash_all() -> list[bytes]:
            view = block.view()
            return [content_digest(view[start : start + nbytes]) for start, nbytes in parts]

        digests = await self._area.handle(block, self.nbytes, hash_all)
        self._area.seal(block, self.nbytes)
        media = []
        for (start, nbytes), digest in zip(parts, digests, strict=True):
            block.hold()
            media.append(StagedMedia(block, start, nbytes, digest))
        self.release()
        return media

    def release(self) -> None:
        """Let go of the memory unless `finish` handed it on; idempotent."""
        block, self._block = self._block, None
        if block is not None:
            block.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()

    def _held(self) -> _Block:
        if self._block is None:
            msg = "the buffer is used up"
            raise ValueError(msg)
        return self._block

    async def _grow(self, needed: int) -> None:
        """Make room for `needed` bytes, for twice as many as now where that can be had."""
        old = self._held()
        wanted = max(min(2 * old.region.nbytes, self._likely_bytes), needed)
        if self._area.try_extend(old, wanted) or self._area.try_extend(old, needed):
            return
        try:
            new = self._area.reserve(wanted)
        except (MediaTooLargeError, StoreFullError):
            if wanted == needed:
                raise
            new = self._area.reserve(needed)
        try:
            await self._area.compute(new, lambda: _copy_start(new, old, self.nbytes))
        except BaseException:
            new.drop()
            raise
        self._block = new
        old.drop()


def _copy_start(to: _Block, source: _Block, nbytes: int) -> None:
    to.view()[:nbytes] = source.view()[:nbytes]


def _copy(to: memoryview, data: Buffer) -> None:
    to[:] = data


def too_large(max_bytes: int) -> MediaTooLargeError:
    """Return the error of a medium beyond its limit of encoded bytes."""
    return MediaTooLargeError(f"The medium has more than {max_bytes} bytes, which is the limit.")
