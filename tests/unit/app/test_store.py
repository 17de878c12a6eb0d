"""Finding, joining and making features."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.store import FeatureStore, Had, Wanted
from processors.errors import MediaDecodeError
from processors.types import FieldLayout, ItemPlan, MediaInfo, Modality, ProcessReport, TensorSpec
from transport.arena import Arena, Region
from transport.errors import FeatureLost, StoreFullError
from transport.safetensors import TensorEntry, build_layout

REPORT = ProcessReport(1.0, 2.0)


@pytest.fixture
def store() -> Iterator[FeatureStore]:
    with Arena("teststore", [64 * 4096]) as arena:
        yield FeatureStore(arena)
        assert arena.statistics().held_bytes == 0


def want(
    name: str,
    make: Callable[[Region], Coroutine[None, None, ProcessReport]],
    elements: int = 8,
) -> Wanted:
    tensor = TensorSpec("x", "uint8", (elements,), "feature", FieldLayout("batched"))
    plan = ItemPlan(
        Modality.IMAGE, MediaInfo(Modality.IMAGE, "image/png", 1), None, 0, None, (tensor,)
    )
    layout = build_layout([TensorEntry("x", "uint8", (elements,))])
    return Wanted((name, "float32", "plain"), plan, (tensor,), layout, make)


class Maker:
    """Fills regions when told to, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()

    async def __call__(self, region: Region) -> ProcessReport:
        self.calls += 1
        await self.go.wait()
        return REPORT


def release(store: FeatureStore, had: Had | BaseException) -> None:
    assert isinstance(had, Had)
    store.arena.unpin(had.stored.region)


async def test_what_was_made_is_found(store: FeatureStore) -> None:
    """The second request for a key is answered from the store."""
    make = Maker()
    make.go.set()
    (first,) = await store.have([want("a", make)])
    (second,) = await store.have([want("a", make)])
    assert make.calls == 1
    assert isinstance(first, Had)
    assert isinstance(second, Had)
    assert (first.report, second.report) == (REPORT, None)
    release(store, first)
    release(store, second)


async def test_equal_items_in_flight_are_made_once(store: FeatureStore) -> None:
    """Two requests, and two items of one request, share one making."""
    make = Maker()
    tasks = [asyncio.create_task(store.have([want("a", make), want("a", make)])) for _ in range(2)]
    await asyncio.sleep(0)
    make.go.set()
    for had in [h for task in tasks for h in await task]:
        release(store, had)
    assert make.calls == 1


async def test_a_waiter_that_leaves_does_not_stop_the_others(store: FeatureStore) -> None:
    """Shared work goes on while anyone waits."""
    make = Maker()
    leaver = asyncio.create_task(store.have([want("a", make)]))
    stayer = asyncio.create_task(store.have([want("a", make)]))
    await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    make.go.set()
    release(store, (await stayer)[0])


async def test_work_nobody_waits_for_is_given_up(store: FeatureStore) -> None:
    """The last waiter's leaving cancels the making and frees the region."""
    make = Maker()
    task = asyncio.create_task(store.have([want("a", make)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.settle()
    assert store.find(("a", "float32", "plain")) is None


async def test_begun_work_goes_on_without_waiters(store: FeatureStore) -> None:
    """`begin` returns at once; the features are found by key later."""
    make = Maker()
    (stored,) = await store.begin([want("a", make)])
    assert store.is_pending(stored.key) is not None
    make.go.set()
    await store.wait(stored.key)
    assert store.find(stored.key) == stored
    store.arena.unpin(stored.region)


async def test_a_failure_nobody_waited_for_is_told_later(store: FeatureStore) -> None:
    """Whoever asks by key gets the error of work that was begun and failed."""

    async def fail(region: Region) -> ProcessReport:
        raise MediaDecodeError("cut")

    (stored,) = await store.begin([want("a", fail)])
    store.arena.unpin(stored.region)
    await store.settle()
    with pytest.raises(MediaDecodeError):
        await store.wait(stored.key)


async def test_a_failure_is_told_to_all_and_leaves_nothing(store: FeatureStore) -> None:
    """Every waiter gets the error; the key is free for another try."""

    async def fail(region: Region) -> ProcessReport:
        raise MediaDecodeError("cut")

    outcomes = await store.have([want("a", fail), want("a", fail)])
    assert all(isinstance(o, MediaDecodeError) for o in outcomes)
    make = Maker()
    make.go.set()
    release(store, (await store.have([want("a", make)]))[0])


async def test_reservation_is_all_or_nothing(store: FeatureStore) -> None:
    """Where not all of a request fits, none of it is begun."""
    make = Maker()
    make.go.set()
    (held,) = await store.have([want("a", make, elements=40 * 4096)])
    with pytest.raises(StoreFullError):
        await store.have([want("b", make, 4096), want("c", make, 40 * 4096)])
    assert make.calls == 1
    release(store, held)
    for had in await store.have([want("b", make, 4096), want("c", make, 40 * 4096)]):
        release(store, had)


class StubbornMaker(Maker):
    """Cannot stop once it runs, like a worker that writes: cancelled, it waits for the end."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    async def __call__(self, region: Region) -> ProcessReport:
        self.calls += 1
        self.began.set()
        try:
            await asyncio.shield(going := asyncio.ensure_future(self.go.wait()))
        except asyncio.CancelledError:
            await asyncio.wait((going,))
            raise
        return REPORT


@pytest.mark.parametrize("begins", [False, True])
async def test_work_that_is_being_given_up_is_not_joined(store: FeatureStore, begins: bool) -> None:
    """Who comes while a given-up making still writes waits for its end, and makes anew."""
    make = StubbornMaker()
    leaver = asyncio.create_task(store.have([want("a", make)]))
    await make.began.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    comer: asyncio.Task[list[Any]]
    if begins:
        comer = asyncio.create_task(store.begin([want("a", make)]))
    else:
        comer = asyncio.create_task(store.have([want("a", make)]))
    await asyncio.sleep(0)
    make.go.set()
    (got,) = await comer
    await store.settle()
    assert store.find(("a", "float32", "plain")) is not None
    assert make.calls == 2
    store.arena.unpin(got.region if begins else got.stored.region)


async def test_what_cannot_be_held_fails_without_a_trace(store: FeatureStore) -> None:
    """Where the making's sources are gone, no region and no key stays behind."""

    def gone() -> None:
        raise FeatureLost("gone")

    make = Maker()
    make.go.set()
    broken = replace(want("b", make), hold=gone)
    with pytest.raises(FeatureLost):
        await store.have([want("a", make), broken, want("c", make)])
    await store.settle()
    for had in await store.have([want("b", make), want("c", make)]):
        release(store, had)
