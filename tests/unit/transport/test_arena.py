"""Regions over shared memory: reserving, keys, pins, eviction, generations."""

import os

import pytest

from transport.arena import Arena, Region, SegmentMap
from transport.errors import FeatureLost, ItemTooLargeError, SegmentError, StoreFullError
from transport.segments import PAGE_BYTES, OwnedSegment, remove_dead_segments, segment_name

PAGES = 16
CAPACITY = PAGES * PAGE_BYTES
ONE = PAGE_BYTES - 64
"""Most bytes of a region that takes one page."""


@pytest.fixture
def instance():
    return f"t{os.urandom(6).hex()}"


@pytest.fixture
def arena(instance):
    with Arena(instance, [CAPACITY + PAGE_BYTES]) as arena:
        yield arena


def _ready(arena, key, nbytes=ONE):
    [region] = arena.reserve([(key, nbytes)])
    arena.commit(region)
    arena.unpin(region)
    return region


def test_a_committed_region_is_read_in_another_mapping(arena):
    """Document, generation and size are where the contract says."""
    [region] = arena.reserve([("k", 1000)])
    reader = SegmentMap()
    assert region.offset % 4096 == 0
    assert reader.generation(region.segment, region.offset) == region.generation - 1
    arena.view(region)[:] = b"x" * 1000
    arena.commit(region)
    assert reader.generation(region.segment, region.offset) == region.generation
    assert reader.word(region.segment, region.offset - 56) == 1000
    assert bytes(reader.view(region.segment, region.offset, region.nbytes)) == b"x" * 1000
    assert reader.view(region.segment, 0, 1).readonly


def test_a_worker_writes_through_its_own_mapping(arena):
    """What a writable map stores, the owner sees."""
    [region] = arena.reserve([("k", 5000)])
    SegmentMap(writable=True).view(region.segment, region.offset, 5)[:] = b"hello"
    assert bytes(arena.view(region)[:5]) == b"hello"


def test_lookup_finds_what_was_committed_only(arena):
    """A region that is being written is not found, and one that was given up never is."""
    [region] = arena.reserve([("k", 10)])
    assert arena.lookup("k") is None
    arena.commit(region)
    assert arena.lookup("k") == region
    [other] = arena.reserve([("other", 10)])
    arena.abort(other)
    arena.abort(other)
    assert arena.lookup("other") is None
    assert (arena.statistics().hits, arena.statistics().misses) == (1, 2)


def test_an_aborted_key_can_be_reserved_at_once(arena):
    """Its memory is free at once; whoever still holds the old region sees it given up."""
    [old] = arena.reserve([("k", 10)])
    arena.pin(old)
    arena.abort(old)
    assert arena.statistics().free_bytes == CAPACITY
    arena.unpin(old)
    [new] = arena.reserve([("k", 10)])
    assert not arena.stands(old)
    assert not arena.is_ready(old)
    for use in (arena.view, arena.pin):
        with pytest.raises(FeatureLost):
            use(old)
    arena.unpin(old)
    assert arena.stands(new)
    assert arena.statistics().regions == 1


def test_a_region_without_a_key_is_gone_with_its_last_pin(arena):
    """Staged bytes are never cached."""
    [region] = arena.reserve([(None, 3 * ONE)])
    assert arena.statistics().held_bytes > 0
    arena.unpin(region)
    assert arena.statistics().free_bytes == CAPACITY


def test_an_uncommitted_region_is_gone_with_its_last_pin(arena):
    """A writer that lets go has given up."""
    [region] = arena.reserve([("k", 10)])
    arena.unpin(region)
    assert not arena.stands(region)
    assert arena.statistics().writing == 0
    assert arena.reserve([("k", 10)])


def test_the_least_recently_used_is_evicted_first(arena):
    """Room comes from what nobody holds, oldest use first, and its key is told."""
    gone = []
    arena.on_evict = gone.append
    regions = [_ready(arena, i) for i in range(PAGES)]
    arena.pin(regions[0])
    arena.unpin(regions[0])
    [new] = arena.reserve([("new", ONE)])
    assert new.offset == regions[1].offset
    assert arena.lookup(1) is None
    assert gone == [1]
    assert arena.lookup(0) == regions[0]
    assert arena.statistics().evictions == 1


def test_eviction_makes_an_old_location_unreadable(arena):
    """Whatever comes to lie there, the old generation is never seen again."""
    old = _ready(arena, "old", PAGES * PAGE_BYTES - 64)
    reader = SegmentMap()
    [new] = arena.reserve([("new", PAGES * PAGE_BYTES - 64)])
    assert new.offset == old.offset
    assert reader.generation(old.segment, old.offset) % 2 == 1
    arena.commit(new)
    assert reader.generation(old.segment, old.offset) == new.generation != old.generation


def test_idle_memory_that_was_dropped_is_odd(arena):
    """Dropping is eviction, not only forgetting."""
    region = _ready(arena, "k")
    arena.drop_idle()
    assert SegmentMap().generation(region.segment, region.offset) % 2 == 1
    assert arena.statistics().free_bytes == CAPACITY


