"""The pool with real processes: every way a job or a worker can end."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.errors import DrainingError, OverloadedError
from app.jobs import (
    DeadlineExceededError,
    ExecuteJob,
    ExecuteResult,
    Extent,
    InternalError,
    JobItem,
    OutputEntry,
    PlanJob,
    RenderJob,
    Replanned,
    WorkerCrashedError,
)
from app.pool import WorkerPool
from app.sizing import WorkerSettings
from processors.errors import MediaDecodeError, MediaTooLargeError, ModelLoadError
from processors.types import ChatInput, DecodeLimits, Modality, ModelSpec
from tests.helpers.fake_engine import FACTORY
from transport.arena import Arena, Region

LIMITS = DecodeLimits(max_decode_s=30)


@asynccontextmanager
async def pool_of(
    processes: int = 1,
    threads: int = 1,
    spares: int = 0,
    limits: DecodeLimits = LIMITS,
    path: str = "fake",
    **settings: Any,
) -> AsyncIterator[WorkerPool]:
    chosen = WorkerSettings(processes=processes, threads=threads, spares=spares, **settings)
    async with WorkerPool(chosen, [ModelSpec("m", path)], limits, FACTORY) as pool:
        yield pool


@pytest.fixture
def arena() -> Any:
    with Arena("testpool", [64 << 20], purpose="store") as opened:
        yield opened


def item(index: int = 0, **settings: Any) -> JobItem:
    return JobItem(Modality.IMAGE, (), index=index, settings=settings)


async def execute(
    pool: WorkerPool, arena: Arena, index: int = 1, deadline: float | None = None, **settings: Any
) -> tuple[Any, Region, bytes]:
    plan = await pool.run(PlanJob("m", item()), deadline=None)
    [region] = arena.reserve([(None, 64 + 8)])
    try:
        job = ExecuteJob(
            "m",
            item(index, **settings),
            plan,
            (OutputEntry("x", "uint8", (8,), 64),),
            Extent(region.segment, region.offset, region.nbytes),
            b"h" * 64,
        )
        result = await pool.run(job, deadline=deadline)
        return result, region, bytes(arena.view(region))
    finally:
        arena.unpin(region)


class Gate:
    """A file that waiting jobs wait for the end of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __str__(self) -> str:
        return str(self.path)

    def has_begun(self, num_jobs: int = 1) -> bool:
        """Whether so many jobs wait, or have waited."""
        return len(list(self.path.parent.glob("*.began"))) >= num_jobs

    def open(self) -> None:
        """Let the jobs go on."""
        self.path.unlink()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another process brings about."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nothing in this process could set an event
            await asyncio.sleep(0.01)


async def began(gate: Gate, num_jobs: int = 1) -> None:
    """Wait until so many jobs have said that they run."""
    await until(lambda: gate.has_begun(num_jobs))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """What keeps waiting jobs waiting."""
    return Gate(tmp_path / "gate")


async def test_jobs_of_every_kind(arena: Arena) -> None:
    """Plan, execute into shared memory, render."""
    async with pool_of() as pool:
        result, _, document = await execute(pool, arena, index=7)
        assert isinstance(result, ExecuteResult)
        assert document == b"h" * 64 + b"\x07" * 8
        chat = ChatInput(({"role": "user"},))
        assert "user" in (await pool.run(RenderJob("m", chat), deadline=None)).text
        replanned, _, _ = await execute(pool, arena, do="replan")
        assert isinstance(replanned, Replanned)


@pytest.mark.parametrize(
    ("do", "error"),
    [
        ("fail", MediaDecodeError),
        ("bug", InternalError),
        ("crash", MediaDecodeError),
        ("exit", MediaDecodeError),
        ("eat", MediaTooLargeError),
    ],
)
async def test_a_jobs_own_end_is_its_own_fault(
    arena: Arena, do: str, error: type[Exception]
) -> None:
    """The contract's code for each cause, and the pool works on."""
    async with pool_of(spares=1, memory_bytes=256 << 20) as pool:
        with pytest.raises(error) as caught:
            await execute(pool, arena, do=do)
        if do == "fail":
            assert (caught.value.message, caught.value.param) == ("cut", "place")  # type: ignore[attr-defined]
        _, _, document = await execute(pool, arena, index=3)
        assert document.endswith(b"\x03" * 8)


async def test_what_a_job_leaves_behind_is_no_fault_of_the_next(arena: Arena) -> None:
    """A worker that has run out of memory takes no more jobs, however large it stays."""
    async with pool_of(spares=1, memory_bytes=256 << 20) as pool:
        for index in range(3):
            with pytest.raises(MediaTooLargeError):
                await execute(pool, arena, do="keep")
            # Long enough for the pool to look at its workers' memory.
            _, _, document = await execute(pool, arena, index=index, do="nap")
            assert document.endswith(bytes([index]) * 8)


async def test_a_job_beyond_its_time_is_killed(arena: Arena) -> None:
    """A decoder that hangs costs its own item only."""
    limits = DecodeLimits(max_decode_s=0.3)
    async with pool_of(spares=1, limits=limits, overrun_s=0.1) as pool:
        with pytest.raises(MediaDecodeError, match="longer than"):
            await execute(pool, arena, do="hang")
        await execute(pool, arena)
        assert pool.statistics().restarts["timeout"] == 1


