"""Sides that take turns in one process, and the file that a run leaves.

CPU time, not wall time: other work on the machine does not count, and a decoder's threads do.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.facts import ENVIRONMENT, machine_facts
from bench.stats import ratio_of, spread

Sides = Mapping[str, Callable[[], object]]


def restart_with_environment() -> None:
    """Run this program again with the settings that all sides share, unless it has them."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ENVIRONMENT})


def take_turns(sides: Sides, rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Return the CPU milliseconds of a run of each side, round by round.

    A side that takes a millisecond runs several times in its turn, as it would in a service: else
    what it costs is to find the caches filled by the other side.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            start = time.process_time()
            for _ in range(repeats):
                side()
            if turn:  # the first round only warms up
                times[name].append((time.process_time() - start) * 1e3 / repeats)
    return times


def row(what: str, times: Mapping[str, list[float]], over: str, under: str) -> dict[str, Any]:
    """Print what was measured and return it, with the ratio of two sides round by round."""
    ratio = ratio_of([[value] for value in times[over]], [[value] for value in times[under]])
    cpu_ms = {name: spread(values).to_json() for name, values in times.items()}
    cells = "  ".join(f"{name} {told['median']:8.2f}" for name, told in cpu_ms.items())
    print(f"{what:34s}  {cells}   {over} / {under} {ratio.median:6.2f}", flush=True)
    return {"what": what, "cpu_ms": cpu_ms, "over": over, "under": under, "ratio": ratio.to_json()}


def write(path: Path, rows: list[dict[str, Any]], rounds: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"facts": {**machine_facts(), "rounds": rounds}, "rows": rows}
    path.write_text(json.dumps(found, indent=1) + "\n")
