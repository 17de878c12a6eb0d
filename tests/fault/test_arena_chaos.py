"""Ten thousand requests of mixed sizes while workers and consumers are killed at random."""

import collections
import dataclasses
import json
import os
import random
from contextlib import ExitStack

import pytest

from tests.helpers import chaos_processes
from tests.helpers.store_processes import child
from transport.arena import Arena
from transport.errors import StoreFullError
from transport.leases import LeaseTable

NUM_REQUESTS = 10_000
NUM_KEYS = 600
SIZES = (500, 5_000, 40_000, 150_000, 1_000_000)
KILL_EVERY = 150
TTL_S = 20
GRACE_S = 5


class Crew:
    """Processes of one role; one that is killed is replaced."""

    def __init__(self, role, count):
        self.role = role
        self.stack = ExitStack()
        self.members = [self._start() for _ in range(count)]
        self.kills = 0

    def order(self, rng, place):
        """Give an order to one of them; None if it was killed over it."""
        index = rng.randrange(len(self.members))
        member = self.members[index]
        member.process.stdin.write(json.dumps(place) + "\n")
        member.process.stdin.flush()
        if rng.randrange(KILL_EVERY) == 0:
            member.kill()
            self.kills += 1
            self.members[index] = self._start()
            return None
        return member.hear()

    def _start(self):
        return self.stack.enter_context(child(self.role, module=chaos_processes.__name__))


class Run:
    """The service's side: finds or makes each item, leases it, lets it be read."""

    def __init__(self, arena, seed):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.arena = arena
        self.leases = LeaseTable([arena], grace_s=GRACE_S, clock=lambda: self.now)
        self.found = collections.Counter()
        self.old = collections.deque(maxlen=50)

    def request(self, workers, consumers):
        key = self.rng.randrange(NUM_KEYS)
        region = self.arena.lookup(key) or self._make(key, workers)
        self.now += 0.05
        if region is None:
            return
        lease = self.leases.grant([region], ttl_s=TTL_S)
        if not self.arena.is_ready(region):
            raise AssertionError("a lease over nothing")
        self.old.append(region)
        # Now and then somebody reads what was promised to another, long ago.
        late = self.rng.random() < 0.2
        wanted = self.rng.choice(self.old) if late else region
        answer = consumers.order(self.rng, dataclasses.asdict(wanted))
        if answer is None:
            self.found["killed"] += 1
            return  # its lease is left to time
        self.found["late " * late + answer["found"]] += 1
        if self.rng.random() < 0.95:
            self.leases.release(lease.id)

    def _make(self, key, workers):
        try:
            [region] = self.arena.reserve([(key, self.rng.choice(SIZES))])
        except StoreFullError:
            self.found["refused"] += 1
            self.now += 1
            return None
        if workers.order(self.rng, dataclasses.asdict(region)) is None:
            self.found["worker killed"] += 1
            self.arena.abort(region)
            self.arena.unpin(region)
            return None
        self.arena.commit(region)
        self.arena.unpin(region)
        return region


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_read_is_stale_or_mixed_and_nothing_leaks():
    """Every copy is the right item's or known to be lost, and all memory comes back."""
    instance = f"x{os.urandom(6).hex()}"
    workers, consumers = Crew("work", 2), Crew("consume", 2)
    with Arena(instance, [24 << 20, 8 << 20]) as arena, workers.stack, consumers.stack:
        run = Run(arena, seed=5)
        for _ in range(NUM_REQUESTS):
            run.request(workers, consumers)
            statistics = arena.statistics()
            assert statistics.held_bytes + statistics.idle_bytes <= statistics.capacity_bytes
        assert workers.kills > 10
        assert consumers.kills > 10
        assert run.found["mixed"] == run.found["late mixed"] == run.found["lost"] == 0
        assert run.found["good"] > NUM_REQUESTS // 2
        assert run.found["late lost"] > 0
        assert arena.statistics().evictions > 1000
        run.now += TTL_S + GRACE_S
        run.leases.sweep()
        assert run.leases.statistics().leased_bytes == arena.statistics().held_bytes == 0
        arena.drop_idle()
        assert arena.statistics().free_bytes == arena.capacity_bytes
    assert not [name for name in os.listdir("/dev/shm") if instance in name]