async def test_an_outside_kill_is_nobodys_fault(arena: Arena, gate: Gate) -> None:
    """kill -9: the job that ran is retryable, and a spare takes over."""
    async with pool_of(spares=1) as pool:
        [pid] = pool.pids()
        task = asyncio.create_task(execute(pool, arena, do="wait", file=str(gate)))
        await began(gate)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashedError):
            await task
        await execute(pool, arena)
        assert pool.statistics().restarts["killed"] == 1


async def test_a_bystander_of_a_crash_is_not_blamed(arena: Arena, gate: Gate) -> None:
    """Both suspects run again alone: the innocent one succeeds, the other is told."""
    async with pool_of(threads=2, spares=2) as pool:
        innocent = asyncio.create_task(execute(pool, arena, index=5, do="wait", file=str(gate)))
        await began(gate)
        guilty = asyncio.create_task(execute(pool, arena, do="crash"))
        await until(lambda: pool.statistics().restarts["crashed"] == 1)
        gate.open()
        with pytest.raises(MediaDecodeError):
            await guilty
        _, _, document = await innocent
        assert document.endswith(b"\x05" * 8)


async def test_the_deadline_ends_the_wait(arena: Arena, gate: Gate) -> None:
    """A request's deadline is its own error; a waiting job is dropped."""
    async with pool_of() as pool:
        first = asyncio.create_task(execute(pool, arena, do="wait", file=str(gate)))
        await began(gate)
        now = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceededError):
            await execute(pool, arena, deadline=now + 0.05)
        assert pool.statistics().queued == 0
        gate.open()
        await first


async def test_cancelling_a_running_job_waits_until_it_writes_no_more(
    arena: Arena, gate: Gate
) -> None:
    """The region may be freed when the cancelled call has ended."""
    async with pool_of() as pool:
        task = asyncio.create_task(execute(pool, arena, do="wait", file=str(gate)))
        await began(gate)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=0.1)
        assert not done
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.statistics().running == 0


async def test_plans_do_not_wait_for_pixels(arena: Arena, gate: Gate) -> None:
    """A worker busy with an item still plans."""
    async with pool_of() as pool:
        task = asyncio.create_task(execute(pool, arena, do="wait", file=str(gate)))
        await began(gate)
        await pool.run(PlanJob("m", item()), deadline=None)
        assert not task.done()
        gate.open()
        await task


async def test_a_job_gets_the_cores_that_no_other_job_asks_for(arena: Arena, gate: Gate) -> None:
    """All lanes' for one that is alone; fewer, but one, where others run or wait."""

    async def threads_told() -> int:
        return (await execute(pool, arena, do="tell_threads"))[2][-1]

    async with pool_of(processes=2, threads=2) as pool:
        assert await threads_told() == 4
        waiting = []
        for active, threads in [(1, 2), (2, 1), (3, 1)]:
            waiting.append(asyncio.create_task(execute(pool, arena, do="wait", file=str(gate))))
            await began(gate, active)
            assert await threads_told() == threads
        gate.open()
        await asyncio.gather(*waiting)


async def test_a_full_queue_is_overloaded(arena: Arena, gate: Gate) -> None:
    """The queue is bounded."""
    async with pool_of(queue_jobs=1) as pool:
        running = asyncio.create_task(execute(pool, arena, do="wait", file=str(gate)))
        await began(gate)
        waiting = asyncio.create_task(execute(pool, arena))
        await until(lambda: pool.statistics().queued == 1)
        with pytest.raises(OverloadedError):
            await pool.run(PlanJob("m", item()), deadline=None)
        gate.open()
        await asyncio.gather(running, waiting)


async def test_a_flood_of_output_blocks_nothing(arena: Arena) -> None:
    """What libraries print cannot fill a pipe that nobody reads."""
    async with pool_of() as pool:
        await execute(pool, arena, do="flood")


async def test_an_old_worker_is_replaced(arena: Arena) -> None:
    """After its jobs a worker retires, and a spare takes over without a failure."""
    async with pool_of(spares=1, recycle_jobs=4) as pool:
        [first] = pool.pids()
        async with asyncio.timeout(60):
            while pool.statistics().restarts["recycled"] == 0:
                await execute(pool, arena)
        assert first not in pool.pids()


async def test_a_broken_model_stops_the_start_with_its_reason() -> None:
    """The reason is the engine's; a silent death is told too."""
    with pytest.raises(ModelLoadError, match="directory is broken"):
        async with pool_of(path="broken"):
            pass
    with pytest.raises(ModelLoadError, match="ended while it started"):
        async with pool_of(path="dies"):
            pass


async def test_nothing_is_left_behind(arena: Arena, gate: Gate) -> None:
    """After the close: no process, no descriptor, and new jobs are refused."""
    before = psutil.Process().num_fds()
    async with pool_of(processes=2, spares=1) as pool:
        tasks = [asyncio.create_task(execute(pool, arena, index=n % 200)) for n in range(300)]
        await asyncio.gather(*tasks)
        pids = pool.pids()
    with pytest.raises(DrainingError):
        await pool.run(PlanJob("m", item()), deadline=None)
    assert not [p for p in pids if psutil.pid_exists(p)]
    assert psutil.Process().num_fds() <= before


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    """A killed service leaves no worker behind."""
    import subprocess
    import sys

    script = (
        "import asyncio\n"
        "from tests.fault.test_pool import pool_of\n"
        "async def main():\n"
        "    async with pool_of(processes=2) as pool:\n"
        "        print(*pool.pids(), flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=10)[1] == []
