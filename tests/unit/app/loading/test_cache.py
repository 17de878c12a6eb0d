"""The cache: freshness as Cache-Control says it, bytes as the budget says."""

import pytest

from app.loading.cache import ByteCache, freshness_s


@pytest.mark.parametrize(
    ("cache_control", "age", "vary", "expected"),
    [
        ("", "", "", 0),
        ("max-age=60", "", "", 60),
        ("public, max-age=60", "20", "", 40),
        ("max-age=60", "100", "", 0),
        ('MAX-AGE="60"', "", "", 60),
        ("max-age=60, s-maxage=10", "", "", 10),
        ("max-age=60, s-maxage=0", "", "", 0),
        ("no-store, max-age=60", "", "", 0),
        ("no-cache, max-age=60", "", "", 0),
        ("private, max-age=60", "", "", 0),
        ("max-age=60", "", "*", 0),
        ("max-age=60", "", "Accept-Encoding", 60),
        ("max-age=-1", "", "", 0),
        ("max-age=x", "", "", 0),
        ("max-age=60", "x", "", 60),
        ("immutable", "", "", 0),
        (",;=", "", "", 0),
    ],
)
def test_freshness(cache_control: str, age: str, vary: str, expected: float) -> None:
    """Nothing is kept that a server does not allow to be kept."""
    assert freshness_s(cache_control, age, vary) == expected


class Held:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


def test_entries_expire_and_are_given_back_once() -> None:
    """After its time, or the cache's own, an entry is gone."""
    now = 0.0
    cache: ByteCache[Held] = ByteCache(100, 10, clock=lambda: now)
    short, long = Held(10), Held(10)
    cache.put("short", short, 5)
    cache.put("long", long, 1000)
    assert cache.get("short") is short
    now = 6.0
    assert cache.get("short") is None
    assert cache.get("long") is long
    now = 11.0
    assert cache.get("long") is None
    assert (short.num_released, long.num_released) == (1, 1)
    assert cache.nbytes == 0


def test_the_least_recently_used_make_room() -> None:
    """The budget holds at every moment."""
    cache: ByteCache[Held] = ByteCache(30, 10)
    held = [Held(10) for _ in range(4)]
    for key in range(3):
        cache.put(key, held[key], 5)
    assert cache.get(0) is held[0]
    cache.put(3, held[3], 5)
    assert cache.nbytes == 30
    assert cache.get(1) is None
    assert cache.get(0) is held[0]


def test_replacing_and_clearing_give_back() -> None:
    """No entry is lost without its release."""
    cache: ByteCache[Held] = ByteCache(30, 10)
    old, new = Held(10), Held(20)
    cache.put("a", old, 5)
    cache.put("a", new, 5)
    assert (old.num_released, cache.nbytes) == (1, 20)
    cache.clear()
    assert (new.num_released, cache.nbytes) == (1, 0)
    assert not cache.evict()


def test_what_would_not_fit_is_not_kept() -> None:
    """Too big, empty or stale things are refused beforehand."""
    cache: ByteCache[Held] = ByteCache(30, 10)
    assert cache.can_keep(30, 1)
    assert not cache.can_keep(31, 1)
    assert not cache.can_keep(0, 1)
    assert not cache.can_keep(10, 0)
    assert not ByteCache(0, 10).can_keep(1, 1)
