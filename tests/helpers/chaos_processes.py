"""A worker and a consumer that take orders line by line, for the chaos run of the store.

`python -m tests.helpers.chaos_processes ROLE {}`; an order is a JSON object, and so is its answer.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from tests.helpers.store_processes import pattern_of, say
from transport.arena import SegmentMap
from transport.errors import FeatureLost
from transport.shm import ShmReader
from transport.wire import ShmLocation


def work():
    """Fill regions with the pattern of their generation."""
    segments = SegmentMap(writable=True)
    for line in sys.stdin:
        place = json.loads(line)
        view = segments.view(place["segment"], place["offset"], place["nbytes"])
        np.frombuffer(view, np.uint8)[:] = pattern_of(place["generation"])
        say(written=True)


def consume():
    """Copy regions and say what was found: the right bytes, none, or others."""
    reader = ShmReader()
    for line in sys.stdin:
        place = ShmLocation(**json.loads(line))
        try:
            copy = np.frombuffer(reader.read(place), np.uint8)
        except FeatureLost:
            say(found="lost")
            continue
        say(found="good" if (copy == pattern_of(place.generation)).all() else "mixed")


if __name__ == "__main__":
    {"work": work, "consume": consume}[sys.argv[1]]()
