"""Deriving variants: what they are made of stays, and nothing is written to freed memory."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app import derive
from app.derive import Deriver
from app.describe import describe_tensors
from app.documents import item_metadata
from app.encodings import encode
from app.store import FeatureStore, Had, Key, Stored, Wanted
from processors.types import (
    FieldLayout,
    ItemPlan,
    LutEncoding,
    MediaInfo,
    Modality,
    ProcessReport,
    TensorSpec,
)
from transport.arena import Arena, Region
from transport.errors import StoreFullError
from transport.safetensors import TensorEntry, build_layout, data_offsets, parse_document

PIXELS = 64 * 64
SHAPE = (3, PIXELS)
NAME = "pixel_values"
COMPACT = LutEncoding(SHAPE, 0, 1, None, SHAPE, "float32")
FEATURE = TensorSpec(
    NAME, "float32", SHAPE, "feature", FieldLayout("flat"), normalized=True, compact=COMPACT
)
PLAN = ItemPlan(
    Modality.IMAGE, MediaInfo(Modality.IMAGE, "image/png", 1), None, 0, None, (FEATURE,)
)
PAGE = 4096


def codes() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)


def table() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)


def plain() -> np.ndarray:
    return np.take_along_axis(table(), codes().astype(np.int64), axis=1)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def opened(pages: int, name: str) -> Arena:
    return Arena(name, [pages * PAGE])


async def store_codes(store: FeatureStore, name: str = "a") -> Stored:
    """Store an item's codes, idle."""
    tensors = encode(PLAN.tensors, "compact", "float32")
    entries = [TensorEntry(t.name, t.dtype, t.shape) for t in tensors]
    layout = build_layout(entries, item_metadata(describe_tensors(tensors, data_offsets(entries))))

    async def make(region: Region) -> ProcessReport:
        view = store.arena.view(region)
        view[: layout.data_start] = layout.header
        for tensor, values in zip(tensors, (codes(), table()), strict=True):
            start = layout.data_start + layout.offsets[tensor.name]
            view[start : start + tensor.nbytes] = values.tobytes()
        return ProcessReport(0.0, 0.0)

    want = Wanted((name, "float32", "compact"), PLAN, tensors, layout, make)
    (had,) = await store.have([want])
    assert isinstance(had, Had)
    store.arena.unpin(had.stored.region)
    return had.stored


@pytest.mark.parametrize("dtype", ["float32", "float16"])
async def test_codes_become_plain_features(executor: ThreadPoolExecutor, dtype: str) -> None:
    """Looked up and rounded."""
    with opened(64, "testderive") as arena:
        store = FeatureStore(arena)
        await store_codes(store)
        found = await Deriver(store, executor).have(("a", dtype, "plain"))
        assert found is not None
        views = parse_document(store.view(found))
        assert list(views) == [NAME]
        values = np.frombuffer(bytes(views[NAME].view), dtype).reshape(SHAPE)
        assert np.array_equal(values, plain().astype(dtype))
        del views
        arena.unpin(found.region)


async def test_what_a_variant_is_made_of_is_not_evicted_for_it(
    executor: ThreadPoolExecutor,
) -> None:
    """Where both do not fit, the store is full; the codes stay, and nothing is left behind."""
    # The codes take 4 pages, the plain features 13.
    with opened(16, "testderivefull") as arena:
        store = FeatureStore(arena)
        base = await store_codes(store)
        deriver = Deriver(store, executor)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                await deriver.have(("a", "float32", "plain"))
        assert store.find(base.key) == base
        statistics = arena.statistics()
        assert (statistics.held_bytes, statistics.writing) == (0, 0)


async def test_a_variant_that_is_given_up_keeps_its_place_until_its_thread_is_done(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped: the region it writes to, and what it reads, stay until then."""
    begun, go = threading.Event(), threading.Event()
    convert = derive._convert

    def slowly(*args: object) -> None:
        begun.set()
        go.wait()
        convert(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(derive, "_convert", slowly)
    with opened(64, "testderivegone") as arena:
        store = FeatureStore(arena)
        await store_codes(store)
        key: Key = ("a", "float32", "plain")
        task = asyncio.create_task(Deriver(store, executor).have(key))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
        assert arena.statistics().writing == 1
        # Room for the codes and the region that is being written, and no more.
        with pytest.raises(StoreFullError):
            arena.reserve([("other", 50 * PAGE)])
        go.set()
        await store.settle()
        assert (arena.statistics().held_bytes, arena.statistics().writing) == (0, 0)
