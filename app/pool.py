"""The pool of worker processes: jobs in, results out, and the right error when a worker dies.

`run` returns or raises only when no worker writes to the job's region any more. A worker that dies
is replaced by a warm spare at once. Whose fault it was:

    a job's own time limit, or memory beyond the limit    that job: 422, 413
    the process crashed and one job ran                   that job: 422
    the process crashed and several ran                   each again, alone, before one is blamed
    killed from outside                                   nobody: 503 for all that ran
    killed by us for another job                          bystanders run once more, elsewhere
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, overload

import structlog

from app.errors import DrainingError, OverloadedError
from app.jobs import (
    CopyJob,
    DeadlineExceededError,
    EncodeJob,
    ExecuteJob,
    ExecuteResult,
    InternalError,
    Job,
    JobFailure,
    JobValue,
    PlanFramesJob,
    PlanGivenJob,
    PlanJob,
    RenderJob,
    Replanned,
    WorkerCrashedError,
)
from app.scheduling import Queue, Ticket, make_ticket
from app.sizing import PoolSize, WorkerSettings, pool_size
from app.worker_messages import WorkerStart
from app.worker_process import Lane, Outcome, StartError, WorkerProcess
from processors import errors
from processors.errors import MediaDecodeError, MediaTooLargeError, MmprepError, ModelLoadError
from processors.types import (
    DecodeLimits,
    GivenItem,
    ItemPlan,
    ModelInfo,
    ModelSpec,
    RenderedPrompt,
)
from transport.segments import DEFAULT_DIRECTORY

SMALL_LANE = 0
WATCH_S = 0.25
"""How often workers' memory is looked at."""
STOP_S = 5.0
"""Seconds that running jobs get when the pool closes."""
MAX_BACKOFF_S = 30.0
MAX_START_FAILURES = 3
RESTART_REASONS = ("crashed", "killed", "timeout", "memory", "recycled")
_CRASH_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
)
_LEAVES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, MmprepError)
}
_BY_CODE: dict[str, type[MmprepError]] = {
    kind.code: kind for kind in _LEAVES.values() if kind.code != "internal"
}
_log = structlog.get_logger("mmprep.pool")


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What the pool does."""

    workers: int
    """Warm workers that take jobs."""
    spares: int
    """Warm workers that stand by."""
    queued: int
    running: int
    restarts: dict[str, int]
    """Workers replaced, by reason (`RESTART_REASONS`)."""


class WorkerPool:
    """Runs jobs in worker processes; an async context manager.

    Args:
        settings: Sizes and limits of the workers.
        specs: Models that every worker loads.
        limits: What media may take; `max_decode_s` is a job's time limit.
        engine_factory: `module:name` of what makes an engine.
        directory: Where shared-memory segments live.
        segments: Segments that workers map before their first job.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        specs: Sequence[ModelSpec],
        limits: DecodeLimits,
        engine_factory: str = "processors.engine:Engine",
        *,
        directory: str = DEFAULT_DIRECTORY,
        segments: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._specs = tuple(specs)
        self._limits = limits
        self._factory = engine_factory
        self._directory = directory
        self._segments = tuple(segments)
        self.size: PoolSize = pool_size(settings)
        self.models: tuple[ModelInfo, ...] = ()
        self._workers: list[WorkerProcess] = []
        self._spares: list[WorkerProcess] = []
        self._starting = 0
        self._alive: set[WorkerProcess] = set()
        self._tickets: dict[Lane, Ticket] = {}
        self._small, self._big = Queue(), Queue()
        self._restarts: Counter[str] = Counter(dict.fromkeys(RESTART_REASONS, 0))
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._start_failures = 0

    @property
    def _is_closing(self) -> bool:
        return self._closing.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether a warm worker takes jobs."""
        return bool(self._workers) and not self._is_closing

    def statistics(self) -> PoolStatistics:
        """Return what the pool does."""
        return PoolStatistics(
            workers=len(self._workers),
            spares=len(self._spares),
            queued=len(self._small) + len(self._big),
            running=len(self._tickets),
            restarts=dict(self._restarts),
        )

    def pids(self) -> list[int]:
        """Return the process ids of the workers that take jobs."""
        return [worker.pid for worker in self._workers]

    async def __aenter__(self) -> Self:
        """Start the workers and wait until they are warm; spares warm up behind.

        Raises:
            ModelLoadError: If a model cannot be served, with the reason.
        """
        try:
            started = await asyncio.gather(
                *(self._start(in_background=False) for _ in range(self.size.processes))
            )
            for worker in started:
                self.models = (await worker.ready).models
        except StartError as error:
            await self.aclose()
            raise ModelLoadError(f"{error}; the log may tell why.") from error
        except BaseException:
            await self.aclose()
            raise
        self._workers = [w for w in started if w in self._alive]
        self._spawn(self._watch())
        self._replenish()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let running jobs end, within seconds, then end every process."""
        self._closing.set()
        for ticket in (*self._small.drain(), *self._big.drain()):
            _fail(ticket, DrainingError("The service is shutting down."))
        for worker in self._alive:
            worker.stop_sending()
        waits = [asyncio.ensure_future(t.result) for t in self._tickets.values()]
        if waits:
            await asyncio.wait(waits, timeout=STOP_S)
        for worker in list(self._alive):
            worker.kill("closed")
        current = asyncio.current_task()
        while tasks := {t for t in self._tasks if t is not current and not t.done()}:
            for task in tasks:
                if task.get_name() == "watch":
                    task.cancel()
            await asyncio.wait(tasks)

    @overload
    async def run(
        self, job: PlanJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> ItemPlan: ...
    @overload
    async def run(
        self, job: PlanFramesJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> tuple[ItemPlan, ...]: ...
    @overload
    async def run(
        self, job: PlanGivenJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> tuple[GivenItem, ...]: ...
    @overload
    async def run(
        self, job: CopyJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> ExecuteResult: ...
    @overload
    async def run(
        self, job: ExecuteJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> ExecuteResult | Replanned: ...
    @overload
    async def run(
        self, job: RenderJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> RenderedPrompt: ...
    @overload
    async def run(
        self, job: EncodeJob, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> list[int]: ...

    async def run(
        self, job: Job, *, deadline: float | None, priority: int = 0, cost: int = 0
    ) -> JobValue:
        """Run a job and return its value.

        Args:
            job: What to do.
            deadline: On the event loop's clock; None for no other limit than the job's own.
            priority: Lower first.
            cost: Pixels to decode, for the order of jobs.

        Raises:
            MmprepError: What the engine raised, or why the job could not be done.
            OverloadedError: If too many jobs wait.
            DeadlineExceededError: If the deadline passed first.

        Cancellation: A waiting job is dropped. A running one is waited for where it writes to a
            region, so that nothing writes there afterwards; otherwise it is left to end alone.
        """
        if self._is_closing:
            raise DrainingError("The service is shutting down.")
        queue = self._big if isinstance(job, ExecuteJob | CopyJob) else self._small
        if len(self._big) + len(self._small) >= self._settings.queue_jobs:
            raise OverloadedError("Too many items wait for a worker; try again later.")
        ticket = make_ticket(job, priority, cost, asyncio.get_running_loop().time())
        queue.put(ticket)
        self._dispatch()
        try:
            if deadline is None:
                return await asyncio.shield(ticket.result)
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(ticket.result)
        except TimeoutError as error:
            await self._give_up(ticket)
            raise DeadlineExceededError("The deadline passed before the work was done.") from error
        except asyncio.CancelledError:
            await self._give_up(ticket)
            raise

    async def _give_up(self, ticket: Ticket) -> None:
        is_running = ticket in self._tickets.values()
        if is_running and not ticket.is_small:
            await asyncio.wait((ticket.result,))
        if ticket.result.done():
            ticket.result.exception()
        else:
            ticket.result.cancel()

    def _dispatch(self) -> None:
        for queue, small in ((self._small, True), (self._big, False)):
            while queue and (place := self._free_place(small)) is not None:
                worker, lane = place
                ticket = queue.take(lambda t, w=worker: self._may_run(t, w))  # type: ignore[misc]
                if ticket is None:
                    break
                self._send(worker, lane, ticket)

    def _free_place(self, small: bool) -> tuple[WorkerProcess, Lane] | None:
        """Return a free lane of the least busy worker."""
        lanes = slice(0, 1) if small else slice(1, None)
        for worker in sorted(self._workers, key=_busyness):
            if worker.is_retiring or self._is_isolated(worker):
                continue
            for lane in worker.lanes[lanes]:
                if lane.is_free:
                    return worker, lane
        return None

    def _is_isolated(self, worker: WorkerProcess) -> bool:
        # A suspect is the only job of its worker.
        return worker.num_running == 1 and any(
            (t := self._tickets.get(lane)) is not None and t.alone for lane in worker.lanes
        )

    def _may_run(self, ticket: Ticket, worker: WorkerProcess) -> bool:
        # A suspect at the head of the queue waits for an empty worker; it is waited for.
        return not ticket.alone or worker.num_running == 0

    def _send(self, worker: WorkerProcess, lane: Lane, ticket: Ticket) -> None:
        self._tickets[lane] = ticket
        limit = self._limits.max_decode_s + self._settings.overrun_s
        ticket.timer = asyncio.get_running_loop().call_later(limit, self._overrun, worker, ticket)

        def take(outcome: Outcome) -> None:
            self._take_off(lane)
            if isinstance(outcome, JobFailure) and outcome.out_of_memory:
                # Its heap may stay as large as it got: the next job would be blamed for that.
                self._retire(worker)
            self._settle(ticket, outcome, was_alone=worker.num_running == 0)
            self._recycle_if_due(worker)
            self._dispatch()

        worker.send(lane, self._with_threads(ticket.job), take)

    def _with_threads(self, job: Job) -> Job:
        """Let a job use the cores that no other job asks for."""
        if not isinstance(job, ExecuteJob):
            return job
        active = len(self._big) + sum(not ticket.is_small for ticket in self._tickets.values())
        threads = self.size.processes * self.size.threads // active
        return replace(job, num_threads=threads) if threads > 1 else job

    def _take_off(self, lane: Lane) -> Ticket:
        ticket = self._tickets.pop(lane)
        if ticket.timer is not None:
            ticket.timer.cancel()
        return ticket

    def _settle(self, ticket: Ticket, outcome: Outcome, *, was_alone: bool) -> None:
        if not isinstance(outcome, JobFailure):
            if not ticket.result.done():
                ticket.result.set_result(outcome)
            return
        if outcome.out_of_memory:
            if was_alone or ticket.alone:
                _fail(ticket, MediaTooLargeError(self._memory_words()))
            else:
                self._again(ticket, alone=True)
            return
        if outcome.traceback:
            _log.error("job_failed", model=ticket.job.model, traceback=outcome.traceback)
        kind = _BY_CODE.get(outcome.code, InternalError)
        _fail(ticket, kind(outcome.message or "unforeseen", outcome.param))

    def _again(self, ticket: Ticket, *, alone: bool) -> None:
        if ticket.result.done():
            return
        ticket.alone = ticket.alone or alone
        ticket.retried = True
        (self._small if ticket.is_small else self._big).put(ticket)

    def _overrun(self, worker: WorkerProcess, ticket: Ticket) -> None:
        if ticket in self._tickets.values():
            _fail(
                ticket,
                MediaDecodeError(
                    f"Decoding took longer than {self._limits.max_decode_s:g} s, the limit."
                ),
            )
            worker.kill("timeout")

    async def _start(self, *, in_background: bool) -> WorkerProcess:
        message = WorkerStart(
            specs=self._specs,
            limits=self._limits,
            engine_factory=self._factory,
            torch_threads=self.size.torch_threads,
            memory_bytes=self.size.memory_bytes,
            directory=self._directory,
            segments=self._segments,
            offline=self._settings.offline,
            in_background=in_background,
        )
        threads = str(self.size.torch_threads)
        caps = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads
        )
        caps |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment = caps | self._settings.environment
        worker = await WorkerProcess.start(message, 1 + self.size.threads, environment)
        self._alive.add(worker)
        self._spawn(self._attend(worker))
        if self._is_closing:
            worker.kill("closed")
        try:
            async with asyncio.timeout(self._settings.start_s):
                await asyncio.shield(worker.ready)
        except TimeoutError as error:
            worker.kill("timeout")
            raise StartError(f"a worker was not warm in {self._settings.start_s:g} s") from error
        return worker

    async def _attend(self, worker: WorkerProcess) -> None:
        """Wait for a worker's end and clean up behind it."""
        status = await worker.wait()
        self._alive.discard(worker)
        was_active = worker in self._workers
        for group in (self._workers, self._spares):
            with contextlib.suppress(ValueError):
                group.remove(worker)
        lost = [self._take_off(lane) for lane in worker.lanes if lane in self._tickets]
        self._judge(worker, status, [t for t in lost if not t.result.done()])
        if self._is_closing:
            return
        if was_active:
            reason = worker.kill_reason or ("killed" if _was_killed(status) else "crashed")
            reason = "recycled" if worker.is_retiring and worker.kill_reason is None else reason
            self._restarts[reason] += 1
            _log.warning("worker_lost", pid=worker.pid, reason=reason, status=status)
        self._replenish()
        self._dispatch()

    def _judge(self, worker: WorkerProcess, status: int, lost: list[Ticket]) -> None:
        """Decide what becomes of the jobs that ran in a worker that ended."""
        if worker.kill_reason == "closed":
            for ticket in lost:
                _fail(ticket, DrainingError("The service is shutting down."))
        elif worker.kill_reason in ("timeout", "memory") and lost:
            self._judge_killed(worker.kill_reason, lost)
        elif _was_killed(status):
            words = "The worker process was killed; send the request again."
            for ticket in lost:
                _fail(ticket, WorkerCrashedError(words))
        elif len(lost) == 1:
            _fail(lost[0], MediaDecodeError("The medium crashed its decoder."))
        else:
            for ticket in lost:
                self._again(ticket, alone=True)

    def _judge_killed(self, reason: str, lost: list[Ticket]) -> None:
        if reason == "memory" and (len(lost) == 1 or any(t.alone for t in lost)):
            for ticket in lost:
                _fail(ticket, MediaTooLargeError(self._memory_words()))
            return
        for ticket in lost:
            if ticket.retried and reason == "timeout":
                _fail(ticket, WorkerCrashedError("The worker process died; send it again."))
            else:
                self._again(ticket, alone=reason == "memory")

    def _memory_words(self) -> str:
        return f"Decoding needs more than {self.size.memory_bytes} bytes, which is the limit."

    def _replenish(self) -> None:
        """Fill the ranks from the spares, and start what is missing behind."""
        if self._is_closing:
            return
        while len(self._workers) < self.size.processes and self._spares:
            self._workers.append(self._spares.pop(0))
        wanted = self.size.processes + self._settings.spares
        have = len(self._workers) + len(self._spares) + self._starting
        for _ in range(wanted - have):
            self._starting += 1
            self._spawn(self._start_spare())

    async def _start_spare(self) -> None:
        backoff = min(MAX_BACKOFF_S, 0.5 * 2**self._start_failures) if self._start_failures else 0.0
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await self._closing.wait()
            if self._is_closing:
                return
            # Gives way to the work unless the work waits for it.
            worker = await self._start(in_background=bool(self._workers))
            self._start_failures = 0
            if worker in self._alive:
                self._spares.append(worker)
        except (StartError, ModelLoadError) as error:
            self._start_failures += 1
            _log.error("worker_start_failed", reason=str(error), failures=self._start_failures)
        finally:
            self._starting -= 1
        self._replenish()
        self._dispatch()

    async def _watch(self) -> None:
        """Kill workers that grow beyond their memory."""
        current = asyncio.current_task()
        if current is not None:
            current.set_name("watch")
        while True:
            await asyncio.sleep(WATCH_S)
            for worker in list(self._workers):
                if worker.is_retiring:
                    continue  # what is left of its jobs has the hard limit still
                grown = worker.private_bytes() - worker.baseline_bytes
                if grown > self.size.memory_bytes:
                    worker.kill("memory")

    def _recycle_if_due(self, worker: WorkerProcess) -> None:
        """Retire an idle worker that has worked or grown enough, where a spare can take over."""
        if worker.num_running or not self._spares or worker not in self._workers:
            return
        is_old = (
            bool(self._settings.recycle_jobs) and worker.jobs_done >= self._settings.recycle_jobs
        )
        is_fat = (
            worker.jobs_done % 16 == 0
            and worker.private_bytes() - worker.baseline_bytes > self.size.recycle_bytes
        )
        if is_old or is_fat:
            self._retire(worker)

    @staticmethod
    def _retire(worker: WorkerProcess) -> None:
        """Give a worker no more jobs; it ends when those it has are done."""
        worker.is_retiring = True
        worker.stop_sending()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _busyness(worker: WorkerProcess) -> int:
    return worker.num_running


def _was_killed(status: int) -> bool:
    return status < 0 and -status not in _CRASH_SIGNALS


def _fail(ticket: Ticket, error: Exception) -> None:
    if not ticket.result.done():
        ticket.result.set_exception(error)
        ticket.result.exception()  # whoever waits hears of it; nobody has to
