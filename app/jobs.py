"""What the API process asks of a worker, what comes back, and why a job fails.

Jobs are small frozen messages. Large bytes never travel in them: encoded media and features lie in
shared memory, and a job carries `Extent`s that say where.

    WorkerCrashedError    worker_crashed (503, retryable): killed from outside, or a bystander
    DeadlineExceededError deadline_exceeded (504): the request's own deadline
    InternalError         internal (500): anything unforeseen; its traceback is in the log

A full queue is `app.errors.OverloadedError`, a closed pool `app.errors.DrainingError`.
A medium that crashes its decoder or overruns the job's time is `MediaDecodeError`, one that needs
more than the job's memory `MediaTooLargeError`, both of `processors.errors`; what the engine itself
raises arrives as the same class with the same message and `param`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from processors.errors import MmprepError
from processors.types import (
    ChatInput,
    GivenItem,
    ItemPlan,
    MediaOptions,
    Message,
    Modality,
    ProcessReport,
    RenderedPrompt,
    TensorSlice,
)


class WorkerCrashedError(MmprepError):
    """Raised when the worker died and the job was not to blame; try again."""

    code = "worker_crashed"


class DeadlineExceededError(MmprepError):
    """Raised when the request's deadline passed before the job was done."""

    code = "deadline_exceeded"


class InternalError(MmprepError):
    """Raised for failures nobody foresaw; the log has the traceback."""

    code = "internal"


@dataclass(frozen=True, slots=True)
class Extent(Message):
    """A run of bytes in a shared-memory segment."""

    segment: str
    """Name of the segment, as `transport.segments` makes it."""
    offset: int
    """Bytes from the segment's start."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class JobItem(Message):
    """One item as a job carries it: `processors.types.ItemInput` with extents for bytes."""

    modality: Modality
    media: tuple[Extent, ...]
    """Encoded bytes: one medium, or the frames of a video given as a list of images."""
    options: MediaOptions = field(default_factory=MediaOptions)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Effective processor kwargs of this modality, flat."""
    index: int = 0
    """Place within its modality."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Family switches that span modalities."""


class OutputEntry(NamedTuple):
    """Where one tensor of an item goes."""

    name: str
    dtype: str
    """In torch's spelling without the prefix; the requested one for floating features."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the region's start; a multiple of the element size."""


@dataclass(frozen=True, slots=True)
class PlanJob(Message):
    """Plan one item from its header; gives an `ItemPlan`."""

    model: str
    item: JobItem


@dataclass(frozen=True, slots=True)
class PlanFramesJob(Message):
    """Plan a video that is shown as images; gives a tuple of `ItemPlan`s."""

    model: str
    item: JobItem


@dataclass(frozen=True, slots=True)
class PlanGivenJob(Message):
    """Plan the items that a caller has preprocessed; gives a tuple of `GivenItem`s."""

    model: str
    modality: Modality
    format: Literal["processor_output", "precomputed_embedding"]
    document: Extent
    """A safetensors document with the tensors of all of them."""
    run_lengths: tuple[int, ...] = ()
    """See `processors.types.GivenEntry`."""


@dataclass(frozen=True, slots=True)
class ExecuteJob(Message):
    """Decode and process one item into its region; gives `ExecuteResult` or `Replanned`."""

    model: str
    item: JobItem
    plan: ItemPlan
    outputs: tuple[OutputEntry, ...]
    """Every tensor of the plan."""
    region: Extent
    """The item's document, without its control block, which belongs to the API process."""
    header: bytes
    """The document's header; the worker writes it at the region's start."""
    num_threads: int = 1
    """Most threads to use; the pool tells when it sends the job."""


@dataclass(frozen=True, slots=True)
class CopyJob(Message):
    """Copy what a caller has preprocessed into its item's region; gives an `ExecuteResult`."""

    model: str
    document: Extent
    slices: tuple[TensorSlice, ...]
    """One for each of `outputs`, in their order."""
    outputs: tuple[OutputEntry, ...]
    region: Extent
    header: bytes
    """As of an `ExecuteJob`."""


@dataclass(frozen=True, slots=True)
class RenderJob(Message):
    """Render chat messages with the model's template; gives a `RenderedPrompt`."""

    model: str
    chat: ChatInput


@dataclass(frozen=True, slots=True)
class EncodeJob(Message):
    """Encode a prompt with a tokenizer that has no fast form; gives a list of token ids."""

    model: str
    prompt: RenderedPrompt


Job = PlanJob | PlanFramesJob | PlanGivenJob | ExecuteJob | CopyJob | RenderJob | EncodeJob


@dataclass(frozen=True, slots=True)
class ExecuteResult(Message):
    """An item's document stands complete in its region."""

    report: ProcessReport
    queue_ms: float = 0.0
    """Milliseconds the job waited for a free worker."""


@dataclass(frozen=True, slots=True)
class Replanned(Message):
    """Fewer frames decode than the header promised; nothing was written, execute this plan."""

    plan: ItemPlan
    queue_ms: float = 0.0
    """Milliseconds the job waited for a free worker."""


@dataclass(frozen=True, slots=True)
class JobFailure(Message):
    """Why a job failed, as it crosses from the worker to the API process."""

    code: str
    message: str
    param: str = ""
    out_of_memory: bool = False
    """True where an allocation failed: the job's fault only if it ran alone."""
    traceback: str = ""
    """For the log alone, where nobody foresaw the failure."""


JobValue = (
    ItemPlan
    | tuple[ItemPlan, ...]
    | tuple[GivenItem, ...]
    | ExecuteResult
    | Replanned
    | RenderedPrompt
    | list[int]
)
