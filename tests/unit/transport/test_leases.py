"""Leases: granting, readers, expiry, grace, renewal, quota."""

import os

import pytest

from transport.arena import Arena
from transport.errors import (
    FeatureLost,
    ItemTooLargeError,
    LeaseExpiredError,
    LeaseNotFoundError,
    StoreFullError,
)
from transport.leases import LeaseTable
from transport.segments import PAGE_BYTES

CAPACITY = 8 * PAGE_BYTES


class Clock:
    """Time that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def arena():
    with Arena(f"t{os.urandom(6).hex()}", [CAPACITY + PAGE_BYTES]) as arena:
        yield arena


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leases(arena, clock):
    return LeaseTable([arena], grace_s=60, clock=clock)


def _ready(arena, key, nbytes=1000):
    [region] = arena.reserve([(key, nbytes)])
    arena.commit(region)
    arena.unpin(region)
    return region


def _is_held(arena):
    return arena.statistics().held_bytes > 0


def test_a_lease_holds_its_regions_until_released(arena, leases):
    """Released without a name, they are evictable at once, and stay for look-ups."""
    region = _ready(arena, "k")
    lease = leases.grant([region, region], ttl_s=300)
    assert _is_held(arena)
    leases.release(lease.id)
    assert not _is_held(arena)
    assert arena.lookup("k") == region


def test_release_is_idempotent_for_every_lease_ever_issued(arena, leases, clock):
    """Released, expired, revoked, forgotten: 204 each time; what was never issued: unknown."""
    region = _ready(arena, "k")
    ended, expired, revoked = (leases.grant([region], ttl_s=10).id for _ in range(3))
    leases.release(ended)
    leases.revoke(revoked)
    clock.now += 1000
    arena.drop_idle()
    for lease_id in (ended, expired, revoked):
        leases.release(lease_id)
        leases.release(lease_id, "reader")
    for lease_id in ("", "1", "1-", ended[:-1], ended + "0", "0" + ended, "é-é", "2-" + ended[2:]):
        with pytest.raises(LeaseNotFoundError):
            leases.release(lease_id)
    assert leases.release_many([ended, "x"], "r") == {ended: "released", "x": "unknown"}


def test_another_instance_did_not_issue_it(arena, leases):
    """A lease id means nothing after a restart."""
    lease = leases.grant([_ready(arena, "k")], ttl_s=1)
    with pytest.raises(LeaseNotFoundError):
        LeaseTable([arena]).release(lease.id)


def test_all_readers_must_release(arena, leases):
    """Distinct names count, repeated ones do not."""
    lease = leases.grant([_ready(arena, "k")], ttl_s=300, readers=3)
    for name in ("a", "a", "b", "b"):
        leases.release(lease.id, name)
        assert _is_held(arena)
    leases.release(lease.id, "c")
    assert not _is_held(arena)


def test_a_region_under_two_leases_stays_for_the_second(arena, leases):
    """Leases of different answers do not end each other."""
    region = _ready(arena, "k")
    first, second = leases.grant([region], ttl_s=1), leases.grant([region], ttl_s=1)
    leases.release(first.id)
    assert _is_held(arena)
    leases.release(second.id)
    assert not _is_held(arena)


def test_expired_regions_are_kept_for_the_grace(arena, leases, clock):
    """A reader that is a little late still finds what it was promised."""
    region = _ready(arena, "k")
    lease = leases.grant([region], ttl_s=300)
    clock.now += 300
    with pytest.raises(StoreFullError):
        arena.reserve([("big", CAPACITY - 64)])
    with pytest.raises(LeaseExpiredError):
        leases.require(lease.id, [region])
    assert leases.statistics().in_grace == 1
    clock.now += 60
    assert arena.reserve([("big", CAPACITY - 64)])
    assert not arena.stands(region)
    assert leases.statistics().expired == 1


@pytest.mark.parametrize("late_s", [100, 320, 1000])
def test_renewing_works_while_the_regions_stand(arena, leases, clock, late_s):
    """Active, in grace or lapsed: the lease runs again for its own time."""
    region = _ready(arena, "k")
    lease = leases.grant([region], ttl_s=300)
    clock.now += late_s
    leases.sweep()
    assert leases.renew(lease.id).ttl_s == 300
    clock.now += 299
    leases.require(lease.id, [region])
    clock.now += 1
    with pytest.raises(LeaseExpiredError):
        leases.require(lease.id, [region])


def test_a_shorter_renewal_is_shorter(arena, leases, clock):
    """The time asked for counts, in either direction."""
    region = _ready(arena, "k")
    lease = leases.grant([region], ttl_s=300)
    leases.renew(lease.id, 5)
    clock.now += 5
    assert leases.renew_many([lease.id], 5) == {lease.id: "renewed"}
    clock.now += 65
    leases.sweep()
    assert not _is_held(arena)
    assert leases.statistics().expired == 2


def test_ended_leases_and_lost_regions_are_not_renewed(arena, leases, clock):
    """Renewing never brings back what may be overwritten."""
    region = _ready(arena, "k")
    released, lapsed = leases.grant([region], ttl_s=1), leases.grant([region], ttl_s=1)
    leases.release(released.id)
    clock.now += 100
    leases.sweep()
    arena.drop_idle()
    ids = [released.id, lapsed.id, "x"]
    statuses = dict(zip(ids, ["expired", "expired", "unknown"], strict=True))
    assert leases.renew_many(ids) == statuses
    assert leases.renew_many([lapsed.id]) == {lapsed.id: "expired"}


def test_a_lapsed_lease_can_be_released_but_not_read_under(arena, leases, clock):
    """After the grace only renewal brings it back."""
    region = _ready(arena, "k")
    lease = leases.grant([region], ttl_s=1)
    clock.now += 100
    with pytest.raises(LeaseExpiredError):
        leases.require(lease.id, [region])
    leases.release(lease.id)
    with pytest.raises(LeaseExpiredError):
        leases.renew(lease.id)


def test_revoked_leases_hold_nothing(arena, leases):
    """An answer that was not written whole leaves no lease."""
    lease = leases.grant([_ready(arena, "k")], ttl_s=1, readers=4)
    leases.revoke(lease.id)
    leases.revoke(lease.id)
    leases.revoke("never issued")
    assert not _is_held(arena)
    assert leases.statistics().revoked == 1


def test_a_lease_covers_its_own_regions_only(arena, leases):
    """With a private store, another answer's lease opens nothing."""
    mine, other = _ready(arena, "a"), _ready(arena, "b")
    lease = leases.grant([mine], ttl_s=1)
    leases.require(lease.id, [mine])
    with pytest.raises(LeaseNotFoundError):
        leases.require(lease.id, [other])


