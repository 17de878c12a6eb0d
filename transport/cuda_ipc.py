"""Device memory between processes, both sides: a pool of it, and reading what lies there.

One pool per GPU: allocated once, its handle told once, slices of it by offset and generation. The
policy is that of every store (`RegionTable`); the generation words stand in a control segment in
host shared memory, where a reader checks them without touching the device. Whoever writes
synchronises before the region is committed.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.device import CudaMemory, DeviceMemory
from transport.errors import DocumentError, FeatureLost, SegmentError
from transport.regions import Region, RegionTable
from transport.safetensors import TensorEntry, TensorView, tensor_nbytes
from transport.segments import DEFAULT_DIRECTORY, OwnedSegment, SegmentMap, segment_name
from transport.wire import CudaLocation, Pool, TensorInfo

if TYPE_CHECKING:
    import torch

SLOT_BYTES = 16 * 1024
"""Regions start on multiples of this, and each has a generation word."""


class CudaPool(RegionTable):
    """The owner's side of a pool: who holds which part of it.

    Makes no device call, so that a process without a CUDA context can own it for a worker that
    allocated the memory.

    Args:
        instance: Name of this run of the service.
        memory: The allocation; only its size, device and handle are used.
        number: Of this pool, among those of the instance.
        directory: Memory file system for the control segment.
        mode: Permission bits of the control segment.
        group: Its numeric group, or None.

    Raises:
        SegmentError: If the control segment cannot be made, or the memory is too small.
    """

    def __init__(
        self,
        instance: str,
        memory: DeviceMemory,
        *,
        number: int = 0,
        directory: str = DEFAULT_DIRECTORY,
        mode: int = 0o600,
        group: int | None = None,
    ) -> None:
        slots = memory.nbytes // SLOT_BYTES
        if slots == 0:
            raise SegmentError(f"a pool needs at least {SLOT_BYTES} bytes")
        self._control = OwnedSegment(
            segment_name(instance, "pool", number),
            slots * 8,
            directory=directory,
            mode=mode,
            group=group,
        )
        self._device_uuid = memory.device_uuid
        self._handle = memory.export_handle()
        self.pool_id = f"{instance}-{number}"
        super().__init__(
            [(self.pool_id, slots * SLOT_BYTES)], page_bytes=SLOT_BYTES, control_bytes=0
        )

    def describe(self) -> dict[str, Any]:
        """Return the pool's entry in /models."""
        return {
            "pool_id": self.pool_id,
            "device_uuid": self._device_uuid,
            "handle": base64.b64encode(self._handle).decode(),
            "nbytes": self.segments[0][1],
            "control": {"segment": self._control.name, "offset": 0},
        }

    def location(self, region: Region) -> dict[str, Any]:
        """Return the wire's location of a region."""
        return {
            "kind": "cuda_ipc",
            "pool_id": self.pool_id,
            "offset": region.offset,
            "nbytes": region.nbytes,
            "generation": region.generation,
            "slot": region.offset // SLOT_BYTES,
            "device_uuid": self._device_uuid,
        }

    def close(self) -> None:
        """Make every region unreadable and remove the control segment; before the memory goes."""
        # Readers keep the control segment mapped, and their view of the memory ends with its owner.
        self._control.view[:] = b"\xff" * self._control.nbytes
        self._control.close()

    def _publish(self, region: Region, generation: int) -> None:
        self._control.words[region.offset // SLOT_BYTES] = generation


class PoolReader:
    """Opens `cuda_ipc` locations: a consumer's side. Pools are mapped once.

    Args:
        directory: Where the control segments are.
        open_memory: Maps a pool's memory.
    """

    def __init__(
        self,
        directory: str = DEFAULT_DIRECTORY,
        *,
        open_memory: Callable[[Pool], DeviceMemory] = CudaMemory.open,
    ) -> None:
        self._controls = SegmentMap(directory)
        self._open_memory = open_memory
        self._lock = threading.Lock()
        self._pools: dict[str, Pool] = {}
        self._memory: dict[str, DeviceMemory] = {}

    def knows(self, place: CudaLocation) -> bool:
        """Whether the pool of a location has been told."""
        return place.pool_id in self._pools

    def tell(self, pools: Sequence[Pool]) -> None:
        """Learn the service's pools; those it has no more are unmapped."""
        current = {pool.pool_id: pool for pool in pools}
        with self._lock:
            for pool_id in [p for p in self._memory if current.get(p) != self._pools[p]]:
                self._memory.pop(pool_id).close()
            self._pools = current

    def read(self, place: CudaLocation, infos: Mapping[str, TensorInfo]) -> dict[str, TensorView]:
        """Return an item's tensors in private memory of the host.

        Raises:
            FeatureLost: If they are gone, or went while they were copied.
            SegmentError: If the pool is not known or cannot be opened.
            DocumentError: If the description does not fit the location.
        """
        parts = _parts(place, infos)
        copy = np.empty(place.nbytes, np.uint8).data
        with self._readable(place) as memory:
            if place.nbytes:
                memory.read(place.offset, copy)
        return {
            name: TensorView(info.dtype, info.shape, copy[start:stop])
            for name, (info, start, stop) in parts.items()
        }

    @contextmanager
    def open(
        self, place: CudaLocation, infos: Mapping[str, TensorInfo]
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Give an item's tensors where they are, on the device, for the length of a `with`.

        Raises:
            FeatureLost: On entry if they are gone; on exit, once everything this process has
                started on the device is done, if they went meanwhile.
            SegmentError: If the pool is not known or cannot be opened.
            DocumentError: If the description does not fit the location.
        """
        import torch

        parts = _parts(place, infos)
        with self._readable(place) as memory:
            data = memory.as_torch(place.offset, place.nbytes)
            yield {
                name: data[start:stop].view(getattr(torch, info.dtype)).view(info.shape)
                for name, (info, start, stop) in parts.items()
            }

    def close(self) -> None:
        """Unmap all pools; tensors given out must not be used any more."""
        self.tell(())
        self._controls.close()

    @contextmanager
    def _readable(self, place: CudaLocation) -> Iterator[DeviceMemory]:
        pool = self._pools.get(place.pool_id)
        if pool is None:
            raise FeatureLost("the pool is gone: its server has stopped or restarted")
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > pool.nbytes:
            raise SegmentError("this part lies outside of the pool")
        self._require_generation(place, pool)
        memory = self._mapped(pool)
        try:
            yield memory
        finally:
            # What was started on the device may still be reading.
            memory.synchronize()
            self._require_generation(place, pool)

    def _mapped(self, pool: Pool) -> DeviceMemory:
        with self._lock:
            if pool.pool_id not in self._memory:
                self._memory[pool.pool_id] = self._open_memory(pool)
            return self._memory[pool.pool_id]

    def _require_generation(self, place: CudaLocation, pool: Pool) -> None:
        word = self._controls.word(pool.control.segment, pool.control.offset + place.slot * 8)
        if word != place.generation:
            raise FeatureLost("the features were replaced or are not written: post again")


def _parts(
    place: CudaLocation, infos: Mapping[str, TensorInfo]
) -> dict[str, tuple[TensorInfo, int, int]]:
    """Return where each tensor lies within the data section, once everything fits."""
    parts: dict[str, tuple[TensorInfo, int, int]] = {}
    for name, info in infos.items():
        start = -1 if info.offset is None else info.offset
        stop = start + tensor_nbytes(TensorEntry(name, info.dtype, info.shape))
        if min(start, *info.shape, 0) < 0 or stop > place.nbytes:
            raise DocumentError(f"tensor {name[:64]!r} lies outside of its item")
        parts[name] = (info, start, stop)
    return parts
