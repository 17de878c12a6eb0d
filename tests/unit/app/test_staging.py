"""Staging: real shared memory, counted holds, growth, threads that outlive their callers."""

import asyncio
import threading
from collections.abc import AsyncIterator

import blake3
import pytest

from app.staging import FIRST_CAPACITY_BYTES, QUICK_BYTES, StagedMedia, StagingArea
from processors.errors import MediaTooLargeError
from tests.helpers.loading import run_staging
from transport.arena import Arena, SegmentMap
from transport.errors import StoreFullError

BODY = bytes(range(251)) * 8000  # two megabytes that do not repeat by pages


@pytest.fixture
async def area() -> AsyncIterator[tuple[StagingArea, Arena]]:
    async with run_staging() as running:
        yield running


async def stage(staging: StagingArea, data: bytes, *, max_bytes: int = 4 << 20) -> StagedMedia:
    with staging.buffer(expected_bytes=None, max_bytes=max_bytes) as buffer:
        await buffer.append(data)
        return await buffer.finish()


@pytest.mark.parametrize("size", [0, 1, 4096, QUICK_BYTES - 1, QUICK_BYTES, len(BODY)])
@pytest.mark.parametrize("chunk", [1 << 16, 1 << 20])
@pytest.mark.parametrize("is_promised", [True, False])
async def test_what_is_appended_is_what_a_worker_reads(
    area: tuple[StagingArea, Arena], size: int, chunk: int, is_promised: bool
) -> None:
    """Another mapping of the segment sees the bytes, and the digest is theirs."""
    staging, arena = area
    with staging.buffer(expected_bytes=size if is_promised else None, max_bytes=4 << 20) as buffer:
        for start in range(0, size, chunk):
            await buffer.append(BODY[start : min(start + chunk, size)])
        staged = await buffer.finish()
    worker = SegmentMap()
    assert bytes(worker.view(staged.segment, staged.offset, staged.nbytes)) == BODY[:size]
    assert bytes(staged.view()) == BODY[:size]
    assert staged.digest == blake3.blake3(BODY[:size]).digest()
    worker.close()
    staged.release()
    assert arena.statistics().held_bytes == 0


async def test_a_buffer_keeps_only_what_was_written(area: tuple[StagingArea, Arena]) -> None:
    """What was reserved in advance is free again when the medium is complete."""
    staging, arena = area
    with staging.buffer(expected_bytes=2 << 20, max_bytes=4 << 20) as buffer:
        await buffer.append(b"short")
        staged = await buffer.finish()
    assert arena.statistics().held_bytes == 4096
    staged.release()


async def test_a_promise_reserves_no_more_than_a_moderate_size() -> None:
    """A client that promises much and sends little holds little."""
    async with run_staging(64 << 20) as (staging, arena):
        with staging.buffer(expected_bytes=48 << 20, max_bytes=64 << 20) as buffer:
            assert arena.statistics().held_bytes < 10 << 20
            for _ in range(3):
                await buffer.append(bytes(16 << 20))
            assert arena.statistics().held_bytes < 49 << 20
            (await buffer.finish()).release()


async def test_growth_moves_what_is_in_the_way(area: tuple[StagingArea, Arena]) -> None:
    """Two buffers that grow side by side keep their own bytes."""
    staging, _ = area
    buffers = [staging.buffer(expected_bytes=None, max_bytes=4 << 20) for _ in range(2)]
    for start in range(0, 3 * FIRST_CAPACITY_BYTES, 10_000):
        for number, buffer in enumerate(buffers):
            await buffer.append(bytes([number]) * 10_000)
        assert start == buffers[0].nbytes - 10_000
    for number, buffer in enumerate(buffers):
        with await buffer.finish() as staged:
            assert bytes(staged.view()) == bytes([number]) * staged.nbytes


