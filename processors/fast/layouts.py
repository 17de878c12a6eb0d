"""Where a channel's pixels lie in a feature, and how codes get there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from processors.fast.lut import CHANNELS
from processors.fast.passes import write_planes, write_runs
from processors.types import LutEncoding, Repeat


class Layout(Protocol):
    """What the kernel knows of one feature's layout."""

    def write(
        self, codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, num_threads: int = 1
    ) -> None:
        """Look uint8 codes in the plain layout up in a table."""

    def describe(self, shape: tuple[int, ...], dtype: str) -> LutEncoding:
        """Return how the feature of this plain shape and dtype is encoded compactly."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Square tiles (..., 3, H, W)."""

    def write(
        self, codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, num_threads: int = 1
    ) -> None:
        """Look uint8 codes of any strides up in a table."""
        write_planes(codes, out, table, num_threads)

    def describe(self, shape: tuple[int, ...], dtype: str) -> LutEncoding:
        """Return the encoding: codes in the plain layout."""
        return LutEncoding(shape, len(shape) - 3, 1, None, shape, dtype)


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows (..., D) in which the channel changes every pixel, or every third of the row."""

    by_pixel: bool

    def _run(self, width: int) -> int:
        return 1 if self.by_pixel else width // CHANNELS

    def write(
        self, codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, num_threads: int = 1
    ) -> None:
        """Look uint8 codes up in a table."""
        write_runs(codes, out, table, self._run(codes.shape[-1]))

    def describe(self, shape: tuple[int, ...], dtype: str) -> LutEncoding:
        """Return the encoding: codes in the plain layout."""
        run = self._run(shape[-1])
        return LutEncoding(shape, len(shape) - 1, run, None, shape, dtype)


@dataclass(frozen=True, slots=True)
class Patches:
    """Rows of patches, (P, 3 x times x patch x patch) or (P, 3, patch, patch), by our own pass."""

    in_blocks: bool
    """Whether rows run over merge x merge blocks of patches; else row by row of the image."""
    times: int
    """The temporal patch size."""
    repeats: bool
    """Whether all slots of a channel hold the same picture, as for still images."""

    def write(
        self, codes: torch.Tensor, out: torch.Tensor, table: torch.Tensor, num_threads: int = 1
    ) -> None:
        """Look uint8 codes in the plain layout up in a table."""
        write_runs(codes, out, table, codes[0].numel() // CHANNELS)

    def describe(self, shape: tuple[int, ...], dtype: str) -> LutEncoding:
        """Return the encoding: one slot per channel where all slots are the same."""
        if len(shape) != 2:
            return LutEncoding(shape, 1, 1, None, shape, dtype)
        run = shape[1] // CHANNELS
        if not self.repeats or self.times == 1:
            return LutEncoding(shape, 1, run, None, shape, dtype)
        block = run // self.times
        repeat = Repeat(axis=1, block=block, times=self.times)
        return LutEncoding((shape[0], CHANNELS * block), 1, block, repeat, shape, dtype)
