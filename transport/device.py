"""Device memory that processes share: what a pool needs of it, and CUDA's.

`DeviceMemory` is all that pools and their readers know; tests run them over host memory of the same
interface. `CudaMemory` is the rest: plain `cudaMalloc` and CUDA's inter-process handles through the
cuda-bindings package, which is imported on first use only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from transport.errors import SegmentError
from transport.wire import Pool

if TYPE_CHECKING:
    import torch

_HANDLE_BYTES = 64


class DeviceMemory(Protocol):
    """One allocation on a device, made by this process or opened from another's handle."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    @property
    def device_uuid(self) -> str:
        """Of the device it is on."""

    def export_handle(self) -> bytes:
        """Return what another process opens it with."""

    def read(self, offset: int, into: memoryview) -> None:
        """Copy bytes to the host; what was written before is in them."""

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes from the host; done when this returns."""

    def as_torch(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return bytes as a uint8 tensor on the device, without a copy."""

    def synchronize(self) -> None:
        """Wait until everything this process has started on the device is done."""

    def close(self) -> None:
        """Let go of it; idempotent."""


class CudaMemory:
    """Memory of a CUDA device; made with `allocate` or `open`."""

    def __init__(self, address: int, nbytes: int, ordinal: int, *, is_owner: bool) -> None:
        self._address = address
        self._nbytes = nbytes
        self._ordinal = ordinal
        self._is_owner = is_owner

    @classmethod
    def allocate(cls, device_uuid: str, nbytes: int) -> Self:
        """Allocate zeroed memory, outside of any caching allocator.

        Raises:
            SegmentError: If this process does not see the device, or it has no room.
        """
        ordinal, runtime = _ordinal(device_uuid), _runtime()
        with _device(ordinal):
            address = _checked(runtime.cudaMalloc(nbytes))
            memory = cls(int(address), nbytes, ordinal, is_owner=True)
            _checked(runtime.cudaMemset(memory._address, 0, nbytes))
        memory.synchronize()
        return memory

    @classmethod
    def open(cls, pool: Pool) -> Self:
        """Map another process's allocation, on the device it is on.

        Raises:
            SegmentError: If this process does not see the device, or may not map the memory.
        """
        # On any other device the mapping would cost a context on the producer's.
        ordinal, runtime = _ordinal(pool.device_uuid), _runtime()
        if len(pool.handle) != _HANDLE_BYTES:
            raise SegmentError("this is not a CUDA memory handle")
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(handle.getPtr()), pool.handle, _HANDLE_BYTES)
        with _device(ordinal):
            flags = runtime.cudaIpcMemLazyEnablePeerAccess
            address = _checked(runtime.cudaIpcOpenMemHandle(handle, flags))
        return cls(int(address), pool.nbytes, ordinal, is_owner=False)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._nbytes

    @property
    def device_uuid(self) -> str:
        """Of the device it is on."""
        return _uuid(self._ordinal)

    def export_handle(self) -> bytes:
        """Return the runtime's 64-byte handle."""
        with _device(self._ordinal):
            handle = _checked(_runtime().cudaIpcGetMemHandle(self._address))
        return ctypes.string_at(int(handle.getPtr()), _HANDLE_BYTES)

    def read(self, offset: int, into: memoryview) -> None:
        """Copy bytes to the host, after what this process has started on the device."""
        self.synchronize()
        host = np.frombuffer(into, np.uint8).ctypes.data
        self._copy(host, self._address + offset, into.nbytes)

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes from the host."""
        host = np.frombuffer(data, np.uint8).ctypes.data
        self._copy(self._address + offset, host, data.nbytes)
        self.synchronize()

    def as_torch(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return bytes as a uint8 tensor on the device, without a copy."""
        import torch

        array = _CudaArray(self, self._address + offset, nbytes)
        return torch.as_tensor(array, device=f"cuda:{self._ordinal}")

    def synchronize(self) -> None:
        """Wait for all streams of this process on the device."""
        with _device(self._ordinal):
            _checked(_runtime().cudaDeviceSynchronize())

    def close(self) -> None:
        """Free it, or unmap it."""
        address, self._address = self._address, 0
        if address:
            runtime = _runtime()
            with _device(self._ordinal):
                release = runtime.cudaFree if self._is_owner else runtime.cudaIpcCloseMemHandle
                _checked(release(address))

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        runtime = _runtime()
        with _device(self._ordinal):
            kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
            _checked(runtime.cudaMemcpy(target, source, nbytes, kind))


class _CudaArray:
    """What torch needs to look at device memory; keeps it mapped for as long as it looks."""

    def __init__(self, memory: CudaMemory, address: int, nbytes: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs this process sees; none where there is no driver."""
    try:
        count = _checked(_runtime().cudaGetDeviceCount())
    except SegmentError:
        return ()
    return tuple(_uuid(ordinal) for ordinal in range(count))


def _ordinal(device_uuid: str) -> int:
    try:
        return visible_gpus().index(device_uuid)
    except ValueError:
        raise SegmentError("this process does not see the GPU that holds the features") from None


def _uuid(ordinal: int) -> str:
    digits = bytes(_checked(_runtime().cudaGetDeviceProperties(ordinal)).uuid.bytes).hex()
    groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(groups)


@contextmanager
def _device(ordinal: int) -> Iterator[None]:
    """Make a device current for this thread, and put back the one that was."""
    runtime = _runtime()
    previous = _checked(runtime.cudaGetDevice())
    _checked(runtime.cudaSetDevice(ordinal))
    try:
        yield
    finally:
        _checked(runtime.cudaSetDevice(previous))


def _runtime() -> Any:  # noqa: ANN401 - the bindings are optional and untyped
    try:
        from cuda.bindings import runtime  # type: ignore[import-untyped]
    except ImportError as exc:
        raise SegmentError("cuda_ipc needs the cuda-bindings package: mmprep[cuda]") from exc
    return runtime


def _checked(result: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever the call returns
    """Return what a runtime call returned beside its error, or raise the error."""
    error, *values = result
    if int(error):
        raise SegmentError(f"CUDA refused: {error.name}")
    return values[0] if values else None
