"""Shared memory, both sides: what a location says, who may open it, and opening it.

A consumer maps a segment once and finds every later item in it. The lease is the guarantee that
nothing moves; the generation, checked before and after, is the backstop for late consumers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from transport.errors import FeatureLost, SegmentError
from transport.regions import Region
from transport.segments import DEFAULT_DIRECTORY, PAGE_BYTES, SegmentMap
from transport.wire import ShmLocation


def location(region: Region) -> dict[str, Any]:
    """Return the wire's location of a region."""
    return {
        "kind": "shm",
        "segment": region.segment,
        "offset": region.offset,
        "nbytes": region.nbytes,
        "generation": region.generation,
    }


def consumer_proof(
    gpus: Sequence[str] = (), *, directory: str = DEFAULT_DIRECTORY
) -> dict[str, Any]:
    """Say what this process shares with whom: the same value here and there means co-located.

    `shm` is this boot of the kernel and the device number of the memory file system, so that
    containers with a `/dev/shm` of their own differ; `pidns` is the pid namespace, which CUDA's
    inter-process memory needs to be shared.

    Args:
        gpus: UUIDs of the GPUs this process sees.
        directory: Where segments live.

    Raises:
        SegmentError: If this system does not tell.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
        device = os.stat(directory).st_dev
        pid_namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError as exc:
        raise SegmentError("this system does not tell its boot id or namespaces") from exc
    return {"shm": f"{boot_id}:{device}", "gpus": list(gpus), "pidns": pid_namespace}


class ShmReader:
    """Opens `shm` locations: a consumer's side.

    Args:
        directory: Where segments live.
    """

    def __init__(self, directory: str = DEFAULT_DIRECTORY) -> None:
        self._segments = SegmentMap(directory)

    def read(self, place: ShmLocation) -> memoryview:
        """Return a private, writable copy of a region's bytes.

        Raises:
            FeatureLost: If they are gone, or went while they were copied.
            SegmentError: If the location is none, or may not be opened.
        """
        with self.open(place) as view:
            # numpy's allocation and copy: both are done with large pages and without the lock.
            copy = np.empty(view.nbytes, np.uint8)
            copy[:] = np.frombuffer(view, np.uint8)
        return copy.data

    @contextmanager
    def open(self, place: ShmLocation) -> Iterator[memoryview]:
        """Give a read-only view of a region's bytes, without a copy, for the length of a `with`.

        Raises:
            FeatureLost: On entry if they are gone; on exit if they went meanwhile, so that nothing
                that was made of them may be used.
            SegmentError: If the location is none, or may not be opened.
        """
        if place.offset < PAGE_BYTES or place.offset % PAGE_BYTES:
            raise SegmentError("a region starts on a page after the first")
        view = self._segments.view(place.segment, place.offset, place.nbytes)
        self._require_generation(place)
        try:
            yield view
        finally:
            # Also after an error: what was read of a region that went may well have caused it.
            self._require_generation(place)

    def close(self) -> None:
        """Unmap the segments that nobody holds a view of."""
        self._segments.close()

    def _require_generation(self, place: ShmLocation) -> None:
        if self._segments.generation(place.segment, place.offset) != place.generation:
            raise FeatureLost("the features were replaced or are not written: post again")
