"""The store when processes die, memory runs out and readers are late."""

import dataclasses
import hashlib
import os
import subprocess
import threading
from contextlib import ExitStack

import pytest

from tests.helpers.store_processes import child, pattern_of
from transport.arena import Arena, SegmentMap
from transport.errors import FeatureLost, SegmentError, StoreFullError
from transport.leases import LeaseTable
from transport.segments import PAGE_BYTES, OwnedSegment, remove_dead_segments, segment_name
from transport.shm import ShmReader
from transport.wire import ShmLocation

MIB = 1 << 20


@pytest.fixture
def instance():
    return f"f{os.urandom(6).hex()}"


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def arena(instance):
    with Arena(instance, [2 * MIB]) as arena:
        yield arena


@pytest.fixture
def leases(arena, now):
    return LeaseTable([arena], grace_s=60, clock=lambda: now[0])


def _ready(arena, key="k", nbytes=MIB):
    [region] = arena.reserve([(key, nbytes)])
    arena.view(region)[:] = bytes([pattern_of(region.generation)]) * nbytes
    arena.commit(region)
    arena.unpin(region)
    return region


def _place(region):
    return dataclasses.asdict(region)


def test_a_killed_consumer_leaves_its_lease_to_time(arena, leases, now):
    """Its region stays for other readers, and is free after time and grace: nothing leaks."""
    region = _ready(arena)
    lease = leases.grant([region], ttl_s=300)
    with child("hold", **_place(region)) as consumer:
        consumer.hear()
        consumer.kill()
    with pytest.raises(StoreFullError):
        arena.reserve([("other", MIB)])
    assert len(ShmReader().read(ShmLocation(**_place(region)))) == MIB
    now[0] = 360
    assert arena.reserve([("other", MIB)])
    assert leases.statistics().leased_bytes == 0
    assert not arena.stands(region)
    leases.release(lease.id)


def test_a_killed_owner_is_cleaned_up_after_and_its_neighbour_is_not(arena, instance):
    """Starting an instance removes what only the dead one left; readers keep what they mapped."""
    alive = _ready(arena)
    with child("own", instance=f"{instance}dead", nbytes=MIB) as owner:
        place = owner.hear()
        assert remove_dead_segments() == []
        reader = ShmReader()
        with reader.open(ShmLocation(**place)) as view:
            owner.kill()
            assert os.path.exists(f"/dev/shm/{place['segment']}")
            with Arena(f"{instance}new", [MIB]):
                assert not os.path.exists(f"/dev/shm/{place['segment']}")
            assert bytes(view) == bytes([pattern_of(place["generation"])]) * 1000
        with pytest.raises(FeatureLost):
            ShmReader().read(ShmLocation(**place))
    assert len(ShmReader().read(ShmLocation(**_place(alive)))) == MIB


def test_an_owner_that_ends_well_leaves_nothing(instance):
    """Its segment goes with it."""
    with child("own", instance=instance, nbytes=MIB) as owner:
        place = owner.hear()
        owner.process.communicate()
        assert not os.path.exists(f"/dev/shm/{place['segment']}")


def test_a_worker_killed_while_writing_leaves_no_readable_region(arena):
    """The generation stays odd; given up, the memory serves the next one."""
    [region] = arena.reserve([("k", MIB + PAGE_BYTES)])
    with child("write", segment=region.segment, offset=region.offset, nbytes=MIB) as worker:
        worker.hear()
        worker.kill()
    with pytest.raises(FeatureLost):
        ShmReader().read(ShmLocation(**_place(region)))
    arena.abort(region)
    arena.unpin(region)
    assert arena.statistics().free_bytes == arena.capacity_bytes
    again = _ready(arena, "k", MIB + PAGE_BYTES)
    assert len(ShmReader().read(ShmLocation(**_place(again)))) == MIB + PAGE_BYTES


