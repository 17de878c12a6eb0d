"""Device memory over a stand-in runtime: devices, handles, copies, errors."""

import builtins

import msgspec
import pytest

from transport import device
from transport.errors import SegmentError
from transport.wire import Control, Pool

pytest.importorskip("cuda.bindings")
from tests.helpers.fake_cuda import UUIDS, FakeRuntime


@pytest.fixture
def runtime(monkeypatch):
    runtime = FakeRuntime()
    monkeypatch.setattr(device, "_runtime", lambda: runtime)
    return runtime


def _pool(memory, **change):
    pool = Pool(
        pool_id="p",
        device_uuid=memory.device_uuid,
        handle=memory.export_handle(),
        nbytes=memory.nbytes,
        control=Control(segment="mmprep-a-pool-0", offset=0),
    )
    return msgspec.structs.replace(pool, **change)


def test_devices_are_told_by_uuid(runtime):
    """In the spelling of every NVIDIA tool."""
    assert list(device.visible_gpus()) == UUIDS


def test_memory_is_zeroed_copied_and_shared(runtime):
    """What the owner writes, the reader of its handle sees, on the device that holds it."""
    owner = device.CudaMemory.allocate(UUIDS[0], 1000)
    found = bytearray(10)
    owner.read(990, memoryview(found))
    assert found == bytes(10)
    owner.write(500, memoryview(b"hello"))
    reader = device.CudaMemory.open(_pool(owner))
    assert (reader.nbytes, reader.device_uuid) == (1000, UUIDS[0])
    reader.read(500, memoryview(found)[:5])
    assert found[:5] == b"hello"
    assert set(runtime.used_on) == {0}
    assert set(runtime.opened.values()) == {0}
    reader.close()
    reader.close()
    owner.close()
    owner.close()
    assert runtime.allocated == runtime.opened == {}


def test_the_callers_device_stays_current(runtime):
    """A consumer's own choice of device survives every call, also one that fails."""
    with pytest.raises(SegmentError, match="cudaErrorMemoryAllocation"):
        device.CudaMemory.allocate(UUIDS[0], 1 << 30)
    memory = device.CudaMemory.allocate(UUIDS[0], 10)
    memory.synchronize()
    memory.close()
    assert runtime.current == 1


def test_torch_is_told_where_the_bytes_are(runtime):
    """The array interface keeps the memory mapped for as long as a tensor looks at it."""
    memory = device.CudaMemory.allocate(UUIDS[1], 100)
    array = device._CudaArray(memory, memory._address + 64, 10)
    assert array.__cuda_array_interface__ == {
        "shape": (10,),
        "typestr": "|u1",
        "data": (memory._address + 64, False),
        "version": 3,
    }
    memory.close()


def test_what_cannot_be_opened_is_an_error(runtime):
    """An unseen device, a handle of the wrong size, a handle of nothing."""
    owner = device.CudaMemory.allocate(UUIDS[0], 100)
    with pytest.raises(SegmentError, match="does not see"):
        device.CudaMemory.open(_pool(owner, device_uuid="GPU-x"))
    with pytest.raises(SegmentError, match="not a CUDA memory handle"):
        device.CudaMemory.open(_pool(owner, handle=b"short"))
    with pytest.raises(SegmentError, match="cudaErrorInvalidValue"):
        device.CudaMemory.open(_pool(owner, handle=bytes(64)))
    owner.close()


def test_without_the_bindings_the_extra_is_named(monkeypatch):
    """The base install says what to install."""
    plain_import = builtins.__import__

    def refuse(name, *args):
        if name.startswith("cuda"):
            raise ModuleNotFoundError(name)
        return plain_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SegmentError, match=r"mmprep\[cuda\]"):
        device._runtime()
    assert device.visible_gpus() == ()
