"""Mel levels of spectra in one compiled pass, in the place of three operations of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

try:
    from processors.fast import _mel
except ImportError:  # built without a compiler, or for a machine without AVX2: torch computes
    AVAILABLE = False
else:
    AVAILABLE = True

LEAST_FRAMES = 16
_LEAST_BINS, _MOST_BINS = 8, 2048
"""As in `_mel.c`."""
_PROBE_FRAMES = 96


@dataclass(frozen=True, slots=True)
class MelBank:
    """Filters of which only what is not nought is multiplied; holds nothing of a call."""

    filters: NDArray[Any]
    """float32 of shape (mel bins, FFT size / 2 + 1)."""
    block: int
    """Bins that torch's matrix product sums before it adds them to those before."""

    def levels(self, spectra: torch.Tensor) -> torch.Tensor | None:
        """Return the filters' products with the spectra's squared magnitudes.

        Args:
            spectra: complex64 of shape (N, F, bins).

        Returns:
            float32 of shape (N, mel bins, F); None where torch must be asked: of few frames, of
            frames that lie otherwise, and of powers that are not finite, which spread to every bin.
        """
        count, num_frames, num_bins = spectra.shape
        if num_frames < LEAST_FRAMES or spectra.stride()[1:] != (num_bins, 1):
            return None
        out = torch.empty((count, len(self.filters), num_frames))
        pairs = zip(torch.view_as_real(spectra).numpy(), out.numpy(), strict=True)
        if all(_mel.mel(spectrum, self.filters, each, self.block) for spectrum, each in pairs):
            return out
        return None


def find_bank(filters: torch.Tensor) -> MelBank | None:
    """Return a bank of filters; None where torch sums their products in another order.

    Args:
        filters: float32 of shape (FFT size / 2 + 1, mel bins).
    """
    num_bins = len(filters)
    if not AVAILABLE or not _LEAST_BINS <= num_bins <= _MOST_BINS:
        return None
    # Of filters without noughts every bin tells where a block ends.
    random = torch.Generator().manual_seed(0)
    full = torch.rand(filters.shape, generator=random) + 0.1
    spectra = torch.randn((1, _PROBE_FRAMES, num_bins), generator=random, dtype=torch.complex64)
    expected = full.T @ (spectra.mT.abs() ** 2).contiguous()
    dense = full.T.contiguous().numpy()
    for block in range(num_bins, 0, -1):
        found = MelBank(dense, block).levels(spectra)
        if found is not None and torch.equal(found, expected):
            return MelBank(np.ascontiguousarray(filters.T.numpy()), block)
    return None
