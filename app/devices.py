"""Features on a GPU: copies of stored documents in a pool that consumers map (`cuda_ipc`).

A feature is processed into shared memory like any other and copied to the device once, when the
first answer wants it there; it stays until it is evicted. One pool on one device, opened only where
the settings ask for it, so that no CUDA context exists otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from app.config import SettingsError, StoreSettings, TransportSettings
from app.store import Key, Stored
from transport.arena import Region
from transport.cuda_ipc import CudaPool
from transport.device import CudaMemory, DeviceMemory, visible_gpus
from transport.errors import SegmentError


@dataclass(frozen=True, slots=True)
class Devices:
    """How device memory is had; tests bring host memory of the same interface."""

    gpus: Callable[[], Sequence[str]] = visible_gpus
    allocate: Callable[[str, int], DeviceMemory] = CudaMemory.allocate


class DeviceStore:
    """Copies of features in a pool of device memory; belongs to the event loop.

    Args:
        pool: Says who holds which part.
        memory: The pool's allocation.
        executor: Runs the copies.
    """

    def __init__(self, pool: CudaPool, memory: DeviceMemory, executor: Executor) -> None:
        self.pool = pool
        self._memory = memory
        self._executor = executor
        self._copies: dict[Key, asyncio.Task[None]] = {}

    @classmethod
    def open(
        cls,
        instance: str,
        settings: TransportSettings,
        store: StoreSettings,
        devices: Devices,
        executor: Executor,
    ) -> DeviceStore:
        """Allocate the pool on the first GPU.

        Blocking: Makes a CUDA context; run in a thread.

        Raises:
            SettingsError: If there is no GPU, or it has no room.
        """
        gpus = devices.gpus()
        if not gpus:
            raise SettingsError("MMPREP_TRANSPORT__CUDA_IPC: this process sees no GPU")
        try:
            memory = devices.allocate(gpus[0], settings.cuda_pool_bytes)
            pool = CudaPool(
                instance, memory, directory=store.directory, mode=store.mode, group=store.group
            )
        except SegmentError as error:
            raise SettingsError(f"MMPREP_TRANSPORT__CUDA_IPC: {error}") from error
        return cls(pool, memory, executor)

    async def aclose(self) -> None:
        """Wait for copies under way, make every region unreadable, free the memory."""
        await asyncio.gather(*self._copies.values(), return_exceptions=True)
        self.pool.close()
        self._memory.close()

    async def place(self, features: Sequence[tuple[Stored, memoryview]]) -> list[Region]:
        """Have features on the device; each region is pinned once for the caller.

        Args:
            features: Stored features with their documents' bytes, pinned until this returns.

        Raises:
            StoreFullError: If features in use leave no room there.
            ItemTooLargeError: If they can never fit.
        """
        unique = {stored.key: (stored, view) for stored, view in features}
        missing = [
            entry
            for key, entry in unique.items()
            if key not in self._copies and self.pool.lookup(key) is None
        ]
        regions = self.pool.reserve([(s.key, _data_nbytes(s)) for s, _ in missing])
        for (stored, view), region in zip(missing, regions, strict=True):
            task = asyncio.create_task(self._copy(stored, view, region))
            self._copies[stored.key] = task
            task.add_done_callback(lambda _, key=stored.key: self._copies.pop(key))  # type: ignore[misc]
        waits = [self._copies[key] for key in unique if key in self._copies]
        # Not cancelled with a caller: others may wait, and the copy reads what the caller pins.
        await asyncio.shield(asyncio.gather(*waits))
        placed = []
        for stored, _ in features:
            found = self.pool.lookup(stored.key)
            if found is None:
                raise SegmentError("the features left the device before they were told")
            self.pool.pin(found)
            placed.append(found)
        return placed

    async def _copy(self, stored: Stored, view: memoryview, region: Region) -> None:
        data = view[stored.layout.data_start :]

        def write() -> None:
            self._memory.write(region.offset, data)
            self._memory.synchronize()

        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, write)
            self.pool.commit(region)
        except BaseException:
            self.pool.abort(region)
            raise
        finally:
            self.pool.unpin(region)

    @property
    def device_uuid(self) -> str:
        """Of the pool's device."""
        return self._memory.device_uuid

    def describe(self) -> dict[str, Any]:
        """Return the pool's entry in /models."""
        return self.pool.describe()


def _data_nbytes(stored: Stored) -> int:
    return stored.layout.nbytes - stored.layout.data_start
