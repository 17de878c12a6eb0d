import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from processors.decode.buffers import LARGE_NBYTES, MAX_KEPT_NBYTES, Buffers

LARGE = (LARGE_NBYTES // 3 + 1, 3)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("shape", [(3, 5, 3), (0, 4, 3), LARGE, (2, *LARGE)])
def test_arrays_are_of_the_shape_asked_for(shape):
    """Contiguous, writable, and of their own."""
    buffers = Buffers()
    first, second = buffers.empty(shape), buffers.empty(shape)
    assert first.shape == shape
    assert first.dtype == np.uint8
    assert first.flags.c_contiguous
    assert first.flags.writeable
    first[...] = 1
    second[...] = 2
    assert (first == 1).all()


def test_a_buffer_is_used_again_once_the_last_view_is_gone():
    """Also a view of a view, or one that torch holds."""
    buffers = Buffers()
    array = buffers.empty(LARGE)
    place = address(array)
    view = torch.from_numpy(array[10:].T[:1])
    del array
    gc.collect()
    assert address(buffers.empty(LARGE)) != place
    del view
    gc.collect()
    assert address(buffers.empty((LARGE_NBYTES,))) == place


def test_a_larger_picture_does_not_stand_beside_what_was_kept():
    """What fits it is used; else nothing is kept that would not do for it either."""
    buffers = Buffers()
    held = [buffers.empty(LARGE) for _ in range(3)]
    del held
    gc.collect()
    assert len(buffers._free) == 3
    fitting = buffers.empty(LARGE)
    assert len(buffers._free) == 2
    larger = buffers.empty((2, *LARGE))
    assert not buffers._free
    assert address(larger) != address(fitting)


def test_what_is_kept_is_bounded():
    """The oldest goes first; what is larger than the bound goes at once."""
    buffers = Buffers()
    sizes = [MAX_KEPT_NBYTES // 2, MAX_KEPT_NBYTES // 4, MAX_KEPT_NBYTES // 3]
    for array in [buffers.empty((size,)) for size in sizes]:
        del array
    gc.collect()
    assert sum(map(len, buffers._free)) <= MAX_KEPT_NBYTES
    assert len(buffers._free) == 2
    buffers.empty((MAX_KEPT_NBYTES + 1,))
    gc.collect()
    assert not buffers._free


def test_what_the_system_does_not_give_is_told_as_the_heap_tells_it():
    """Whoever runs a job knows one kind of error for it."""
    with pytest.raises(MemoryError):
        Buffers().empty((1 << 46,))


def test_threads_never_share_a_buffer():
    """Each array holds what its thread wrote until it is gone."""
    buffers = Buffers()

    def use(value):
        array = buffers.empty(LARGE)
        array[...] = value % 251
        return bool((array == value % 251).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))
