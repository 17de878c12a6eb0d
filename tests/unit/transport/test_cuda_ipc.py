"""Pools of device memory: the whole policy over host memory, and the same over CUDA."""

import json
import os

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch

from tests.helpers.documents import answer_of, item_of, qwen_like_lut
from tests.helpers.host_memory import UUID, HostMemory
from transport import device
from transport.client import AsyncClient, Client
from transport.cuda_ipc import SLOT_BYTES, CudaPool, PoolReader
from transport.errors import DocumentError, FeatureLost, SegmentError, StoreFullError
from transport.leases import LeaseTable
from transport.safetensors import TensorEntry, data_offsets
from transport.session import ClientOptions
from transport.wire import CudaLocation, Field, Pool, TensorInfo

SLOTS = 8
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def instance():
    return f"c{os.urandom(6).hex()}"


@pytest.fixture
def memory(tmp_path):
    memory = HostMemory.allocate(tmp_path / "device", SLOTS * SLOT_BYTES)
    yield memory
    memory.close()


@pytest.fixture
def pool(instance, memory):
    pool = CudaPool(instance, memory)
    yield pool
    pool.close()


@pytest.fixture
def reader(pool):
    reader = PoolReader(open_memory=HostMemory.open)
    reader.tell([msgspec.convert(pool.describe(), Pool)])
    yield reader
    reader.close()


def _arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "pixel_values": rng.random((40, 60), dtype=np.float32).astype(ml_dtypes.bfloat16),
        "image_grid_thw": np.array([[1, 2, 2]]),
    }


def _infos(arrays):
    entries = [TensorEntry(n, a.dtype.name, a.shape) for n, a in arrays.items()]
    offsets = data_offsets(entries)
    return {
        name: TensorInfo(
            dtype=a.dtype.name,
            shape=a.shape,
            nbytes=a.nbytes,
            offset=offsets[name],
            role="feature",
            field=Field(kind="flat"),
        )
        for name, a in arrays.items()
    }


def _write(pool, memory, arrays, key="k"):
    """Write an item as a worker does: data section only, synchronised before the commit."""
    infos = _infos(arrays)
    [region] = pool.reserve([(key, sum(a.nbytes for a in arrays.values()))])
    for name, array in arrays.items():
        memory.write(region.offset + infos[name].offset, memoryview(array.tobytes()))
    memory.synchronize()
    pool.commit(region)
    return region, msgspec.convert(pool.location(region), CudaLocation), infos


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def test_an_item_is_read_to_the_host_and_on_the_device(pool, memory, reader):
    """The same bits as were written, with and without a copy."""
    arrays = _arrays()
    _, place, infos = _write(pool, memory, arrays)
    views = reader.read(place, infos)
    assert {n: bytes(v.view) for n, v in views.items()} == {
        n: a.tobytes() for n, a in arrays.items()
    }
    with reader.open(place, infos) as tensors:
        assert tensors["pixel_values"].dtype == torch.bfloat16
        assert {n: _bytes(t) for n, t in tensors.items()} == {
            n: a.tobytes() for n, a in arrays.items()
        }
        del tensors


def test_a_location_says_all_a_reader_needs(pool, memory):
    """Slot and offset belong together; the device is told by UUID."""
    _write(pool, memory, _arrays(), "a")
    _, place, _ = _write(pool, memory, _arrays(), "b")
    assert place.slot == place.offset // SLOT_BYTES == 1
    assert (place.device_uuid, place.generation % 2) == (UUID, 0)


def test_recycled_regions_are_lost(pool, memory, reader):
    """Before reading, while reading, and after the pool is closed."""
    region, place, infos = _write(pool, memory, _arrays())
    opened = reader.open(place, infos)
    opened.__enter__()
    pool.unpin(region)
    pool.drop_idle()
    with pytest.raises(FeatureLost):
        opened.__exit__(None, None, None)
    with pytest.raises(FeatureLost):
        reader.read(place, infos)
    _, place, infos = _write(pool, memory, _arrays())
    reader.read(place, infos)


def test_a_closed_pool_reads_as_lost(instance, memory):
    """Readers have its control segment mapped, and must not touch the memory any more."""
    pool = CudaPool(instance, memory)
    reader = PoolReader(open_memory=HostMemory.open)
    reader.tell([msgspec.convert(pool.describe(), Pool)])
    _, place, infos = _write(pool, memory, _arrays())
    reader.read(place, infos)
    pool.close()
    with pytest.raises(FeatureLost):
        reader.read(place, infos)
    reader.close()


