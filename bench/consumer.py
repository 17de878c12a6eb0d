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

    def read(self, item: dict[str, Any]) -> float:
        """Return the last value of an item's largest feature.

        Raises:
            RuntimeError: If the region does not hold what the answer said.
        """
        location = item["location"]
        name, offset = location["segment"], location["offset"]
        segment = self._segments.get(name)
        if segment is None:
            with (Path("/dev/shm") / name).open("rb") as file:
                segment = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._segments[name] = segment
        features = (t for t in item["tensors"].values() if t["role"] == "feature")
        feature = max(features, key=lambda t: t["nbytes"])
        (header_bytes,) = struct.unpack_from("<Q", segment, offset)
        end = offset + 8 + header_bytes + feature["offset"] + feature["nbytes"]
        kind = "<f" if feature["dtype"] == "float32" else "<B"
        (value,) = struct.unpack_from(kind, segment, end - struct.calcsize(kind))
        (generation,) = struct.unpack_from("<Q", segment, offset - CONTROL_BYTES)
        if generation != location["generation"]:
            raise RuntimeError("a leased region was overwritten")
        return float(value)
