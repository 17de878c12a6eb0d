"""What one running service owns, opened in order and closed in reverse."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from app.admission import Admission, Work
from app.catalog import Catalog
from app.config import Settings, SettingsError, StoreSettings
from app.derive import Deriver
from app.devices import Devices, DeviceStore
from app.execution import Execution
from app.leasing import Leasing
from app.loading.loader import Loader
from app.media import Holdings, MediaLimits, MediaStage
from app.metrics import Metrics
from app.packing import Packer
from app.pipeline import Pipeline
from app.planning import Planner
from app.pool import WorkerPool
from app.records import Records
from app.sizes import KnownSizes
from app.sizing import available_cores
from app.staging import StagingArea
from app.store import FeatureStore
from transport.arena import Arena
from transport.errors import SegmentError
from transport.leases import LeaseTable
from transport.shm import consumer_proof

MAX_RECORDS = 65_536
HOUSEKEEPING_S = 1.0
PARSED_AT_ONCE = 2
DEFAULT_STORE_BYTES = 2 << 30
MIB = 1 << 20


@dataclass(slots=True)
class House:
    """The parts of one running service."""

    settings: Settings
    instance: str
    consumer: Mapping[str, Any]
    """What a consumer must share with this process: `shm`, `gpus`, `pidns`."""
    log: Any
    metrics: Metrics
    admission: Admission
    executor: ThreadPoolExecutor
    parsing: asyncio.Semaphore
    """Held while a large body is parsed."""
    pool: WorkerPool
    catalog: Catalog
    store: FeatureStore
    staging: StagingArea
    leasing: Leasing
    holdings: Holdings
    deriver: Deriver
    devices: DeviceStore | None
    pipeline: Pipeline

    def readiness(self) -> tuple[bool, str]:
        """Return whether new requests are welcome, and one word why."""
        if self.admission.is_draining:
            return False, "draining"
        if not self.pool.is_ready:
            return False, "workers_starting"
        return True, "ready"

    def facts(self) -> dict[str, Any]:
        """Return what `/health` tells."""
        store, leases = self.store.arena.statistics(), self.leasing.table.statistics()
        return {
            "instance": self.instance,
            "requests": self.admission.num_requests,
            "waiting": self.admission.num_waiting,
            "store": {
                "capacity_bytes": store.capacity_bytes,
                "held_bytes": store.held_bytes,
                "regions": store.regions,
            },
            "leases": {"active": leases.active, "leased_bytes": leases.leased_bytes},
        }


def store_sizes(settings: StoreSettings) -> tuple[int, int]:
    """Return the bytes of the store and of staging.

    Raises:
        SettingsError: If they exceed the free shared memory, with all three numbers.
    """
    free = _free_bytes(settings.directory)
    nbytes = settings.nbytes or min(DEFAULT_STORE_BYTES, free // 2)
    staging = settings.staging_bytes or max(64 * MIB, nbytes // 8)
    if nbytes + staging > free:
        raise SettingsError(
            f"the store ({nbytes} bytes) and staging ({staging}) exceed the {free} bytes free in "
            f"{settings.directory}: set MMPREP_STORE__NBYTES and MMPREP_STORE__STAGING_BYTES, or "
            "make the shared memory larger (docker: --shm-size, Kubernetes: an emptyDir with "
            "medium Memory)"
        )
    return nbytes, staging


def _free_bytes(directory: str) -> int:
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        raise SettingsError(f"MMPREP_STORE__DIRECTORY: {error.strerror}") from error
    return int(stat.f_bavail * stat.f_frsize)


def _segments(nbytes: int, segment_bytes: int) -> list[int]:
    """Return the sizes of the segments: as few as can be, about equal."""
    count = -(-nbytes // segment_bytes)
    return [nbytes // count] * count


@asynccontextmanager
async def open_house(
    settings: Settings,
    devices: Devices = Devices(),  # noqa: B008 - frozen, and made once
) -> AsyncIterator[House]:
    """Open everything a service needs; workers are warm when this yields.

    Raises:
        SettingsError: If the machine cannot hold what the settings ask for.
        ModelLoadError: If a model cannot be served, with the reason.
    """
    nbytes, staging_bytes = store_sizes(settings.store)
    instance = secrets.token_hex(6)
    log = structlog.get_logger("mmprep").bind(instance=instance)
    async with AsyncExitStack() as stack:
        arena, staging_arena = await _open_arenas(stack, settings, instance, nbytes, staging_bytes)
        executor = stack.enter_context(
            ThreadPoolExecutor(max(2, available_cores()), thread_name_prefix="text")
        )
        staging = StagingArea(staging_arena)
        stack.push_async_callback(staging.aclose)
        specs = settings.model_specs()
        pool = await stack.enter_async_context(
            WorkerPool(settings.workers, specs, settings.limits.decode())
        )
        store = FeatureStore(arena)
        stack.push_async_callback(store.settle)
        loader = await stack.enter_async_context(Loader(settings.loading, staging))
        records = Records(MAX_RECORDS, MAX_RECORDS)
        holdings = Holdings(settings.store.bytes_by_hash_s)
        stack.callback(holdings.expire, all_of_them=True)
        budget = Work(settings.admission.pixels, min(settings.admission.planned_bytes, nbytes))
        admission = Admission(settings.admission.requests, budget)
        device_store = await _open_devices(stack, settings, instance, devices, executor)
        pools = [] if device_store is None else [device_store.pool]
        table = LeaseTable(
            [arena, *pools], grace_s=settings.store.grace_s, quota_bytes=settings.store.quota_bytes
        )
        leasing = Leasing(table, settings.store)
        gpus = () if device_store is None else (device_store.device_uuid,)
        consumer = consumer_proof(gpus, directory=settings.store.directory)
        catalog = Catalog(specs, pool.models)
        limits = MediaLimits(settings.limits.media_bytes, settings.limits.video_bytes)
        deriver = Deriver(store, executor)
        sizes = KnownSizes(settings.limits.decoded_pixels)
        planner = Planner(pool, records, loader, staging, sizes, settings.limits.media_bytes)
        pipeline = Pipeline(
            settings=settings,
            consumer=consumer,
            catalog=catalog,
            pool=pool,
            store=store,
            media=MediaStage(loader, records, holdings, limits),
            planner=planner,
            execution=Execution(pool, store, planner, admission, table, deriver),
            packer=Packer(instance, store, leasing, holdings),
            devices=device_store,
            executor=executor,
        )
        house = House(
            settings=settings,
            instance=instance,
            consumer=consumer,
            log=log,
            metrics=Metrics(),
            admission=admission,
            executor=executor,
            parsing=asyncio.Semaphore(PARSED_AT_ONCE),
            pool=pool,
            catalog=catalog,
            store=store,
            staging=staging,
            leasing=leasing,
            holdings=holdings,
            deriver=deriver,
            devices=device_store,
            pipeline=pipeline,
        )
        keeper = asyncio.create_task(_keep(house))
        stack.push_async_callback(_stop, keeper)
        yield house


async def _open_arenas(
    stack: AsyncExitStack, settings: Settings, instance: str, nbytes: int, staging_bytes: int
) -> tuple[Arena, Arena]:
    """Allocate the segments, in threads: a GiB takes about a second to fault in."""
    store = settings.store
    make = functools.partial(
        Arena, instance, directory=store.directory, mode=store.mode, group=store.group
    )
    arenas = []
    for purpose, size in (("store", nbytes), ("staging", staging_bytes)):
        sizes = _segments(size, settings.store.segment_bytes)
        try:
            arena = await asyncio.to_thread(make, sizes, purpose=purpose)
        except SegmentError as error:
            raise SettingsError(str(error)) from error
        stack.enter_context(arena)
        arenas.append(arena)
    return arenas[0], arenas[1]


async def _open_devices(
    stack: AsyncExitStack,
    settings: Settings,
    instance: str,
    devices: Devices,
    executor: ThreadPoolExecutor,
) -> DeviceStore | None:
    """Open the pool of device memory where the settings ask for it."""
    if not settings.transport.cuda_ipc:
        return None
    opened = await asyncio.to_thread(
        DeviceStore.open, instance, settings.transport, settings.store, devices, executor
    )
    stack.push_async_callback(opened.aclose)
    return opened


async def _keep(house: House) -> None:
    """Expire leases and held media now and then, also while no request comes."""
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        house.leasing.table.sweep()
        house.holdings.expire()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
