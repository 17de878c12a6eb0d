"""Processes around a store: owners, workers and readers that tests start and kill.

`python -m tests.helpers.store_processes ROLE JSON` prints one JSON line a step and waits for its
standard input to close, or to be killed.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from transport.arena import Arena, SegmentMap
from transport.errors import FeatureLost
from transport.shm import ShmReader
from transport.wire import ShmLocation

ROOT = Path(__file__).parents[2]


def pattern_of(generation):
    """The byte that a region of this generation is filled with."""
    return generation // 2 % 251


def own(instance, nbytes):
    """Own a store with one written region."""
    arena = Arena(instance, [nbytes])
    [region] = arena.reserve([("k", 1000)])
    arena.view(region)[:] = bytes([pattern_of(region.generation)]) * 1000
    arena.commit(region)
    say(segment=region.segment, offset=region.offset, nbytes=1000, generation=region.generation)
    sys.stdin.read()
    arena.close()


def write(segment, offset, nbytes):
    """Write half of a region as a worker does, and never come back."""
    view = SegmentMap(writable=True).view(segment, offset, nbytes)
    view[: nbytes // 2] = bytes(nbytes // 2)
    say(written=nbytes // 2)
    sys.stdin.read()


def hold(**place):
    """Read a region in place, and hold on to it."""
    with ShmReader().open(ShmLocation(**place)) as view:
        say(digest=hashlib.sha256(view).hexdigest())
        sys.stdin.read()
    say(unchanged=True)


def watch(segment, offset, nbytes):
    """Copy whatever region is at a place, over and over, and judge each copy."""
    words, reader = SegmentMap(), ShmReader()
    counts = {"good": 0, "lost": 0, "mixed": 0}
    say(ready=True)
    stop = words.view(segment, 0, 8)
    while not stop[0]:
        generation = words.generation(segment, offset)
        place = ShmLocation(segment=segment, offset=offset, nbytes=nbytes, generation=generation)
        if generation % 2:
            counts["lost"] += 1
            continue
        try:
            copy = np.frombuffer(reader.read(place), np.uint8)
        except FeatureLost:
            counts["lost"] += 1
            continue
        counts["good" if (copy == pattern_of(generation)).all() else "mixed"] += 1
    say(**counts)


def say(**fields):
    """Print one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Child:
    """One of the processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self):
        """Return what it says next."""
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def kill(self):
        """End it at once, without any clean-up of its own."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def child(role, *, module=__name__, **arguments) -> Iterator[Child]:
    """Start a process in a role; it is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, role, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()


if __name__ == "__main__":
    {"own": own, "write": write, "hold": hold, "watch": watch}[sys.argv[1]](
        **json.loads(sys.argv[2])
    )
