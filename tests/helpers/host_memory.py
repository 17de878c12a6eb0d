"""Host memory with the interface of device memory, so that pools run in tests without a GPU."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import torch

UUID = "GPU-00000000-0000-0000-0000-000000000000"


class HostMemory:
    """A mapped file in the part of a device allocation; its handle is the file's path."""

    def __init__(self, path, *, is_owner):
        self.path = Path(path)
        self.device_uuid = UUID
        self.opened = True
        self._is_owner = is_owner
        self._fd = os.open(path, os.O_RDWR)
        self.nbytes = os.fstat(self._fd).st_size
        self._map = mmap.mmap(self._fd, self.nbytes)

    @classmethod
    def allocate(cls, path, nbytes):
        """Make the memory."""
        Path(path).write_bytes(bytes(nbytes))
        return cls(path, is_owner=True)

    @classmethod
    def open(cls, pool):
        """Map another process's memory."""
        return cls(pool.handle.rstrip(b"\0").decode(), is_owner=False)

    def export_handle(self):
        return str(self.path).encode().ljust(64, b"\0")

    def read(self, offset, into):
        into[:] = memoryview(self._map)[offset : offset + len(into)]

    def write(self, offset, data):
        memoryview(self._map)[offset : offset + len(data)] = data

    def as_torch(self, offset, nbytes):
        whole = torch.frombuffer(memoryview(self._map), dtype=torch.uint8)
        return whole[offset : offset + nbytes]

    def synchronize(self):
        """Writes to host memory are done when they return."""

    def close(self):
        if self.opened:
            self.opened = False
            os.close(self._fd)
            # Tensors that a test still holds keep the mapping.
            with contextlib.suppress(BufferError):
                self._map.close()
            if self._is_owner:
                self.path.unlink()