def test_pinned_regions_are_never_evicted(arena):
    """A store full of held regions refuses instead."""
    held = arena.reserve([(i, ONE) for i in range(PAGES)])
    for region in held:
        arena.commit(region)
    with pytest.raises(StoreFullError):
        arena.reserve([("new", 1)])
    assert arena.statistics().refusals == 1
    arena.unpin(held[5])
    assert arena.reserve([("new", 1)])[0].offset == held[5].offset


def test_a_request_gets_all_of_its_regions_or_none(arena):
    """What a refused request had reserved is free again, with its keys."""
    arena.reserve([(None, (PAGES - 3) * PAGE_BYTES - 64)])
    before = arena.statistics().free_bytes
    with pytest.raises(StoreFullError):
        arena.reserve([("a", ONE), ("b", ONE), ("c", 2 * ONE)])
    assert arena.statistics().free_bytes == before
    assert len(arena.reserve([("a", ONE), ("b", ONE), ("c", ONE)])) == 3


def test_room_in_pieces_is_not_room(arena):
    """A refusal for want of one piece leaves nothing behind, and the neighbours alive."""
    regions = [_ready(arena, i) for i in range(PAGES)]
    for region in regions[::2]:
        arena.pin(region)
    with pytest.raises(StoreFullError):
        arena.reserve([("wide", 2 * ONE)])
    assert all(arena.stands(region) for region in regions)
    assert arena.statistics().writing == 0


def test_a_wide_region_evicts_little_more_than_it_needs(arena):
    """Neighbours of the oldest make room in one piece."""
    for i in range(PAGES):
        _ready(arena, i)
    arena.reserve([("wide", 4 * PAGE_BYTES - 64)])
    assert arena.statistics().evictions == 4


def test_freed_memory_is_reused_as_late_as_possible(arena):
    """A region goes where memory has been free for longest."""
    seen = []
    for _ in range(PAGES):
        [region] = arena.reserve([(None, ONE)])
        seen.append(region.offset)
        arena.unpin(region)
    assert len(set(seen)) == PAGES


