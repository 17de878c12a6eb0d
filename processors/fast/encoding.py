"""The `compact` encoding: pixel codes without repetition, and the table that expands them."""

from __future__ import annotations

import torch

from processors.fast.lut import CHANNELS
from processors.types import LutEncoding


def expand(codes: torch.Tensor, table: torch.Tensor, encoding: LutEncoding) -> torch.Tensor:
    """Return the plain feature of compact codes.

    Args:
        codes: uint8 of `encoding.code_shape`, on any device.
        table: float32 (3, 256), on the same device.
        encoding: The description that came with the codes.

    Returns:
        Tensor of `encoding.plain_shape`, float32.
    """
    axis = encoding.channel_axis
    channel = torch.arange(codes.shape[axis], device=codes.device) // encoding.channel_stride
    shape = [1] * codes.dim()
    shape[axis] = codes.shape[axis]
    plain = table[(channel % CHANNELS).reshape(shape), codes.long()]
    if encoding.repeat is not None:
        at, block, times = encoding.repeat.axis, encoding.repeat.block, encoding.repeat.times
        before, after = plain.shape[:at], plain.shape[at + 1 :]
        blocks = plain.reshape(*before, -1, 1, block, *after)
        plain = blocks.expand(*before, -1, times, block, *after)
    return plain.reshape(encoding.plain_shape)
