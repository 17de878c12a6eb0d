"""A pool of device memory between two processes: over CUDA where there is a GPU, else host memory.

The CUDA half has no logic of its own in the tests: the same scenarios run over both.
"""

import os

import numpy as np
import pytest

from tests.helpers import pool_processes
from tests.helpers.store_processes import child
from transport.device import visible_gpus
from transport.errors import FeatureLost
from transport.segments import remove_dead_segments

MODULE = pool_processes.__name__


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
def kind(request):
    if request.param == "cuda" and not visible_gpus():
        if os.environ.get("REQUIRE_CUDA") == "1":
            pytest.fail("REQUIRE_CUDA=1 and this process sees no GPU")
        pytest.skip("needs a CUDA device")
    return request.param


@pytest.fixture
def owner(kind, tmp_path):
    arguments = {"instance": f"g{os.urandom(6).hex()}", "path": str(tmp_path / "device")}
    with child("own", module=MODULE, kind=kind, **arguments) as owner:
        yield owner
    remove_dead_segments()


def _assert_equal(reader, place, infos):
    views = reader.read(place, infos)
    for name, array in pool_processes.arrays().items():
        assert bytes(views[name].view) == array.tobytes()
    with reader.open(place, infos) as tensors:
        for name, array in pool_processes.arrays().items():
            assert np.array_equal(tensors[name].cpu().numpy(), array)
        del tensors


def _total():
    return float(pool_processes.arrays()["pixel_values"].astype(np.float64).sum())


def test_another_process_reads_the_same_values(kind, owner):
    """To the host and on the device."""
    reader, place, infos = pool_processes.reader_of(kind, owner.hear())
    _assert_equal(reader, place, infos)
    reader.close()


def test_a_region_taken_away_is_seen(kind, owner):
    """The generation word in host memory tells, without a device call."""
    reader, place, infos = pool_processes.reader_of(kind, owner.hear())
    _assert_equal(reader, place, infos)
    owner.process.stdin.write("recycle\n")
    owner.process.stdin.flush()
    owner.hear()
    with pytest.raises(FeatureLost):
        reader.read(place, infos)
    reader.close()


def test_an_owner_that_ends_is_seen(kind, owner):
    """A pool is made unreadable before its memory is freed."""
    reader, place, infos = pool_processes.reader_of(kind, owner.hear())
    _assert_equal(reader, place, infos)
    owner.process.communicate()
    with pytest.raises(FeatureLost):
        reader.read(place, infos)
    reader.close()


def test_a_killed_owner_does_not_take_its_readers_along(kind, owner):
    """What a reader had mapped it may lose, but it lives on and can be told of another pool."""
    reader, place, infos = pool_processes.reader_of(kind, owner.hear())
    _assert_equal(reader, place, infos)
    owner.kill()
    reader.tell([])
    with pytest.raises(FeatureLost):
        reader.read(place, infos)
    reader.close()


def test_a_killed_reader_does_not_harm_the_pool(kind, owner):
    """Another one reads on, and the owner goes on recycling."""
    told = owner.hear()
    with child("hold", module=MODULE, kind=kind, told=told) as holder:
        assert holder.hear()["total"] == pytest.approx(_total(), rel=1e-12)
        holder.kill()
    reader, place, infos = pool_processes.reader_of(kind, told)
    _assert_equal(reader, place, infos)
    owner.process.stdin.write("recycle\n")
    owner.process.stdin.flush()
    assert owner.hear() == {"recycled": True}
    reader.close()
