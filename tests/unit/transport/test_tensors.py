"""Bytes to arrays, and compact codes to plain tensors."""

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch

from tests.helpers.documents import qwen_like_lut
from transport import tensors
from transport.errors import DocumentError
from transport.safetensors import TensorView
from transport.wire import Field, TensorInfo


def _view(array, name=None, readonly=False):
    data = array.tobytes() if readonly else bytearray(array.tobytes())
    return TensorView(name or array.dtype.name, array.shape, memoryview(data))


@pytest.mark.parametrize(
    "dtype", ["float64", "int64", "float32", "int32", "float16", "int16", "uint8", "int8", "bool"]
)
@pytest.mark.parametrize("readonly", [False, True])
def test_every_dtype_arrives_bit_for_bit(dtype, readonly):
    """numpy and torch see the same values, without a copy."""
    array = np.arange(12).reshape(3, 4).astype(dtype)
    view = _view(array, readonly=readonly)
    assert np.array_equal(tensors.to_numpy(view), array)
    assert tensors.to_numpy(view).dtype == array.dtype
    tensor = tensors.to_torch(view)
    assert torch.equal(tensor, torch.from_numpy(array))
    assert tensor.data_ptr() == tensors.to_numpy(view).ctypes.data


def test_bfloat16_is_shown_as_asked_for():
    """As ml_dtypes' type, as bits, or as torch's own."""
    values = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
    view = _view(values)
    assert tensors.to_numpy(view).dtype == ml_dtypes.bfloat16
    bits = tensors.to_numpy(view, bfloat16="uint16")
    assert np.array_equal(bits, values.view(np.uint16))
    assert torch.equal(tensors.to_torch(view).view(torch.int16), torch.from_numpy(bits.view("i2")))


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 0)])
def test_scalars_and_empty_tensors_keep_their_shape(shape):
    """Shapes without entries, or without dimensions, are shapes."""
    array = np.zeros(shape, np.float32)
    assert tensors.to_numpy(_view(array)).shape == shape
    assert tuple(tensors.to_torch(_view(array)).shape) == shape


def test_a_torch_view_keeps_read_only_memory_alive():
    """The tensor may outlive every name of the bytes."""
    tensor = tensors.to_torch(_view(np.arange(1000), readonly=True))
    for _ in range(3):
        np.arange(1000) + 1
    assert torch.equal(tensor, torch.arange(1000))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_codes_expand_to_the_plain_tensor(dtype):
    """The formula of the contract, written out slowly, gives the same bits."""
    rng = np.random.default_rng(3)
    codes, table, encoding, plain = qwen_like_lut(rng, dtype=dtype)
    slow = np.empty(encoding.plain_shape, np.float32)
    stride, block, times = encoding.channel_stride, encoding.repeat.block, encoding.repeat.times
    for row in range(codes.shape[0]):
        for i in range(codes.shape[1]):
            value = table[(i // stride) % 3, codes[row, i]]
            for copy in range(times):
                slow[row, (i // block) * block * times + copy * block + i % block] = value
    assert np.array_equal(slow, plain)
    wanted = plain.astype(getattr(ml_dtypes, dtype, dtype))
    got = tensors.expand_codes(codes, table, encoding)
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()
    on_torch = tensors.expand_codes_torch(
        torch.from_numpy(codes), torch.from_numpy(table), encoding
    )
    assert on_torch.view(torch.uint8).numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 5, 7)), (2, (5, 7, 6)), (1, (2, 9, 4))])
def test_the_channel_axis_may_be_any(axis, shape):
    """Channels first, last or between, without repetition."""
    rng = np.random.default_rng(4)
    _, table, encoding, _ = qwen_like_lut(rng)
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    encoding = msgspec.structs.replace(
        encoding, channel_axis=axis, channel_stride=1, repeat=None, plain_shape=shape
    )
    channel = (np.arange(shape[axis]) % 3).reshape([-1 if a == axis else 1 for a in range(3)])
    wanted = table[channel, codes]
    assert np.array_equal(tensors.expand_codes(codes, table, encoding), wanted)
    on_torch = tensors.expand_codes_torch(
        torch.from_numpy(codes), torch.from_numpy(table), encoding
    )
    assert torch.equal(on_torch, torch.from_numpy(wanted))


def test_encodings_that_do_not_fit_are_refused():
    """Nothing is expanded on a guess."""
    codes, table, encoding, _ = qwen_like_lut(np.random.default_rng(5))
    wrong = [
        msgspec.structs.replace(encoding, **change)
        for change in (
            {"channel_axis": 2},
            {"channel_axis": -1},
            {"channel_stride": 0},
            {"channel_stride": 5},
            {"plain_shape": (1, 1)},
            {"plain_dtype": "complex64"},
            {"repeat": msgspec.structs.replace(encoding.repeat, block=7)},
            {"repeat": msgspec.structs.replace(encoding.repeat, times=0)},
            {"repeat": msgspec.structs.replace(encoding.repeat, axis=5)},
        )
    ]
    for bad in wrong:
        with pytest.raises(DocumentError):
            tensors.expand_codes(codes, table, bad)
    for bad_codes, bad_table in (
        (codes.astype(np.int16), table),
        (codes, table[:, :255]),
        (codes, table[:0]),
        (codes, table[0]),
    ):
        with pytest.raises(DocumentError):
            tensors.expand_codes(bad_codes, bad_table, encoding)


def _info(array, encoding=None):
    return TensorInfo(
        dtype=array.dtype.name,
        shape=array.shape,
        nbytes=array.nbytes,
        role="feature",
        field=Field(kind="flat"),
        encoding=encoding,
    )


def test_an_items_tables_are_used_and_left_out():
    """With expansion only the tensors of the plain encoding remain; without, everything does."""
    rng = np.random.default_rng(6)
    codes, table, encoding, plain = qwen_like_lut(rng, dtype="bfloat16")
    arrays = {"pixel_values": codes, "pixel_values.lut": table, "grid": np.array([[1, 2, 3]])}
    views = {name: _view(array) for name, array in arrays.items()}
    infos = {
        name: _info(a, encoding if name == "pixel_values" else None) for name, a in arrays.items()
    }
    wanted = plain.astype(ml_dtypes.bfloat16)
    expanded = tensors.numpy_tensors(views, infos)
    assert expanded.keys() == {"pixel_values", "grid"}
    assert expanded["pixel_values"].tobytes() == wanted.tobytes()
    as_bits = tensors.numpy_tensors(views, infos, bfloat16="uint16")
    assert np.array_equal(as_bits["pixel_values"], wanted.view(np.uint16))
    assert tensors.numpy_tensors(views, infos, expand=False).keys() == arrays.keys()
    on_torch = tensors.torch_tensors(views, infos)
    assert on_torch.keys() == {"pixel_values", "grid"}
    assert on_torch["pixel_values"].dtype == torch.bfloat16
    assert tensors.torch_tensors(views, infos, expand=False).keys() == arrays.keys()
    del views["pixel_values.lut"]
    with pytest.raises(DocumentError):
        tensors.numpy_tensors(views, infos)
