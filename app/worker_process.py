"""One worker process as the event loop sees it: started, spoken to, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from app.channel import ChannelError, FrameParser, PipeReader, PipeWriter, encode_frame
from app.jobs import Job, JobFailure, JobValue
from app.worker_messages import StartFailure, WorkerReady, WorkerStart
from processors.errors import ModelLoadError

LAST_WORDS_BYTES = 1 << 20
"""What is still read of a dead worker's pipes: a result it sent before it died counts."""
Outcome = JobValue | JobFailure
_log = structlog.get_logger("mmprep.pool")


@dataclass(slots=True, eq=False)
class Lane:
    """A pair of pipes to one thread of a worker; one job at a time."""

    number: int
    writer: PipeWriter
    reader: PipeReader | None = None
    parser: FrameParser = field(default_factory=FrameParser)
    on_outcome: Callable[[Outcome], None] | None = None
    """Takes the outcome of the job that runs; None while the lane is free."""

    @property
    def is_free(self) -> bool:
        """Whether no job runs here."""
        return self.on_outcome is None


class WorkerProcess:
    """A worker; make it with `start`.

    Attributes:
        lanes: The first is for small jobs (plans, templates), the others execute items.
    """

    def __init__(self, process: asyncio.subprocess.Process, lanes: list[Lane]) -> None:
        self._process = process
        self.lanes = lanes
        self.ready: asyncio.Future[WorkerReady] = asyncio.get_running_loop().create_future()
        self.baseline_bytes = 0
        """Private bytes once warm."""
        self.jobs_done = 0
        self.kill_reason: str | None = None
        """Why we killed it, if we did."""
        self.is_retiring = False
        """True once no more jobs are given to it."""
        self.num_running = 0
        """Jobs in the process."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @classmethod
    async def start(
        cls, message: WorkerStart, num_lanes: int, environment: Mapping[str, str]
    ) -> WorkerProcess:
        """Start a process and send it what it needs to know; `ready` tells when it is warm."""
        loop = asyncio.get_running_loop()
        child_fds: list[int] = []
        lanes: list[Lane] = []
        read_fds = []
        for number in range(num_lanes):
            to_child = os.pipe()
            from_child = os.pipe()
            child_fds += [to_child[0], from_child[1]]
            read_fds.append(from_child[0])
            lanes.append(Lane(number, PipeWriter(to_child[1], loop)))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "app.worker",
                str(os.getpid()),
                *(str(fd) for fd in child_fds),
                stdin=subprocess.DEVNULL,
                # What a library prints goes to the log's stream; inherited, so nothing can fill up.
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                pass_fds=child_fds,
                env={**os.environ, **environment},
            )
        finally:
            for fd in child_fds:
                os.close(fd)
        worker = cls(process, lanes)
        for lane, fd in zip(lanes, read_fds, strict=True):
            lane.reader = PipeReader(fd, loop, lambda data, at=lane: worker._receive(at, data))  # type: ignore[misc]
        lanes[0].writer.write(encode_frame(message))
        return worker

    def send(self, lane: Lane, job: Job, on_outcome: Callable[[Outcome], None]) -> None:
        """Give a free lane a job; the callback gets its outcome unless the process dies first."""
        lane.on_outcome = on_outcome
        self.num_running += 1
        lane.writer.write(encode_frame(job))

    def kill(self, reason: str) -> None:
        """End the process at once, for a reason that `kill_reason` tells afterwards."""
        if self.kill_reason is None and self._process.returncode is None:
            self.kill_reason = reason
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end; results sent before it are delivered first. Returns the exit status."""
        status = await self._process.wait()
        for lane in self.lanes:
            if lane.reader is not None:
                lane.reader.drain(LAST_WORDS_BYTES)
        self.close()
        if not self.ready.done():
            self.ready.set_exception(StartError(f"a worker ended while it started ({status})"))
            self.ready.exception()  # whoever waits hears of it; nobody has to
        return status

    def close(self) -> None:
        """Close the pipes; an idle worker ends by itself then."""
        for lane in self.lanes:
            lane.writer.close()
            if lane.reader is not None:
                lane.reader.close()

    def stop_sending(self) -> None:
        """Close the pipes to the process: it ends when its jobs are done."""
        for lane in self.lanes:
            lane.writer.close()

    def private_bytes(self) -> int:
        """Return the resident bytes that are the process's alone, 0 once it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as statm:
                _, resident, shared, *_ = statm.read().split()
        except (OSError, ValueError):
            return 0
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _receive(self, lane: Lane, data: bytes) -> None:
        try:
            for message in lane.parser.feed(data):
                self._deliver(lane, message)
        except ChannelError as error:
            _log.error("worker_broke_protocol", pid=self.pid, reason=str(error))
            self.kill("crashed")

    def _deliver(self, lane: Lane, message: object) -> None:
        if isinstance(message, WorkerReady):
            self.baseline_bytes = self.private_bytes()
            self.ready.set_result(message)
        elif isinstance(message, StartFailure):
            if message.traceback:
                _log.error("worker_start_failed", pid=self.pid, traceback=message.traceback)
            words = message.message or "a worker could not start; the log has the traceback"
            self.ready.set_exception(ModelLoadError(words))
            self.ready.exception()
        elif lane.on_outcome is not None:
            take, lane.on_outcome = lane.on_outcome, None
            self.num_running -= 1
            self.jobs_done += 1
            take(message)  # type: ignore[arg-type]  # lanes answer with outcomes only


class StartError(Exception):
    """Raised when a worker ends before it is warm, without a word why."""
