"""The child's side of the pool: lanes that take jobs one by one and run them on warm engines.

A lane is a thread with a pipe in and a pipe out. It waits for a job, runs it, sends what came of
it, and waits again; when the pipe in ends, the process does. Started by `app.worker_process` as
`python -m app.worker PARENT_PID IN OUT [IN OUT ...]`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from app.channel import BlockingChannel
from app.given import read_tensors, take
from app.isolation import (
    bound_private_memory,
    die_with_parent,
    give_up_network,
    give_up_privileges,
)
from app.jobs import (
    CopyJob,
    EncodeJob,
    ExecuteJob,
    ExecuteResult,
    Extent,
    Job,
    JobFailure,
    JobItem,
    JobValue,
    OutputEntry,
    PlanFramesJob,
    PlanGivenJob,
    PlanJob,
    RenderJob,
    Replanned,
)
from app.worker_messages import StartFailure, WorkerReady, WorkerStart
from processors.errors import FramesMissing, MmprepError, ModelLoadError
from processors.types import (
    ChatInput,
    DecodeLimits,
    GivenEntry,
    GivenItem,
    ItemInput,
    ItemPlan,
    ModelInfo,
    ModelSpec,
    ProcessReport,
    RenderedPrompt,
)
from transport.arena import SegmentMap

if TYPE_CHECKING:
    import torch

NICENESS = 5
"""Of workers: the event loop, which is short of nothing but promptness, goes first."""
BACKGROUND_NICENESS = 10
SWITCH_INTERVAL_S = 0.001
"""How long a lane may hold the interpreter while another waits for it."""
MAX_TRACEBACK_CHARS = 20_000


class Engine(Protocol):
    """What a worker asks of an engine; `processors.engine.Engine` is the real one."""

    info: ModelInfo

    def plan(self, item: ItemInput) -> ItemPlan:
        """Plan an item from its header."""

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode and process an item into its tensors."""

    def plan_frames(self, item: ItemInput) -> tuple[ItemPlan, ...]:
        """Plan a video that is shown as images."""

    def plan_given(self, entry: GivenEntry) -> tuple[GivenItem, ...]:
        """Plan the items of a preprocessed entry."""

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """Render a chat."""

    def encode(self, prompt: RenderedPrompt) -> list[int]:
        """Encode a prompt."""

    def warm_up(self) -> None:
        """Run everything once."""


class EngineFactory(Protocol):
    """Makes an engine, or raises `ModelLoadError` with the reason."""

    def __call__(self, spec: ModelSpec, limits: DecodeLimits) -> Engine:
        """Load one model."""


class JobRunner:
    """Runs jobs on engines; used by all lanes at once.

    Args:
        engines: Warm engines by served name.
        segments: Shared memory, mapped for writing.
    """

    def __init__(self, engines: Mapping[str, Engine], segments: SegmentMap) -> None:
        self._engines = engines
        self._segments = segments

    def run(self, job: Job) -> JobValue | JobFailure:
        """Return what came of a job, whatever that is."""
        try:
            return self._run(job)
        except FramesMissing as missing:
            return Replanned(missing.plan)
        except MmprepError as error:
            words = traceback.format_exc() if error.code == "internal" else ""
            return JobFailure(error.code, error.message, error.param, traceback=_bounded(words))
        # The worker's edge. Even a panic of compiled code (PyO3's is no Exception) fails its job
        # only; a lane that ended silently would hold its job until the time limit.
        except BaseException as error:  # noqa: BLE001
            words = traceback.format_exc()
            return JobFailure(
                "internal", "", out_of_memory=_is_out_of_memory(error), traceback=_bounded(words)
            )

    def _run(self, job: Job) -> JobValue:
        engine = self._engines[job.model]
        match job:
            case PlanJob():
                return engine.plan(self._item(job.item))
            case PlanFramesJob():
                return engine.plan_frames(self._item(job.item))
            case PlanGivenJob():
                tensors = read_tensors(self._view(job.document))
                entry = GivenEntry(job.modality, job.format, tensors, job.run_lengths)
                return engine.plan_given(entry)
            case ExecuteJob():
                return self._execute(engine, job)
            case CopyJob():
                return self._copy(job)
            case RenderJob():
                return engine.render(job.chat)
            case EncodeJob():
                return engine.encode(job.prompt)

    def _execute(self, engine: Engine, job: ExecuteJob) -> ExecuteResult:
        region = self._view(job.region)
        region[: len(job.header)] = job.header
        outputs = tensor_views(job.outputs, region)
        item = self._item(job.item, job.num_threads)
        return ExecuteResult(engine.process(item, job.plan, outputs))

    def _copy(self, job: CopyJob) -> ExecuteResult:
        start = time.perf_counter()
        region = self._view(job.region)
        region[: len(job.header)] = job.header
        outputs = tensor_views(job.outputs, region)
        tensors = read_tensors(self._view(job.document))
        for part in job.slices:
            outputs[part.name].copy_(take(tensors[part.name], part))
        return ExecuteResult(
            ProcessReport(0.0, (time.perf_counter() - start) * 1e3, kernel="given")
        )

    def _item(self, item: JobItem, num_threads: int = 1) -> ItemInput:
        return ItemInput(
            modality=item.modality,
            data=tuple(self._view(extent).toreadonly() for extent in item.media),
            options=item.options,
            kwargs=item.kwargs,
            index=item.index,
            settings=item.settings,
            num_threads=num_threads,
        )

    def _view(self, extent: Extent) -> memoryview:
        return self._segments.view(extent.segment, extent.offset, extent.nbytes)