def test_a_full_store_refuses_until_something_is_released(arena, leases):
    """No request waits for another while it holds something; the refused can come back."""
    regions = arena.reserve([(i, 64 * 1024 - 64) for i in range(30)])
    for region in regions:
        arena.commit(region)
    held = [leases.grant([region], ttl_s=300) for region in regions]
    for region in regions:
        arena.unpin(region)
    for _ in range(100):
        with pytest.raises(StoreFullError):
            arena.reserve([("a", 64 * 1024), ("b", 128 * 1024)])
    assert arena.statistics().writing == 0
    for lease in held[10:16]:
        leases.release(lease.id)
    assert len(arena.reserve([("a", 64 * 1024), ("b", 128 * 1024)])) == 2
    assert all(arena.is_ready(region) for region in regions[:10] + regions[16:])


def test_more_than_the_file_system_has_is_an_error_at_start(instance):
    """Told with both numbers and what would help; nothing is left of the attempt."""
    file_system = os.statvfs("/dev/shm")
    too_much = (file_system.f_blocks + (1 << 20)) * file_system.f_frsize
    with pytest.raises(SegmentError, match="shm-size"):
        Arena(instance, [MIB, too_much])
    assert not [name for name in os.listdir("/dev/shm") if instance in name]


def test_a_full_file_system_is_an_error_at_start(instance, tmp_path):
    """The same on a small file system of its own that another process has filled."""
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount; the test above covers the same path")
    try:
        (tmp_path / "other").write_bytes(bytes(600_000))
        with pytest.raises(SegmentError, match="bytes free"):
            Arena(instance, [512 * 1024], directory=str(tmp_path))
        assert os.listdir(tmp_path) == ["other"]
        with Arena(instance, [256 * 1024], directory=str(tmp_path)) as arena:
            assert _ready(arena, nbytes=100_000)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_region_recycled_while_it_is_read_is_never_taken_for_fresh(arena):
    """A reader that never takes a lease, against an owner that recycles one place all the time."""
    size = 2 * MIB - 2 * PAGE_BYTES
    first = _ready(arena, "first", size)
    stop = SegmentMap(writable=True).view(first.segment, 0, 8)
    with child("watch", segment=first.segment, offset=first.offset, nbytes=size) as reader:
        reader.hear()
        for key in range(1000):
            assert _ready(arena, key, size).offset == first.offset
        stop[0] = 1
        counts = reader.hear()
    assert counts["mixed"] == 0
    assert counts["good"] + counts["lost"] > 0


def test_eight_readers_share_one_region(arena, leases, now):
    """All see the same bytes at once; the region is theirs until the last has released it."""
    region = _ready(arena)
    lease = leases.grant([region], ttl_s=300, readers=8)
    wanted = hashlib.sha256(arena.view(region)).hexdigest()
    with ExitStack() as stack:
        readers = [stack.enter_context(child("hold", **_place(region))) for _ in range(8)]
        assert {reader.hear()["digest"] for reader in readers} == {wanted}
        for number, reader in enumerate(readers[:7]):
            reader.process.stdin.close()
            assert reader.hear() == {"unchanged": True}
            leases.release(lease.id, f"reader-{number}")
        assert leases.statistics().active == 1
        readers[7].kill()
        now[0] = 360
        leases.sweep()
    assert leases.statistics().active == leases.statistics().in_grace == 0
    assert arena.reserve([("other", MIB)])


def test_cleaners_and_creators_do_not_meet(instance, tmp_path):
    """However a cleaner's steps fall between a creator's, a live segment keeps its name."""
    done = threading.Event()

    def clean():
        while not done.is_set():
            remove_dead_segments(str(tmp_path))

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for number in range(300):
            name = segment_name(instance, "store", number)
            segment = OwnedSegment(name, PAGE_BYTES, directory=str(tmp_path))
            assert os.fstat(segment._fd).st_nlink == 1
            assert (tmp_path / name).exists()
            segment.close()
    finally:
        done.set()
        cleaner.join()
    assert os.listdir(tmp_path) == []
