"""Bytes to arrays: numpy always, torch where it is asked for; exact expansion of compact codes.

torch is imported on first use only, so that a process without it reads every feature as numpy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from transport.errors import DocumentError
from transport.safetensors import TensorView
from transport.wire import LutEncoding, TensorInfo

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Array = npt.NDArray[Any]
Bfloat16 = Literal["ml_dtypes", "uint16"]
"""How bfloat16 is shown in numpy: as `ml_dtypes.bfloat16`, or as its bits."""

_NUMPY_DTYPES: Mapping[str, npt.DTypeLike] = {
    "float64": np.float64, "int64": np.int64, "float32": np.float32, "int32": np.int32,
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int16": np.int16, "uint8": np.uint8,
    "int8": np.int8, "bool": np.bool_,
}  # fmt: skip


def to_numpy(tensor: TensorView, *, bfloat16: Bfloat16 = "ml_dtypes") -> Array:
    """Return a tensor's bytes as an array, without a copy; read-only where the bytes are."""
    dtype: npt.DTypeLike = _NUMPY_DTYPES[tensor.dtype]
    if tensor.dtype == "bfloat16" and bfloat16 == "uint16":
        dtype = np.uint16
    return np.frombuffer(tensor.view, dtype).reshape(tensor.shape)


def to_torch(tensor: TensorView) -> torch.Tensor:
    """Return a tensor's bytes as a CPU tensor, without a copy.

    torch knows no read-only tensors: where the bytes are read-only, writing to the result kills the
    process. Clone it, or move it to a device, before changing it.
    """
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if tensor.view.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    buffer = tensor.view if not tensor.view.readonly else _as_writable(tensor.view)
    return torch.frombuffer(buffer, dtype=dtype).view(tensor.shape)


def _as_writable(view: memoryview) -> ctypes.Array[ctypes.c_ubyte]:
    # torch warns of every read-only buffer, and a warning cannot be silenced for one thread alone.
    address = np.frombuffer(view, np.uint8).ctypes.data
    buffer = (ctypes.c_ubyte * view.nbytes).from_address(address)
    buffer._view = view  # type: ignore[attr-defined]  # keeps the bytes alive as long as the tensor
    return buffer


def expand_codes(codes: Array, table: Array, encoding: LutEncoding) -> Array:
    """Return the plain tensor of compact codes, bit for bit.

    Args:
        codes: uint8, any shape that the encoding fits.
        table: float32 of shape (C, 256).
        encoding: How they were made.

    Returns:
        A new array of `plain_shape` and `plain_dtype` (bfloat16 as ml_dtypes).

    Raises:
        DocumentError: If codes, table and encoding do not fit together.
    """
    channels = _checked_channels(codes.dtype == np.uint8, codes.shape, table.shape, encoding)
    # Rounding 256 entries is rounding every value, and much less work.
    rounded = table.astype(_NUMPY_DTYPES[encoding.plain_dtype])
    axis, stride = encoding.channel_axis, encoding.channel_stride
    split = (*codes.shape[:axis], -1, channels, stride, *codes.shape[axis + 1 :])
    split_codes = codes.reshape(split)
    out = np.empty(split_codes.shape, rounded.dtype)
    for channel in range(channels):
        index: tuple[slice | int, ...] = (*(slice(None),) * (axis + 1), channel)
        out[index] = rounded[channel][split_codes[index]]
    plain = out.reshape(codes.shape)
    if (repeat := encoding.repeat) is not None:
        blocks = (*plain.shape[: repeat.axis], -1, 1, repeat.block, *plain.shape[repeat.axis + 1 :])
        plain = np.repeat(plain.reshape(blocks), repeat.times, axis=repeat.axis + 1)
    return plain.reshape(encoding.plain_shape)