def test_what_can_never_fit_is_told_apart_from_a_full_store(arena):
    """No waiting helps an item larger than the store."""
    with pytest.raises(ItemTooLargeError):
        arena.reserve([("k", CAPACITY)])
    with pytest.raises(ItemTooLargeError):
        arena.reserve([("a", CAPACITY // 2), ("b", CAPACITY // 2)])
    assert arena.statistics().free_bytes == CAPACITY


def test_an_item_lies_within_one_segment(instance):
    """Two segments hold two items of their size, not one of twice that."""
    size = 4 * PAGE_BYTES
    with Arena(instance, [size + PAGE_BYTES, size + PAGE_BYTES]) as arena:
        with pytest.raises(ItemTooLargeError):
            arena.reserve([("k", size)])
        regions = arena.reserve([("a", size - 64), ("b", size - 64)])
        assert {region.segment for region in regions} == {name for name, _ in arena.segments}
        assert {region.offset for region in regions} == {PAGE_BYTES}


def test_regions_that_do_not_fit_the_segments_never_will(instance):
    """Three of three pages do not fit into two of five, though there are ten."""
    with Arena(instance, [6 * PAGE_BYTES, 6 * PAGE_BYTES]) as arena:
        wanted = [(key, 3 * PAGE_BYTES - 64) for key in "abc"]
        _ready(arena, "old")
        with pytest.raises(ItemTooLargeError):
            arena.reserve(wanted)
        assert arena.statistics().held_bytes == arena.statistics().refusals == 0
        arena.reserve(wanted[:1])
        with pytest.raises(StoreFullError):
            arena.reserve([("d", 3 * PAGE_BYTES - 64), ("e", 3 * PAGE_BYTES - 64)])


def test_keys_are_reserved_once(arena):
    """Two writers of one key are a fault of the caller."""
    arena.reserve([("k", 1)])
    with pytest.raises(ValueError, match="held already"):
        arena.reserve([("k", 1)])
    with pytest.raises(ValueError, match="held already"):
        arena.reserve([("x", 1), ("x", 1)])


def test_staging_grows_in_place_and_gives_back(arena):
    """A download of unknown length takes what it needs."""
    [region] = arena.reserve([(None, ONE)])
    arena.view(region)[:3] = b"abc"
    larger = arena.try_extend(region, 3 * ONE)
    assert larger is not None
    assert larger.offset == region.offset
    assert len(arena.view(larger)) == 3 * ONE
    assert bytes(arena.view(larger)[:3]) == b"abc"
    arena.reserve([(None, 1)])
    assert arena.try_extend(larger, PAGES * ONE) is None
    smaller = arena.shrink(larger, 10)
    assert arena.statistics().held_bytes == 2 * PAGE_BYTES
    assert len(arena.view(smaller)) == 10
    with pytest.raises(ValueError, match="does not grow"):
        arena.shrink(smaller, 11)
    assert SegmentMap().word(region.segment, region.offset - 56) == 10


def test_misuse_is_an_error(arena):
    """States are checked, so that a fault of the caller cannot corrupt the store."""
    region = _ready(arena, "k")
    with pytest.raises(ValueError, match="not pinned"):
        arena.unpin(region)
    with pytest.raises(ValueError, match="not being written"):
        arena.commit(region)
    with pytest.raises(ValueError, match="not being written"):
        arena.abort(region)
    with pytest.raises(ValueError, match="negative"):
        arena.reserve([("x", -1)])
    with pytest.raises(FeatureLost):
        arena.pin(Region(region.segment, region.offset, 1, 12))


def test_generations_fit_every_json_reader(arena):
    """They stay below 2**53 and are even when ready."""
    region = _ready(arena, "k")
    assert region.generation % 2 == 0
    assert region.generation < 2**53


def test_nothing_is_left_after_close(instance):
    """Closing removes the files, also while a view is still held."""
    arena = Arena(instance, [CAPACITY])
    [region] = arena.reserve([("k", 10)])
    view = arena.view(region)
    arena.close()
    arena.close()
    view[:] = b"0123456789"
    assert not os.path.exists(f"/dev/shm/{region.segment}")


def test_mode_of_the_segment_is_what_was_asked_for(instance):
    """A consumer of another user reads it by group or by others."""
    with Arena(instance, [CAPACITY], mode=0o640, group=os.getgid()) as arena:
        info = os.stat(f"/dev/shm/{arena.segments[0][0]}")
        assert info.st_mode & 0o777 == 0o640
        assert info.st_gid == os.getgid()


def test_too_small_or_badly_named_stores_are_refused(instance):
    """Settings that make no sense stop the start."""
    with pytest.raises(SegmentError):
        Arena(instance, [PAGE_BYTES])
    with pytest.raises(SegmentError):
        Arena("no/slash", [CAPACITY])


def test_a_name_that_is_taken_is_not_shared(instance):
    """Two owners of one instance name cannot be."""
    with Arena(instance, [CAPACITY]), pytest.raises(SegmentError):
        Arena(instance, [CAPACITY])


def test_a_mapping_refuses_what_is_not_ours(instance, tmp_path):
    """Names are checked, links are not followed, parts stay inside, other files are refused."""
    segments = SegmentMap(str(tmp_path))
    for name in ("../etc/passwd", "/etc/passwd", "mmprep-x-y-0\n", "other-x-y-0"):
        with pytest.raises(SegmentError):
            segments.view(name, 0, 1)
    name = segment_name(instance, "store", 0)
    with pytest.raises(FeatureLost):
        segments.view(name, 0, 1)
    (tmp_path / name).symlink_to("/etc/hostname")
    with pytest.raises(SegmentError):
        segments.view(name, 0, 1)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(SegmentError):
        segments.view(name, 0, 1)


def test_a_mapping_refuses_parts_outside(arena):
    """A location that lies gives an error, not other memory."""
    segments, (name, nbytes) = SegmentMap(), arena.segments[0]
    for offset, length in ((-1, 1), (0, -1), (nbytes, 1), (0, nbytes + 1)):
        with pytest.raises(SegmentError):
            segments.view(name, offset, length)
    with pytest.raises(SegmentError):
        segments.word(name, 4)
    with pytest.raises(SegmentError):
        segments.generation(name, 0)


def test_a_mapping_lets_go_of_servers_that_stopped(instance):
    """A consumer that outlives many servers keeps no memory of theirs, unless it holds a view."""
    segments = SegmentMap(populate=True)
    for number in range(3):
        with Arena(f"{instance}{number}", [CAPACITY]) as arena:
            held = segments.view(arena.segments[0][0], 0, 8)
            if number == 1:
                kept = held
    with open("/proc/self/maps") as maps:
        assert sum(instance in line for line in maps) == 2
    assert bytes(kept) == bytes(8)
    del kept, held
    segments.close()
    with open("/proc/self/maps") as maps:
        assert sum(instance in line for line in maps) == 0


def test_cleaning_up_leaves_everything_alive_alone(instance, tmp_path):
    """Only a regular file of our name whose lock is free is removed."""
    alive = OwnedSegment(segment_name(instance, "a", 0), 4096, directory=str(tmp_path))
    dead = segment_name(instance, "b", 0)
    (tmp_path / dead).write_bytes(b"x")
    (tmp_path / segment_name(instance, "c", 0)).symlink_to(tmp_path / "target")
    (tmp_path / segment_name(instance, "d", 0)).mkdir()
    os.mkfifo(tmp_path / segment_name(instance, "e", 0))
    (tmp_path / "mmprep-foreign").write_bytes(b"x")
    (tmp_path / "target").write_bytes(b"x")
    before = set(os.listdir(tmp_path))
    assert remove_dead_segments(str(tmp_path)) == [dead]
    assert set(os.listdir(tmp_path)) == before - {dead}
    alive.close()