async def test_the_limit_holds_while_appending(area: tuple[StagingArea, Arena]) -> None:
    """One byte too many is refused and not written."""
    staging, arena = area
    with staging.buffer(expected_bytes=None, max_bytes=10) as buffer:
        await buffer.append(b"0123456789")
        with pytest.raises(MediaTooLargeError, match="10"):
            await buffer.append(b"x")
        assert buffer.nbytes == 10
    assert arena.statistics().held_bytes == 0
    with pytest.raises(MediaTooLargeError):
        staging.buffer(expected_bytes=11, max_bytes=10)


async def test_holders_are_counted(area: tuple[StagingArea, Arena]) -> None:
    """The memory is free when the last holder has let go, however often each says so."""
    staging, arena = area
    first = await stage(staging, b"medium")
    second = first.share()
    first.release()
    first.release()
    assert bytes(second.view()) == b"medium"
    third = second.share()
    second.release()
    assert arena.statistics().held_bytes > 0
    third.release()
    assert arena.statistics().held_bytes == 0
    with pytest.raises(ValueError, match="released"):
        third.share()


async def test_parts_share_one_region(area: tuple[StagingArea, Arena]) -> None:
    """A split buffer gives media that lie in it, each hashed and held on its own."""
    staging, arena = area
    with staging.buffer(expected_bytes=None, max_bytes=100) as buffer:
        await buffer.append(b"headONEmidTWO")
        one, two, none = await buffer.split([(4, 3), (10, 3), (13, 0)])
    assert one.segment == two.segment
    assert two.offset - one.offset == 6
    assert [bytes(m.view()) for m in (one, two, none)] == [b"ONE", b"TWO", b""]
    assert one.digest == blake3.blake3(b"ONE").digest()
    shared = two.share()
    for medium in (one, two, none):
        medium.release()
    assert bytes(shared.view()) == b"TWO"
    shared.release()
    assert arena.statistics().held_bytes == 0


async def test_a_split_into_nothing_holds_nothing(area: tuple[StagingArea, Arena]) -> None:
    """A body without files leaves nothing behind."""
    staging, arena = area
    with staging.buffer(expected_bytes=None, max_bytes=100) as buffer:
        await buffer.append(b"only a request")
        assert await buffer.read(5, 1) == b"a"
        assert await buffer.split([]) == []
    assert arena.statistics().held_bytes == 0


async def test_a_used_up_buffer_refuses(area: tuple[StagingArea, Arena]) -> None:
    """After `finish` or `release` there is nothing to write to."""
    staging, _ = area
    buffer = staging.buffer(expected_bytes=None, max_bytes=100)
    buffer.release()
    buffer.release()
    with pytest.raises(ValueError, match="used up"):
        await buffer.append(b"x")


async def test_memory_stays_held_while_a_thread_writes(area: tuple[StagingArea, Arena]) -> None:
    """Cancelling the caller frees nothing that a thread still writes to."""
    staging, arena = area
    started, go = threading.Event(), threading.Event()

    def write(view: memoryview) -> int:
        started.set()
        go.wait()
        view[:4] = b"late"
        return 4

    task = asyncio.create_task(staging.fill(100, write))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert arena.statistics().held_bytes > 0
    go.set()
    await staging.aclose()
    assert arena.statistics().held_bytes == 0


async def test_a_failing_writer_leaves_nothing(area: tuple[StagingArea, Arena]) -> None:
    """Its error comes out and the memory is free."""
    staging, arena = area

    def write(view: memoryview) -> int:
        raise MediaTooLargeError("no")

    with pytest.raises(MediaTooLargeError, match="no"):
        await staging.fill(100, write)
    await staging.run(lambda: None)
    assert arena.statistics().held_bytes == 0


async def test_a_full_area_asks_for_room_before_it_refuses(
    area: tuple[StagingArea, Arena],
) -> None:
    """Whoever keeps media for convenience gives them back first."""
    staging, _ = area
    kept = [await stage(staging, bytes(3 << 20)) for _ in range(2)]

    def reclaim() -> bool:
        if not kept:
            return False
        kept.pop().release()
        return True

    with pytest.raises(StoreFullError, match="staging"):
        await stage(staging, bytes(4 << 20))
    staging.reclaim = reclaim
    (await stage(staging, bytes(4 << 20))).release()
    for medium in kept:
        medium.release()