def expand_codes_torch(
    codes: torch.Tensor, table: torch.Tensor, encoding: LutEncoding
) -> torch.Tensor:
    """Return the plain tensor of compact codes on their device; see `expand_codes`.

    Raises:
        DocumentError: If codes, table and encoding do not fit together.
    """
    import torch

    is_uint8 = codes.dtype == torch.uint8
    channels = _checked_channels(is_uint8, tuple(codes.shape), tuple(table.shape), encoding)
    rounded = table.to(codes.device, getattr(torch, encoding.plain_dtype))
    axis = encoding.channel_axis
    positions = torch.arange(codes.shape[axis], device=codes.device)
    channel = (positions // encoding.channel_stride) % channels
    shape = [1] * codes.dim()
    shape[axis] = -1
    # One index into the flat table: a tensor of indices instead of two.
    plain = rounded.flatten()[codes.to(torch.int32) + (channel * 256).to(torch.int32).view(shape)]
    if (repeat := encoding.repeat) is not None:
        before, after = plain.shape[: repeat.axis], plain.shape[repeat.axis + 1 :]
        blocks = plain.reshape(*before, -1, 1, repeat.block, *after)
        plain = blocks.repeat_interleave(repeat.times, dim=repeat.axis + 1)
    return plain.reshape(encoding.plain_shape)


def _checked_channels(
    is_uint8: bool, shape: tuple[int, ...], table_shape: tuple[int, ...], encoding: LutEncoding
) -> int:
    """Return the number of channels, once everything is known to fit."""
    axis, stride, repeat = encoding.channel_axis, encoding.channel_stride, encoding.repeat
    size = int(np.prod(shape, dtype=np.int64))
    fits = (
        is_uint8
        and len(table_shape) == 2
        and table_shape[0] > 0
        and table_shape[1] == 256
        and 0 <= axis < len(shape)
        and stride > 0
        and shape[axis] % (stride * table_shape[0]) == 0
        and encoding.plain_dtype in _NUMPY_DTYPES
    )
    if fits and repeat is not None:
        fits = (
            0 <= repeat.axis < len(shape)
            and repeat.block > 0
            and repeat.times > 0
            and shape[repeat.axis] % repeat.block == 0
        )
        size *= repeat.times
    if not fits or size != int(np.prod(encoding.plain_shape, dtype=np.int64)):
        raise DocumentError("compact codes, their table and their description do not fit together")
    return table_shape[0]


def numpy_tensors(
    views: Mapping[str, TensorView],
    infos: Mapping[str, TensorInfo],
    *,
    expand: bool = True,
    bfloat16: Bfloat16 = "ml_dtypes",
) -> dict[str, Array]:
    """Return an item's tensors as arrays; compact codes expanded, their tables left out.

    Args:
        views: The item's tensors.
        infos: Their descriptions.
        expand: Whether compact codes become plain tensors.
        bfloat16: How bfloat16 is shown.
    """
    arrays = {name: to_numpy(view, bfloat16=bfloat16) for name, view in views.items()}
    if not expand:
        return arrays
    for name, encoding in (encodings := _encodings(infos, arrays)).items():
        plain = expand_codes(arrays[name], arrays[encoding.table], encoding)
        as_bits = encoding.plain_dtype == "bfloat16" and bfloat16 == "uint16"
        arrays[name] = plain.view(np.uint16) if as_bits else plain
    return _without_tables(arrays, encodings)


def torch_tensors(
    views: Mapping[str, TensorView], infos: Mapping[str, TensorInfo], *, expand: bool = True
) -> dict[str, torch.Tensor]:
    """Return an item's tensors as CPU tensors; compact codes expanded, their tables left out."""
    tensors = {name: to_torch(view) for name, view in views.items()}
    return expand_torch(tensors, infos) if expand else tensors


def expand_torch(
    tensors: dict[str, torch.Tensor], infos: Mapping[str, TensorInfo]
) -> dict[str, torch.Tensor]:
    """Return tensors with compact codes expanded where they are, their tables left out."""
    for name, encoding in (encodings := _encodings(infos, tensors)).items():
        tensors[name] = expand_codes_torch(tensors[name], tensors[encoding.table], encoding)
    return _without_tables(tensors, encodings)


def _encodings(
    infos: Mapping[str, TensorInfo], present: Mapping[str, object]
) -> dict[str, LutEncoding]:
    found = {name: info.encoding for name, info in infos.items() if info.encoding is not None}
    if any(name not in present or e.table not in present for name, e in found.items()):
        raise DocumentError("compact codes or their table are missing")
    return found


def _without_tables(tensors: dict[str, T], encodings: Mapping[str, LutEncoding]) -> dict[str, T]:
    tables = {encoding.table for encoding in encodings.values()}
    return {name: tensor for name, tensor in tensors.items() if name not in tables}
