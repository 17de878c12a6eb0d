"""The compiled passes over torch tensors; absent where the extension was not built."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from processors.fast.lut import CHANNELS

try:
    from processors.fast import _kernels
except ImportError:  # built without a compiler: the plain processors run
    AVAILABLE = False
else:
    AVAILABLE = True

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _elements(tensor: torch.Tensor) -> NDArray[Any]:
    """View a contiguous tensor as integers of the same size; numpy has no bfloat16."""
    view: NDArray[Any] = tensor.view(_BITS[tensor.element_size()]).numpy()
    return view


def write_patches(
    frames: torch.Tensor,
    out: torch.Tensor,
    table: torch.Tensor,
    *,
    patch_size: int,
    merge_size: int,
    times: int,
    repeat: bool,
    num_threads: int = 1,
) -> None:
    """Write frames as rows of patches, looking every pixel up in a table.

    Args:
        frames: uint8 (T, H, W, 3); height and width are multiples of patch x merge.
        out: Contiguous, rows of 3 x times x patch x patch elements, channel before slot before
            pixels; frames of the same `times` group share rows, a last short group repeats its
            last frame.
        table: (3, 256) in the dtype of `out`.
        patch_size: Pixels of a patch's side.
        merge_size: Patches of a block's side; rows run block by block.
        times: Slots per channel and row (the temporal patch size).
        repeat: Whether a single frame fills all slots, as a still image does.
        num_threads: Most threads to use.

    Raises:
        ValueError: If the buffers do not fit each other.
    """
    if frames.stride()[2:] != (CHANNELS, 1):
        frames = frames.contiguous()
    pixels, entries = frames.numpy(), _elements(table)
    step = 1 if repeat else times
    starts = range(0, len(pixels), step)
    targets = _elements(out).reshape(len(starts), -1)
    for start, target in zip(starts, targets, strict=True):
        group = pixels[start : start + step]
        _kernels.patchify(group, target, entries, patch_size, merge_size, times, num_threads)


def write_planes(
    codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, num_threads: int = 1
) -> None:
    """Write uint8 images (..., 3, H, W) of any strides into contiguous planes through a table.

    Uses at most `num_threads` threads.

    Raises:
        ValueError: If the buffers do not fit each other.
    """
    images = codes.reshape(-1, *codes.shape[-3:])
    pixels = images.permute(0, 2, 3, 1).numpy()
    _kernels.planes(pixels, _elements(out), _elements(table), num_threads)


def write_runs(codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, run: int) -> None:
    """Write uint8 codes whose channel changes every `run` entries through a table.

    Raises:
        ValueError: If the buffers do not fit each other.
    """
    _kernels.lookup(codes.contiguous().numpy(), _elements(out), _elements(table), run)