async def test_what_could_never_fit_is_too_large(area: tuple[StagingArea, Arena]) -> None:
    """A medium larger than the whole area is 413: waiting would not help."""
    staging, _ = area
    with pytest.raises(MediaTooLargeError):
        await staging.fill(9 << 20, lambda view: 0)


async def test_media_do_not_show_their_bytes(area: tuple[StagingArea, Arena]) -> None:
    """A log line tells where a medium is, not what."""
    staging, _ = area
    with await stage(staging, b"secret") as staged:
        assert "secret" not in repr(staged)
        assert "nbytes=6" in repr(staged)


async def test_big_parts_are_read_back(area: tuple[StagingArea, Arena]) -> None:
    """A copy of a large part is made off the loop and is exact."""
    staging, _ = area
    with staging.buffer(expected_bytes=len(BODY), max_bytes=4 << 20) as buffer:
        await buffer.append(BODY)
        assert await buffer.read(1000, QUICK_BYTES + 1) == BODY[1000 : 1001 + QUICK_BYTES]


async def test_a_buffer_that_cannot_double_grows_by_what_it_needs(
    area: tuple[StagingArea, Arena],
) -> None:
    """A medium that fits is not refused because twice its size would not."""
    staging, arena = area
    with staging.buffer(expected_bytes=None, max_bytes=8 << 20) as buffer:
        for _ in range(7):
            await buffer.append(bytes(1 << 20))
        assert buffer.nbytes == 7 << 20
    assert arena.statistics().held_bytes == 0


async def test_a_growth_that_fails_changes_nothing(area: tuple[StagingArea, Arena]) -> None:
    """A buffer without room keeps what it has and can be let go."""
    staging, arena = area
    with staging.buffer(expected_bytes=None, max_bytes=16 << 20) as buffer:
        await buffer.append(b"kept")
        other = await stage(staging, bytes(4 << 20), max_bytes=4 << 20)
        with pytest.raises(StoreFullError):
            await buffer.append(bytes(6 << 20))
        assert await buffer.read(0, buffer.nbytes) == b"kept"
        other.release()
    assert arena.statistics().held_bytes == 0


async def test_a_growth_that_is_cancelled_lets_both_go(area: tuple[StagingArea, Arena]) -> None:
    """Cancelling while the old bytes are copied frees the old memory and the new."""
    staging, arena = area
    buffers = [staging.buffer(expected_bytes=None, max_bytes=4 << 20) for _ in range(2)]
    for buffer in buffers:
        await buffer.append(bytes(FIRST_CAPACITY_BYTES))
    held_bytes = arena.statistics().held_bytes
    tasks = [asyncio.create_task(buffer.append(bytes(10_000))) for buffer in buffers]
    await asyncio.sleep(0)
    assert not all(task.done() for task in tasks)  # one of them has to move
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await staging.aclose()
    assert arena.statistics().held_bytes <= held_bytes + FIRST_CAPACITY_BYTES + 4096
    for buffer in buffers:
        buffer.release()
    assert arena.statistics().held_bytes == 0


async def test_little_is_worked_on_the_loop_in_each_turn(
    area: tuple[StagingArea, Arena],
) -> None:
    """What exceeds a turn's bytes goes to threads; the next turn has its own."""
    staging, _ = area
    threads: list[int] = []

    def write(view: memoryview) -> int:
        threads.append(threading.get_ident())
        view[:1] = b"x"
        return 1

    async def fill(capacity: int, *, is_quick: bool = True) -> None:
        (await staging.fill(capacity, write, is_quick=is_quick)).release()

    own = threading.get_ident()
    await asyncio.gather(*(fill(QUICK_BYTES // 2) for _ in range(4)))
    assert sum(thread == own for thread in threads) == 2
    threads.clear()
    await asyncio.sleep(0)
    await fill(QUICK_BYTES)
    assert threads == [own]
    threads.clear()
    await asyncio.sleep(0)
    await fill(QUICK_BYTES + 1)
    await fill(1, is_quick=False)
    assert own not in threads
