"""The `compact` encoding: pixel codes without repetition, and the table that expands them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from processors.fast.lut import CHANNELS


@dataclass(frozen=True, slots=True)
class Repeat:
    """Every block of `block` entries along `axis` stands `times` times in the plain layout."""

    axis: int
    block: int
    times: int


@dataclass(frozen=True, slots=True)
class CompactEncoding:
    """How uint8 codes become a plain feature; the wire's `encoding` of kind `lut-u8`."""

    code_shape: tuple[int, ...]
    channel_axis: int
    channel_stride: int
    """Along the channel axis, entry `i` belongs to channel `(i // channel_stride) % 3`."""
    repeat: Repeat | None
    plain_shape: tuple[int, ...]
    plain_dtype: str
    """In torch's spelling without the prefix."""


def expand(codes: torch.Tensor, table: torch.Tensor, encoding: CompactEncoding) -> torch.Tensor:
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
