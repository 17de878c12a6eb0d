"""Tables from a pixel's value to its rescaled and normalised one."""

from __future__ import annotations

from typing import Any

import torch

LEVELS = 256
CHANNELS = 3


def identity_table() -> torch.Tensor:
    """Return the uint8 table (3, 256) that leaves pixels as they are."""
    return torch.arange(LEVELS, dtype=torch.uint8).repeat(CHANNELS, 1)


def normalization_table(processor: Any, *arguments: Any) -> torch.Tensor:  # noqa: ANN401
    """Return what rescaling and normalising makes of every pixel value of every channel.

    The processor's own `rescale_and_normalize` is run on a ramp of all 256 values. Its operations
    work element by element, so the table holds exactly what it would give for a whole image:
    `(value - mean / rescale_factor) / (std / rescale_factor)` in float32, in that order.

    Args:
        processor: A transformers image or video processor of the torchvision backend.
        arguments: The arguments of `rescale_and_normalize` after the images.

    Returns:
        Table (3, 256), float32 unless the processor does neither (then uint8).

    Source: `TorchvisionBackend.rescale_and_normalize` (transformers 5.24).
    """
    ramp = torch.arange(LEVELS, dtype=torch.uint8).repeat(1, CHANNELS, 1, 1)
    table: torch.Tensor = processor.rescale_and_normalize(ramp, *arguments)
    return table.reshape(CHANNELS, LEVELS)


def rows_equal(table: torch.Tensor) -> bool:
    """Return whether a table treats all channels alike."""
    return bool((table == table[:1]).all())


def keeps_zero(table: torch.Tensor) -> bool:
    """Return whether a table leaves 0 as it is in every channel."""
    return bool((table[:, 0] == 0).all())


def moves_zero(table: torch.Tensor) -> bool:
    """Return whether a table makes something else of 0 in every channel."""
    return bool((table[:, 0] != 0).all())
