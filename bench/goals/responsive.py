"""G8: 32 clients with large pictures while workers are killed: does the loop still answer?"""

import os
import signal
import threading
import time
from array import array
from pathlib import Path

from bench.connection import Connection, get
from bench.process import cpu_seconds, workers
from bench.results import Found, Row, at_most
from bench.sides import Side, service
from bench.stand import Stand, image_recipe, post_order
from bench.stats import Spread, percentile, spread

SIZE = (4000, 3000)
CLIENTS = 32
LIVEZ_GOAL, LAG_GOAL = at_most(50), at_most(20)
PROBE_EVERY_S = 0.01
KILL_EVERY_S = 10.0
"""Longer than a fresh worker takes to be warm: kills faster than that leave nothing to measure."""
FORGIVEN = {"worker_crashed"}
"""What a request may be told whose worker was killed."""


def measure(stand: Stand) -> Found:
    log = stand.folder / "lag"
    settings = {"MMPREP_WORKERS__SPARES": "1"}
    found = Found()
    with service(settings=settings, command=("bench.lagged", str(log), "serve")) as running:
        load = Side("bench.load", running.base_url)
        recipe = image_recipe(stand.jpeg(*SIZE), "shm")
        load.run(**post_order(recipe, CLIENTS, clients=CLIENTS))
        for kills, count in ((False, stand.count(128)), (True, stand.count(128))):
            skipped = log.stat().st_size
            load.begin(**post_order(recipe, max(CLIENTS, count), clients=CLIENTS))
            prober = Prober(running.base_url, running.pid, kills=kills)
            prober.start()
            result = load.end()
            prober.finish()
            others = set(result["codes"]) - FORGIVEN
            if others or (not kills and result["codes"]):
                raise RuntimeError(f"requests failed: {result['codes']}")
            found.rows += _rows(prober, _late_ms(log, skipped), result)
            found.series["killed" if kills else "undisturbed"] = {"livez_ms": prober.times}
        load.close()
    return found


def _rows(prober: "Prober", late: list[float], result: dict) -> list[Row]:
    name = f"{CLIENTS} clients, {SIZE[0]}x{SIZE[1]}"
    if prober.kills:
        name += ", workers killed"
    sides = {
        "requests": str(len(result["seconds"])),
        "kills": str(prober.num_killed),
        "answered worker_crashed": str(sum(result["codes"].values())),
    }
    return [
        Row(f"{name}: /livez, 99th percentile", _p99(prober.times), "ms", LIVEZ_GOAL, sides),
        Row(f"{name}: loop lag, 99th percentile", _p99(late), "ms", LAG_GOAL),
    ]


class Prober(threading.Thread):
    """Asks /livez a hundred times a second, and kills a worker now and then."""

    def __init__(self, address: str, pid: int, *, kills: bool) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.kills = kills
        self.num_killed = 0
        self._connection = Connection(address)
        self._pid = pid
        self._done = threading.Event()

    def run(self) -> None:
        next_kill = time.perf_counter() + KILL_EVERY_S / 2
        while not self._done.wait(PROBE_EVERY_S):
            if self.kills and time.perf_counter() > next_kill:
                next_kill += KILL_EVERY_S
                self._kill_one()
            start = time.perf_counter()
            status, _ = self._connection.exchange(get("/livez"))
            self.times.append((time.perf_counter() - start) * 1e3)
            if status != 200:
                raise RuntimeError(f"/livez answered {status}")

    def _kill_one(self) -> None:
        # The one that has worked most, and only one that this service has started.
        os.kill(max(workers(self._pid), key=cpu_seconds), signal.SIGKILL)
        self.num_killed += 1

    def finish(self) -> None:
        self._done.set()
        self.join()
        self._connection.close()


def _late_ms(log: Path, skipped: int) -> list[float]:
    late = array("d")
    late.frombytes(log.read_bytes()[skipped:])
    return [1e3 * value for value in late]


def _p99(values: list[float]) -> Spread:
    """Return the 99th percentile, with those of the run's quarters as its spread."""
    quarter = max(1, len(values) // 4)
    parts = [percentile(values[i : i + quarter], 99) for i in range(0, len(values), quarter)]
    each = spread(parts)
    return Spread(percentile(values, 99), each.low, each.high, len(values))
