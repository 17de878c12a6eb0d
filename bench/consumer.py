"""What an engine does with an answer over shared memory: map the segment, read a value."""

import mmap
import struct
from pathlib import Path
from typing import Any

CONTROL_BYTES = 64


class Reader:
    """Opens regions in place; segments are mapped once, as an engine keeps them mapped."""

    def __init__(self) -> None:
        self._segments: dict[str, mmap.mmap] = {}

    def read(self, item: dict[str, Any]) -> int:
        """Return the last byte of an item's largest feature.

        Raises:
            RuntimeError: If the region does not hold what the answer said.
        """
        return self.feature(item)[-1]

    def feature(self, item: dict[str, Any]) -> memoryview:
        """Return an item's largest feature in place.

        Raises:
            RuntimeError: If the region does not hold what the answer said.
        """
        location = item["location"]
        segment, offset = self._open(location["segment"]), location["offset"]
        features = (t for t in item["tensors"].values() if t["role"] == "feature")
        largest = max(features, key=lambda t: t["nbytes"])
        (header_bytes,) = struct.unpack_from("<Q", segment, offset)
        (generation,) = struct.unpack_from("<Q", segment, offset - CONTROL_BYTES)
        if generation != location["generation"]:
            raise RuntimeError("a leased region was overwritten")
        start = offset + 8 + header_bytes + largest["offset"]
        return memoryview(segment)[start : start + largest["nbytes"]]

    def _open(self, name: str) -> mmap.mmap:
        segment = self._segments.get(name)
        if segment is None:
            with (Path("/dev/shm") / name).open("rb") as file:
                segment = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._segments[name] = segment
        return segment
