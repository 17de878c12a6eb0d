"""Processes around a pool of device memory: its owner and a reader, over CUDA or host memory.

`python -m tests.helpers.pool_processes ROLE JSON` prints one JSON line a step and waits for lines
on its standard input.
"""

from __future__ import annotations

import json
import sys

import msgspec
import numpy as np

from tests.helpers.documents import describe
from tests.helpers.host_memory import HostMemory
from tests.helpers.store_processes import say
from transport.cuda_ipc import CudaPool, PoolReader
from transport.device import CudaMemory, visible_gpus
from transport.wire import CudaLocation, Pool, TensorInfo

NBYTES = 1 << 20


def arrays():
    """What the owner writes."""
    rng = np.random.default_rng(11)
    return {"pixel_values": rng.random((64, 48), dtype=np.float32), "grid": np.array([[1, 8, 8]])}


def own(kind, instance, path):
    """Own a pool with one written item; `recycle` on standard input takes the item away."""
    if kind == "cuda":
        memory = CudaMemory.allocate(visible_gpus()[0], NBYTES)
    else:
        memory = HostMemory.allocate(path, NBYTES)
    pool = CudaPool(instance, memory)
    infos = describe(arrays())
    [region] = pool.reserve([("k", sum(a.nbytes for a in arrays().values()))])
    for name, array in arrays().items():
        memory.write(region.offset + infos[name]["offset"], memoryview(array.tobytes()))
    memory.synchronize()
    pool.commit(region)
    pool.unpin(region)
    say(pool=pool.describe(), place=pool.location(region), infos=infos)
    for line in sys.stdin:
        if line.strip() == "recycle":
            pool.drop_idle()
            say(recycled=True)
    pool.close()
    memory.close()


def hold(kind, told):
    """Open an item on the device and hold on to it."""
    reader, place, infos = reader_of(kind, told)
    with reader.open(place, infos) as tensors:
        say(total=float(tensors["pixel_values"].double().sum()))
        sys.stdin.read()


def reader_of(kind, told):
    """Return a reader that knows the owner's pool, and the item's location and description."""
    reader = PoolReader(open_memory=CudaMemory.open if kind == "cuda" else HostMemory.open)
    reader.tell([msgspec.convert(told["pool"], Pool)])
    infos = msgspec.convert(told["infos"], dict[str, TensorInfo])
    return reader, msgspec.convert(told["place"], CudaLocation), infos


if __name__ == "__main__":
    {"own": own, "hold": hold}[sys.argv[1]](**json.loads(sys.argv[2]))
