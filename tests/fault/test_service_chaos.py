"""Ten thousand requests over shared memory while consumers and workers are killed at random."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest

from tests.helpers.service import Service, running, shm_files

REQUESTS = 10_000
CONSUMERS = 4
KILL_EVERY_S = 3.0


class Crowd:
    """Consumers that are replaced when they are killed; counts what they say."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.told: Counter[str] = Counter()
        self._url = url
        self._chance = chance
        self._members: list[subprocess.Popen[str]] = []

    @property
    def num_requests(self) -> int:
        return sum(self.told.values())

    def fill(self) -> None:
        self._members = [m for m in self._members if m.poll() is None]
        while len(self._members) < CONSUMERS:
            seed = str(self._chance.randrange(1 << 30))
            member = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.chaos_consumer", self._url, seed],
                stdout=subprocess.PIPE,
                text=True,
            )
            threading.Thread(target=self._listen, args=(member,), daemon=True).start()
            self._members.append(member)

    def kill_one(self) -> None:
        self._chance.choice(self._members).kill()

    def disband(self) -> None:
        for member in self._members:
            member.kill()
            member.wait()

    def _listen(self, member: subprocess.Popen[str]) -> None:
        assert member.stdout is not None
        with member.stdout:
            for line in member.stdout:
                self.told[line.strip()] += 1


def kill_a_worker(service: Service, chance: random.Random) -> None:
    workers = [
        child
        for child in psutil.Process(service.pid).children(recursive=True)
        if "app.worker" in child.cmdline()
    ]
    if workers:
        os.kill(chance.choice(workers).pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_stale_is_read_and_nothing_is_left() -> None:
    """Zero stale or mixed reads, zero leases and held bytes at the end, no file after the stop."""
    before = shm_files()
    chance = random.Random(7)
    env = {
        "MMPREP_STORE__NBYTES": str(64 << 20),
        "MMPREP_LIMITS__FEATURE_BYTES": str(32 << 20),
        "MMPREP_STORE__GRACE_S": "0.5",
        "MMPREP_WORKERS__PROCESSES": "2",
        "MMPREP_TELEMETRY__LOG_LEVEL": "error",
    }
    with running(env=env) as service:
        crowd = Crowd(service.base_url, chance)
        deadline = time.monotonic() + 1500
        try:
            while crowd.num_requests < REQUESTS and time.monotonic() < deadline:
                crowd.fill()
                crowd.kill_one()
                kill_a_worker(service, chance)
                assert service.metric("mmprep_store_held_bytes") <= 64 << 20
                time.sleep(KILL_EVERY_S)
        finally:
            crowd.disband()
        print(dict(crowd.told))
        assert crowd.num_requests >= REQUESTS
        assert not [line for line in crowd.told if line.startswith("WRONG")]
        assert crowd.told["right"] > REQUESTS * 0.8
        settled = time.monotonic() + 30
        while service.metric("mmprep_store_held_bytes") and time.monotonic() < settled:
            time.sleep(0.2)
        assert service.metric("mmprep_store_held_bytes") == 0
        assert service.metric("mmprep_leases_active") == 0
        assert service.stop() == 0
    assert shm_files() <= before
