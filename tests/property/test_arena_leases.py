"""The store and its leases as one state machine: whatever the order of events, nothing mixes."""

import os
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from transport.arena import Arena, SegmentMap
from transport.errors import (
    FeatureLost,
    ItemTooLargeError,
    LeaseExpiredError,
    LeaseNotFoundError,
    StoreFullError,
)
from transport.leases import LeaseTable
from transport.segments import CONTROL_BYTES, PAGE_BYTES

SEGMENTS = (9 * PAGE_BYTES, 5 * PAGE_BYTES)
GRACE_S = 10
SIZES = st.one_of(
    st.integers(0, 2 * PAGE_BYTES), st.sampled_from([PAGE_BYTES - 64, PAGE_BYTES, 5 * PAGE_BYTES])
)


class StoreMachine(RuleBasedStateMachine):
    """Requests, workers, readers and the clock act in any order; a model knows the promises."""

    writing = Bundle("writing")
    leased = Bundle("leased")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.arena = Arena(f"p{os.urandom(6).hex()}", SEGMENTS)
        self.leases = LeaseTable([self.arena], grace_s=GRACE_S, clock=lambda: self.now)
        self.readers = SegmentMap()
        self.next_key = 0
        self.pinned = []  # regions this test holds a pin on, with their pattern or None
        self.promised = {}  # lease id -> (regions, patterns, end of the promise, readers left)
        self.patterns = {}  # generation -> byte, of committed regions
        self.regions = {}  # generation -> region, of all that was ever committed

    def teardown(self):
        for lease_id in self.promised:
            self.leases.release(lease_id)
        for region in self.pinned:
            self.arena.unpin(region)
        self.now += 10_000
        self.leases.sweep()
        assert self.arena.statistics().held_bytes == 0
        self.arena.drop_idle()
        assert self.arena.statistics().free_bytes == self.arena.capacity_bytes
        assert self.arena.statistics().regions == self.arena.statistics().writing == 0
        self.arena.close()

    @rule(target=writing, sizes=st.lists(SIZES, min_size=1, max_size=4), keyed=st.booleans())
    def reserve(self, sizes, keyed):
        return self._reserve(sizes, keyed)

    @rule(target=leased, size=SIZES, readers=st.integers(1, 2), ttl=st.integers(1, 30))
    def whole_request(self, size, readers, ttl):
        return self._commit_and_lease(self._reserve([size], keyed=True), readers, ttl)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def request_nobody_waits_for(self, sizes):
        """Its features stay for look-ups: what eviction lives on."""
        lease_id = self._commit_and_lease(self._reserve(sizes, keyed=True), 1, 1)
        self.release(lease_id, None)

    def _reserve(self, sizes, keyed):
        before = self.arena.statistics()
        wanted = [(f"k{self.next_key + i}" if keyed else None, n) for i, n in enumerate(sizes)]
        self.next_key += len(sizes)
        try:
            regions = self.arena.reserve(wanted)
        except (StoreFullError, ItemTooLargeError):
            # No hold-and-wait: a refused request holds nothing.
            assert self.arena.statistics().held_bytes <= before.held_bytes
            assert self.arena.statistics().writing == before.writing
            return []
        for region in regions:
            self.arena.view(region)[:] = bytes([0xEE]) * region.nbytes
        self.pinned += regions
        return regions

    @rule(
        target=leased, regions=consumes(writing), readers=st.integers(1, 3), ttl=st.integers(1, 30)
    )
    def commit_and_lease(self, regions, readers, ttl):
        return self._commit_and_lease(regions, readers, ttl)

    def _commit_and_lease(self, regions, readers, ttl):
        if not regions:
            return None
        for region in regions:
            pattern = region.generation // 2 % 251
            self.arena.view(region)[:] = bytes([pattern]) * region.nbytes
            self.arena.commit(region)
            self.patterns[region.generation] = pattern
            self.regions[region.generation] = region
        lease = self.leases.grant(regions, ttl_s=ttl, readers=readers)
        self.promised[lease.id] = (regions, self.now + ttl + GRACE_S, set(), readers)
        self._unpin(regions)
        return lease.id

    @rule(regions=consumes(writing), how=st.sampled_from(["abort", "unpin"]))
    def worker_dies(self, regions, how):
        for region in regions:
            if how == "abort":
                self.arena.abort(region)
        self._unpin(regions)

    @rule(regions=consumes(writing), cut=st.integers(0, PAGE_BYTES), target=writing)
    def replan(self, regions, cut):
        smaller = [self.arena.shrink(r, max(0, r.nbytes - cut)) for r in regions]
        self.pinned = [r for r in self.pinned if r not in regions] + smaller
        return smaller

    @rule(regions=consumes(writing), more=st.integers(1, 2 * PAGE_BYTES), target=writing)
    def grow(self, regions, more):
        grown = [self.arena.try_extend(r, r.nbytes + more) or r for r in regions]
        self.pinned = [r for r in self.pinned if r not in regions] + grown
        return grown

    @rule(lease_id=leased, reader=st.sampled_from([None, "a", "b", "c"]))
    def release(self, lease_id, reader):
        if lease_id is None:
            return
        self.leases.release(lease_id, reader)
        promise = self.promised.get(lease_id)
        if promise is not None:
            promise[2].add(reader)
            if reader is None or len(promise[2]) >= promise[3]:
                del self.promised[lease_id]

    @rule(lease_id=leased)
    def revoke(self, lease_id):
        if lease_id is not None:
            self.leases.revoke(lease_id)
            self.promised.pop(lease_id, None)

    @rule(lease_id=leased, ttl=st.integers(1, 30))
    def renew(self, lease_id, ttl):
        if lease_id is None:
            return
        try:
            self.leases.renew(lease_id, ttl)
        except LeaseExpiredError:
            assert lease_id not in self.promised
            return
        regions = self.leases._held[lease_id].regions
        assert all(self.arena.is_ready(region) for region in regions)
        _, _, names, readers = self.promised.get(lease_id, (0, 0, set(), 0))
        readers = self.leases._held[lease_id].readers
        names = set(self.leases._held[lease_id].released_by)
        self.promised[lease_id] = (regions, self.now + ttl + GRACE_S, names, readers)

    @rule(seconds=st.integers(0, 20))
    def time_passes(self, seconds):
        self.now += seconds
        self.leases.sweep()
        for lease_id, promise in list(self.promised.items()):
            if promise[1] <= self.now:
                del self.promised[lease_id]

    @rule()
    def unknown_lease(self):
        try:
            self.leases.release("1-00")
        except LeaseNotFoundError:
            return
        raise AssertionError("a made-up id was taken")

    @invariant()
    def stale_readers_see_the_right_bytes_or_none(self):
        """Whoever kept a location from any time is never shown other bytes under it."""
        for region in list(self.regions.values())[-16:]:
            word = self.readers.generation(region.segment, region.offset)
            assert (word == region.generation) == self.arena.is_ready(region)
            if word == region.generation:
                data = bytes(self.readers.view(region.segment, region.offset, region.nbytes))
                assert data == bytes([self.patterns[region.generation]]) * region.nbytes

    @rule(number=st.integers(0, 15))
    def look_up_again(self, number):
        """A cached answer takes and returns its pin."""
        for region in list(self.regions.values())[-1 - number : -number or None]:
            try:
                self.arena.pin(region)
            except FeatureLost:
                assert not self.arena.stands(region)
            else:
                self.arena.unpin(region)

    @invariant()
    def promises_are_kept(self):
        """Every region under a lease, or in its grace, is whole and readable."""
        for regions, _, _, _ in self.promised.values():
            for region in regions:
                assert self.arena.is_ready(region)
                assert self.readers.generation(region.segment, region.offset) == region.generation
                view = self.readers.view(region.segment, region.offset, region.nbytes)
                assert bytes(view) == bytes([self.patterns[region.generation]]) * region.nbytes

    @invariant()
    def live_regions_do_not_overlap(self):
        """Documents and control blocks of all that stands are apart and on page starts."""
        spans = sorted(
            (e.region.segment, e.region.offset - CONTROL_BYTES, e.region.offset + e.region.nbytes)
            for e in self.arena._by_start.values()
        )
        for segment, start, _ in spans:
            assert start >= CONTROL_BYTES
            assert (start + CONTROL_BYTES) % PAGE_BYTES == 0
            assert segment in dict(self.arena.segments)
        for (segment, _, stop), (next_segment, start, _) in pairwise(spans):
            assert segment != next_segment or stop <= start

    @invariant()
    def every_page_is_accounted_for(self):
        """Free, idle and held pages are all there is, and neighbours that are free have merged."""
        statistics = self.arena.statistics()
        used = sum(e.extent.size for e in self.arena._by_start.values()) * PAGE_BYTES
        assert statistics.free_bytes == statistics.capacity_bytes - used
        free = [e for queue in self.arena._allocator._queues for e in queue]
        assert sum(e.size for e in free) * PAGE_BYTES == statistics.free_bytes
        assert all(e.right is None or not e.right.is_free for e in free)

    def _unpin(self, regions):
        for region in regions:
            self.arena.unpin(region)
        self.pinned = [r for r in self.pinned if r not in regions]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