def test_the_quota_bounds_leased_bytes_per_owner(arena, clock):
    """Whoever holds too much waits, and others do not."""
    leases = LeaseTable([arena], quota_bytes=2000, clock=clock)
    a, b = _ready(arena, "a"), _ready(arena, "b")
    first = leases.grant([a, b], ttl_s=100, owner="one")
    with pytest.raises(StoreFullError):
        leases.grant([a], ttl_s=1, owner="one")
    leases.grant([a], ttl_s=1, owner="two")
    with pytest.raises(ItemTooLargeError):
        leases.require_quota(2001, owner="three")
    leases.release(first.id)
    leases.require_quota(2000, owner="one")


def test_a_lapsed_lease_does_not_come_back_over_the_quota(arena, clock):
    """Renewal is no way around the quota."""
    leases = LeaseTable([arena], quota_bytes=1000, grace_s=0, clock=clock)
    region = _ready(arena, "k")
    lapsed = leases.grant([region], ttl_s=1)
    clock.now += 1
    leases.grant([region], ttl_s=1)
    with pytest.raises(LeaseExpiredError):
        leases.renew(lapsed.id)


def test_granting_is_all_or_nothing(arena, leases):
    """One region that is gone leaves none leased."""
    gone = _ready(arena, "gone")
    arena.drop_idle()
    region = _ready(arena, "k")
    with pytest.raises(FeatureLost):
        leases.grant([region, gone], ttl_s=1)
    assert not _is_held(arena)
    for regions, ttl_s, readers in (([], 1, 1), ([region], 0, 1), ([region], 1, 0)):
        with pytest.raises(ValueError, match="a lease needs"):
            leases.grant(regions, ttl_s=ttl_s, readers=readers)


def test_a_lease_over_a_failed_region_ends_well(arena, leases):
    """Features promised and never made: the lease holds no memory and cannot be renewed later."""
    [region] = arena.reserve([("k", 1000)])
    lease = leases.grant([region], ttl_s=1)
    arena.abort(region)
    arena.unpin(region)
    assert not _is_held(arena)
    leases.release(lease.id)
    assert arena.statistics().regions == 0


def test_leases_of_one_table_span_stores(arena, leases, clock):
    """One answer may lie in shared memory and in a pool."""
    with Arena(f"t{os.urandom(6).hex()}", [CAPACITY], purpose="pool") as pool:
        leases = LeaseTable([arena, pool], clock=clock)
        lease = leases.grant([_ready(arena, "a"), _ready(pool, "b")], ttl_s=1)
        assert _is_held(arena)
        assert _is_held(pool)
        leases.release(lease.id)
        assert not _is_held(arena)
        assert not _is_held(pool)


def test_ended_leases_leave_nothing_behind(arena, leases):
    """Many short leases take no more memory than few."""
    region = _ready(arena, "k")
    for _ in range(1000):
        leases.release(leases.grant([region], ttl_s=1800).id)
    assert len(leases._queue) <= 65
    assert leases.statistics().leased_bytes == 0
    assert leases.statistics().granted == leases.statistics().released == 1000


def test_lapsed_leases_are_remembered_up_to_a_bound(arena, leases, clock, monkeypatch):
    """Beyond it the oldest count as expired, though their regions stand."""
    monkeypatch.setattr("transport.leases._MAX_LAPSED", 2)
    region = _ready(arena, "k")
    ids = [leases.grant([region], ttl_s=1 + n).id for n in range(3)]
    clock.now += 100
    statuses = leases.renew_many(ids)
    assert list(statuses.values()) == ["expired", "renewed", "renewed"]
