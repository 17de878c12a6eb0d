"""How many worker processes and threads fit this machine: cores, CPU quota, memory, settings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

GIB = 1 << 30
WORKER_BYTES = GIB
"""Resident bytes of an idle worker, rounded up: torch, transformers and a few processors."""
MAX_JOB_BYTES = 4 * GIB
MIN_JOB_BYTES = GIB
_UNLIMITED = 1 << 60
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


class WorkerSettings(BaseModel):
    """The worker processes; what is not given is derived from the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: int | None = Field(None, ge=1, le=512)
    """Worker processes; default one per core as far as memory allows."""
    threads: int | None = Field(None, ge=1, le=64)
    """Items a process works on at once; default cores divided by processes."""
    spares: int = Field(1, ge=0, le=8)
    """Warm processes that stand by, so that a lost worker is replaced at once."""
    memory_bytes: int | None = Field(None, ge=1 << 20)
    """Private memory a worker may grow by above its warmed-up state before it is killed; default 4
    GiB, or less on a small machine."""
    recycle_jobs: int = Field(20_000, ge=0)
    """Jobs after which a worker is replaced by a fresh one; 0 for never."""
    recycle_bytes: int | None = Field(None, ge=1 << 20)
    """Growth in private memory at which an idle worker is replaced; default half of
    `memory_bytes`."""
    queue_jobs: int = Field(65_536, ge=1)
    """Jobs that may wait for a worker; one more is 429 `overloaded`."""
    start_s: float = Field(180.0, gt=0)
    """Seconds a worker may take from its start until it is warm."""
    overrun_s: float = Field(2.0, ge=0)
    """Seconds beyond `limits.decode_s` that a job gets to notice it by itself."""
    offline: bool = True
    """Deny workers all sockets but local ones; decoders need no network."""
    environment: dict[str, str] = Field(
        default_factory=lambda: {
            # Large buffers are kept and reused, not mapped and faulted in anew for each item.
            "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
            "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
            "MALLOC_TOP_PAD_": str(64 << 20),
        }
    )
    """Environment variables of the workers, above the inherited ones."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What the settings come to on this machine."""

    processes: int
    threads: int
    """Execute lanes per process."""
    torch_threads: int
    """Threads of one torch operation, so that all lanes together fill the cores once."""
    memory_bytes: int
    """Private bytes a worker may grow by."""
    recycle_bytes: int


def pool_size(
    settings: WorkerSettings, *, cores: int | None = None, memory: int | None = None
) -> PoolSize:
    """Return how many processes and threads to run.

    Args:
        settings: What the operator fixed.
        cores: CPUs to fill; default those this process may use.
        memory: Bytes that all of the service may use; default what the machine or the cgroup has.
    """
    cores = available_cores() if cores is None else cores
    memory = available_memory() if memory is None else memory
    affordable = max(1, memory // 2 // WORKER_BYTES - settings.spares)
    processes = settings.processes or min(cores, affordable)
    threads = settings.threads or max(1, round(cores / processes))
    share = memory // 2 // (processes + settings.spares)
    memory_bytes = settings.memory_bytes or min(MAX_JOB_BYTES, max(MIN_JOB_BYTES, share))
    return PoolSize(
        processes=processes,
        threads=threads,
        torch_threads=max(1, cores // (processes * threads)),
        memory_bytes=memory_bytes,
        recycle_bytes=settings.recycle_bytes or memory_bytes // 2,
    )


def available_cores(root: Path = _CGROUP_ROOT, own: Path = _OWN_CGROUPS) -> int:
    """Return the CPUs this process may use: affinity, capped by the cgroup's quota rounded up."""
    quotas = [*_quotas_v2(root, own), *_quotas_v1(root, own)]
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(q) for q in quotas)]))


def available_memory(root: Path = _CGROUP_ROOT, own: Path = _OWN_CGROUPS) -> int:
    """Return the bytes of memory this process may use: the machine's, capped by the cgroup's."""
    limits = [
        int(text)
        for folder, name in (
            *((f, "memory.max") for f in _folders(root, own, "")),
            *((f, "memory.limit_in_bytes") for f in _folders(root / "memory", own, "memory")),
        )
        if (text := _read(folder / name)).isdigit() and 0 < int(text) < _UNLIMITED
    ]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def _quotas_v2(root: Path, own: Path) -> Iterator[float]:
    for folder in _folders(root, own, ""):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _quotas_v1(root: Path, own: Path) -> Iterator[float]:
    for folder in _folders(root / "cpu", own, "cpu"):
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup and all above it, as far as they can be seen from here.

    In a container the mount often shows the own group as its root, so the root is always looked at.
    """
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and ".." not in path:
            folder = root / path.lstrip("/")
            while folder != root:
                yield folder
                folder = folder.parent
    yield root


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
