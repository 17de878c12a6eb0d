"""Log-mel features of waveforms as Whisper's feature extractor computes them, in fewer passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Waveforms: TypeAlias = np.ndarray[Any, Any]
"""float32 of shape (N, S)."""

_LEAST_POWER = 1e-10
_DECADES = 8.0


@dataclass(frozen=True, slots=True)
class LogMel:
    """An extractor's computation: what a call would make again, made once. Holds nothing of a call.

    The operations are the extractor's own, or give the same bits: magnitudes are `torch.hypot` of
    planes, which is what `abs` of complex numbers is made of, less the half of its work that is
    thrown away; and all that follows is done in place.

    Source: `WhisperFeatureExtractor._torch_extract_fbank_features`, transformers 5.24.
    """

    hop_samples: int
    window: torch.Tensor
    """float32 of shape (FFT size,)."""
    filters: torch.Tensor
    """float32 of shape (FFT size / 2 + 1, mel bins)."""

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
        # The spectrum's bins lie side by side; for the matrix product its frames have to.
        real, imaginary = torch.view_as_real(spectrum[..., :-1]).permute(3, 0, 1, 2).contiguous()
        powers = torch.hypot(real, imaginary, out=real).square_()
        levels = (self.filters.T @ powers).clamp_(min=_LEAST_POWER).log10_()
        floor = levels.amax((1, 2), keepdim=True) - _DECADES
        features: Waveforms = torch.maximum(levels, floor, out=levels).add_(4.0).div_(4.0).numpy()
        return features


def find_log_mel(extractor: object, hop_samples: int, fft_size: int) -> LogMel | None:
    """Return what a feature extractor may compute; None where it has no filters for that.

    Whether it does compute that is for the caller to find out.
    """
    filters = getattr(extractor, "mel_filters", None)
    if not isinstance(filters, np.ndarray) or filters.shape[:-1] != (fft_size // 2 + 1,):
        return None
    return LogMel(
        hop_samples, torch.hann_window(fft_size), torch.from_numpy(filters).to(torch.float32)
    )