def test_pools_that_are_gone_are_unmapped(pool, memory, reader):
    """After a restart the old pool is no location's any more."""
    _, place, infos = _write(pool, memory, _arrays())
    reader.read(place, infos)
    mapped = reader._memory[pool.pool_id]
    assert reader.knows(place)
    reader.tell([msgspec.convert({**pool.describe(), "nbytes": 1}, Pool)])
    assert not mapped.opened
    reader.tell([])
    assert not reader.knows(place)
    with pytest.raises(FeatureLost):
        reader.read(place, infos)


def test_descriptions_that_do_not_fit_are_refused(pool, memory, reader):
    """Neither a tensor outside of its item nor an item outside of its pool is read."""
    _, place, infos = _write(pool, memory, _arrays())
    for change in ({"offset": None}, {"offset": 1 << 20}, {"shape": (-1, 3)}, {"dtype": "x"}):
        bad = {**infos, "pixel_values": msgspec.structs.replace(infos["pixel_values"], **change)}
        with pytest.raises(DocumentError):
            reader.read(place, bad)
    for change in ({"offset": -1}, {"offset": pool.capacity_bytes}, {"slot": 1 << 40}):
        with pytest.raises(SegmentError):
            reader.read(msgspec.structs.replace(place, **change), infos)


def test_a_pool_has_the_policy_of_every_store(pool, memory):
    """Leased regions stay, released ones make room, keys are found."""
    now = [0.0]
    leases = LeaseTable([pool], clock=lambda: now[0])
    whole = {"x": np.zeros(SLOTS * SLOT_BYTES, np.uint8)}
    region, _, _ = _write(pool, memory, whole)
    lease = leases.grant([region], ttl_s=10)
    pool.unpin(region)
    assert pool.lookup("k") == region
    with pytest.raises(StoreFullError):
        pool.reserve([("other", 1)])
    leases.release(lease.id)
    assert pool.reserve([("other", 1)])


def test_too_small_pools_are_refused(instance, tmp_path):
    """One slot is the least."""
    memory = HostMemory.allocate(tmp_path / "small", SLOT_BYTES - 1)
    with pytest.raises(SegmentError):
        CudaPool(instance, memory)
    memory.close()


def _client(kind, url):
    options = ClientOptions(open_memory=HostMemory.open)
    return (Client if kind == "sync" else AsyncClient)(url, options=options)


def _compact_item(pool, memory):
    codes, table, encoding, plain = qwen_like_lut(np.random.default_rng(2))
    arrays = {"pixel_values": codes, "pixel_values.lut": table}
    region, _, infos = _write(pool, memory, arrays)
    infos["pixel_values"] = msgspec.structs.replace(infos["pixel_values"], encoding=encoding)
    item = item_of(arrays, pool.location(region), tensors=msgspec.to_builtins(infos))
    return item, plain


def test_the_client_opens_what_lies_in_a_pool(pool, memory, service):
    """Pools are asked for once; numpy gets a copy, torch gets the device's, compact expands."""
    item, plain = _compact_item(pool, memory)
    models = (200, JSON, json.dumps({"models": [], "pools": [pool.describe()]}).encode())
    service.say((200, JSON, json.dumps(answer_of(item)).encode()), models)
    with _client("sync", service.url) as client:
        [item] = client.preprocess(prompt="p", transport="cuda_ipc").items
        assert np.array_equal(client.open_item(item)["pixel_values"], plain)
        as_torch = client.open_item(item, framework="torch")["pixel_values"]
        assert torch.equal(as_torch, torch.from_numpy(plain))
        with client.open_item(item, copy=False) as tensors:
            assert np.array_equal(tensors["pixel_values"], plain)
        with client.open_item(item, copy=False, framework="torch", expand=False) as tensors:
            assert tensors.keys() == {"pixel_values", "pixel_values.lut"}
            del tensors
    assert [request[1] for request in service.requests] == ["/preprocess", "/models"]


async def test_the_async_client_opens_what_lies_in_a_pool(pool, memory, service):
    """The same from an event loop."""
    item, plain = _compact_item(pool, memory)
    models = (200, JSON, json.dumps({"pools": [pool.describe()]}).encode())
    service.say((200, JSON, json.dumps(answer_of(item)).encode()), models)
    async with _client("async", service.url) as client:
        [item] = (await client.preprocess(prompt="p")).items
        assert np.array_equal((await client.open_item(item))["pixel_values"], plain)
        async with client.open_item(item, copy=False, framework="torch") as tensors:
            assert torch.equal(tensors["pixel_values"], torch.from_numpy(plain))


def test_without_a_device_cuda_says_so():
    """No bindings, no driver, no such GPU: a clear error instead of a crash."""
    if device.visible_gpus():
        pytest.skip("there is a device; it is tested where it is")
    with pytest.raises(SegmentError, match="does not see the GPU"):
        device.CudaMemory.allocate(UUID, 1)
    with pytest.raises(SegmentError, match=r"CUDA refused|cuda-bindings"):
        device._checked(device._runtime().cudaGetDeviceCount())
