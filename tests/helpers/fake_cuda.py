"""A stand-in for the CUDA runtime over host memory, for what does not need a GPU to go wrong.

It takes the real bindings' types where there are any, keeps a current device per thread, and
refuses what the real one refuses: unknown addresses, freeing twice, closing what was not opened.
"""

# The names are the runtime's own.
# ruff: noqa: N802, N815

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from cuda.bindings import runtime as real

DEVICES = [bytes([number]) * 16 for number in (1, 2)]
"""UUIDs of two devices."""
UUIDS = [
    "GPU-01010101-0101-0101-0101-010101010101",
    "GPU-02020202-0202-0202-0202-020202020202",
]


class FakeRuntime:
    """The calls `CudaMemory` makes."""

    cudaIpcMemHandle_t = real.cudaIpcMemHandle_t
    cudaIpcMemLazyEnablePeerAccess = real.cudaIpcMemLazyEnablePeerAccess
    cudaMemcpyKind = real.cudaMemcpyKind
    _OK = real.cudaError_t.cudaSuccess
    _BAD = real.cudaError_t.cudaErrorInvalidValue

    def __init__(self):
        self.current = 1
        self.allocated = {}
        self.opened = {}
        self.used_on = []

    def cudaGetDeviceCount(self):
        return self._OK, len(DEVICES)

    def cudaGetDeviceProperties(self, ordinal):
        return self._OK, SimpleNamespace(uuid=SimpleNamespace(bytes=DEVICES[ordinal]))

    def cudaGetDevice(self):
        return self._OK, self.current

    def cudaSetDevice(self, ordinal):
        self.current = ordinal
        return (self._OK,)

    def cudaMalloc(self, nbytes):
        if nbytes > 1 << 20:
            return real.cudaError_t.cudaErrorMemoryAllocation, None
        buffer = ctypes.create_string_buffer(b"\xff" * nbytes, nbytes)
        address = ctypes.addressof(buffer)
        self.allocated[address] = buffer
        self.used_on.append(self.current)
        return self._OK, address

    def cudaMemset(self, address, value, nbytes):
        ctypes.memset(address, value, nbytes)
        return (self._OK,)

    def cudaMemcpy(self, target, source, nbytes, kind):
        assert kind == real.cudaMemcpyKind.cudaMemcpyDefault
        ctypes.memmove(target, source, nbytes)
        return (self._OK,)

    def cudaDeviceSynchronize(self):
        self.used_on.append(self.current)
        return (self._OK,)

    def cudaIpcGetMemHandle(self, address):
        handle = real.cudaIpcMemHandle_t()
        ctypes.memmove(int(handle.getPtr()), address.to_bytes(64, "little"), 64)
        return self._OK, handle

    def cudaIpcOpenMemHandle(self, handle, flags):
        assert flags == real.cudaIpcMemLazyEnablePeerAccess
        address = int.from_bytes(ctypes.string_at(int(handle.getPtr()), 64), "little")
        if address not in self.allocated:
            return self._BAD, None
        self.opened[address] = self.current
        return self._OK, address

    def cudaIpcCloseMemHandle(self, address):
        return (self._OK if self.opened.pop(address, None) is not None else self._BAD,)

    def cudaFree(self, address):
        return (self._OK if self.allocated.pop(address, None) is not None else self._BAD,)