def tensor_views(outputs: Sequence[OutputEntry], region: memoryview) -> dict[str, torch.Tensor]:
    """Return a job's output tensors as views of its region, by name."""
    if not outputs:
        return {}
    # Imported with the engine long ago; an engine without tensors does without.
    import torch

    views = {}
    for name, dtype, shape, offset in outputs:
        kind = getattr(torch, dtype)
        count = math.prod(shape)
        views[name] = (
            torch.frombuffer(region, dtype=kind, count=count, offset=offset).view(shape)
            if count
            else torch.empty(shape, dtype=kind)
        )
    return views


def _is_out_of_memory(error: BaseException) -> bool:
    # torch's CPU allocator says so by a RuntimeError without a class of its own.
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _bounded(text: str) -> str:
    return text[-MAX_TRACEBACK_CHARS:]


def serve_lane(channel: BlockingChannel, runner: JobRunner) -> None:
    """Run jobs until the API process closes the pipe or is gone."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job: Job = channel.receive()  # type: ignore[assignment]  # only jobs are sent
            channel.send(runner.run(job))


def load_runner(start: WorkerStart) -> tuple[JobRunner, tuple[ModelInfo, ...]]:
    """Load and warm all models.

    Raises:
        ModelLoadError: If a model directory cannot be served.
    """
    module, _, name = start.engine_factory.partition(":")
    make_engine: EngineFactory = getattr(import_module(module), name)
    _cap_torch_threads(start.torch_threads)
    engines = {spec.name: make_engine(spec, start.limits) for spec in start.specs}
    for engine in engines.values():
        engine.warm_up()
    segments = SegmentMap(start.directory, writable=True, populate=True)
    for segment in start.segments:
        segments.view(segment, 0, 0)
    return JobRunner(engines, segments), tuple(engine.info for engine in engines.values())


def _cap_torch_threads(num_threads: int) -> None:
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(num_threads)
        torch.set_num_interop_threads(1)


def start_worker(
    channels: Sequence[BlockingChannel], start: WorkerStart, *, is_offline: bool
) -> None:
    """Become ready, say so, and serve all lanes until they end."""
    loaded: list[JobRunner] = []
    is_loaded = threading.Event()

    def serve(channel: BlockingChannel) -> None:
        is_loaded.wait()
        if loaded:
            serve_lane(channel, loaded[0])

    # The kernel keeps a niceness per thread, and new threads inherit it: the lanes start first, so
    # that loading can give way to others and the lanes need not.
    lanes = [threading.Thread(target=serve, args=(c,), name="lane") for c in channels]
    for lane in lanes:
        lane.start()
    try:
        if start.in_background:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
        runner, models = load_runner(start)
        # Last: what is mapped by now is not what a hostile medium makes the decoders allocate.
        bound_private_memory(2 * start.memory_bytes)
        channels[0].send(WorkerReady(models, is_offline))
        loaded.append(runner)
    finally:
        is_loaded.set()
    for lane in lanes:
        lane.join()


def main(arguments: Sequence[str]) -> int:
    """Run a worker: give up what it does not need, load, serve, end with the parent."""
    parent_pid, *fds = (int(argument) for argument in arguments)
    die_with_parent(parent_pid)
    # A terminal's Ctrl-C reaches the whole group; the API process decides when workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_up_privileges()
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    channels = [BlockingChannel(*pair) for pair in zip(fds[::2], fds[1::2], strict=True)]
    start: WorkerStart = channels[0].receive()  # type: ignore[assignment]  # always sent first
    # While there is one thread: the filter holds for it and what it starts.
    is_offline = start.offline and give_up_network()
    try:
        start_worker(channels, start, is_offline=is_offline)
    except ModelLoadError as error:
        channels[0].send(StartFailure(error.message, ""))
        return 1
    # The worker's edge: whatever stops the start is told before the process ends.
    except BaseException:  # noqa: BLE001
        channels[0].send(StartFailure("", _bounded(traceback.format_exc())))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
