"""What passes between a worker and the API process besides jobs: how to start, and that it did."""

from __future__ import annotations

from dataclasses import dataclass

from processors.types import DecodeLimits, ModelInfo, ModelSpec


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """All that a worker needs to know; the first message it gets."""

    specs: tuple[ModelSpec, ...]
    limits: DecodeLimits
    engine_factory: str
    """`module:name` of what makes an engine from a spec and limits."""
    torch_threads: int
    memory_bytes: int
    """Private bytes the worker may grow by; the hard stop stands at twice as much."""
    directory: str
    """Where shared-memory segments live."""
    segments: tuple[str, ...] = ()
    """Segments to map before the first job."""
    offline: bool = True
    """Deny the worker all sockets but local ones."""
    in_background: bool = False
    """Load at low priority: nobody waits for this worker."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker is warm."""

    models: tuple[ModelInfo, ...]
    is_offline: bool
    """Whether the kernel denies it all sockets but local ones."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The worker cannot start."""

    message: str
    """A reason for the operator, where the model directory is to blame; else empty."""
    traceback: str
