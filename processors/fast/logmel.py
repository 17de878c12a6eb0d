"""Log-mel features of waveforms as Whisper's feature extractor computes them, in fewer passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from processors.fast.mel_bank import MelBank, find_bank

Waveforms: TypeAlias = np.ndarray[Any, Any]
"""float32 of shape (N, S)."""

_LEAST_POWER = 1e-10
_DECADES = 8.0


@dataclass(frozen=True, slots=True)
class LogMel:
    """An extractor's computation: what a call would make again, made once. Holds nothing of a call.

    The operations are the extractor's own, or give the same bits: levels come from a `MelBank`, or
    their magnitudes are `torch.hypot` of planes, which is what `abs` of complex numbers is made of,
    less the half of its work that is thrown away; and all that follows is done in place.

    Source: `WhisperFeatureExtractor._torch_extract_fbank_features`, transformers 5.24.
    """

    hop_samples: int
    window: torch.Tensor
    """float32 of shape (FFT size,)."""
    filters: torch.Tensor
    """float32 of shape (FFT size / 2 + 1, mel bins)."""
    bank: MelBank | None

    def __call__(self, waveforms: Waveforms) -> Waveforms:
        """Compute a frame for every hop of waveforms.

        Args:
            waveforms: float32 of shape (N, S).

        Returns:
            float32 of shape (N, mel bins, S // hop).
        """
        spectrum = torch.stft(
            torch.from_numpy(waveforms),
            len(self.window),
            self.hop_samples,
            window=self.window,
            return_complex=True,
        )
        levels = self._levels(spectrum[..., :-1]).clamp_(min=_LEAST_POWER).log10_()
        floor = levels.amax((1, 2), keepdim=True) - _DECADES
        features: Waveforms = torch.maximum(levels, floor, out=levels).add_(4.0).div_(4.0).numpy()
        return features

    def _levels(self, spectrum: torch.Tensor) -> torch.Tensor:
        # Frames lie apart in it, and the bins of each side by side.
        levels = None if self.bank is None else self.bank.levels(spectrum.mT)
        if levels is not None:
            return levels
        # For the matrix product frames have to lie side by side.
        real, imaginary = torch.view_as_real(spectrum).permute(3, 0, 1, 2).contiguous()
        powers = torch.hypot(real, imaginary, out=real).square_()
        return self.filters.T @ powers


def find_log_mels(extractor: object, hop_samples: int, fft_size: int) -> list[LogMel]:
    """Return what a feature extractor may compute, the fastest first; nothing without filters.

    Whether it does compute that is for the caller to find out.
    """
    filters = getattr(extractor, "mel_filters", None)
    if not isinstance(filters, np.ndarray) or filters.shape[:-1] != (fft_size // 2 + 1,):
        return []
    weights = torch.from_numpy(filters).to(torch.float32)
    banks = [bank for bank in (find_bank(weights),) if bank is not None]
    window = torch.hann_window(fft_size)
    return [LogMel(hop_samples, window, weights, bank) for bank in (*banks, None)]
