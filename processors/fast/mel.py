"""Log-mel features of sound that fills its window only in part.

Whisper's feature extractor, and those made after it, pad every clip with zeros to a fixed window
(30 s, of Qwen2.5-Omni 300 s) and compute every frame of it. A frame that hears nothing but zeros
has one value, so here only the samples before the silence are computed, and the last of the frames
they give, which hears nothing, is written into all that are left. The computation is `LogMel` where
that is proven to be the extractor's, else the extractor's own code.

    extractor = find_mel(processor.feature_extractor)      # None: only the plain extractor is exact
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from processors.fast.logmel import LogMel, Waveforms, find_log_mels
from processors.fast.padding import UNFIT, find_pad

GRAIN_FRAMES = 32
"""Frames are computed in multiples of this, and of as many no vectorised pass leaves a remainder to
instructions that round otherwise."""
LEAST_FRAMES = 64
"""The matrix product has other bits for a handful of frames, and the same from a dozen on."""
MARGIN_FRAMES = 4
"""Frames at least that are computed and hear nothing, not even the end of the part mirrored."""
_METHOD = "_torch_extract_fbank_features"
_SCAN_STEPS = (1 << 17, 1 << 13)
"""Samples that are searched at a time, from the end: many at first, then few."""
_SMALL_WINDOW_FRAMES = 256
_PART_FRAMES = (64, 96, 288, 512, 1760)
_NOISE_SAMPLES = 99_991
_MOST_WINDOW_SAMPLES = 60 * 16_000
_LEVELS = (1e-7, 1e-5, 1e-3, 1e4)


@dataclass(frozen=True, slots=True)
class AudibleFrames:
    """Stands in for an extractor's own computation of features; holds nothing of a call."""

    plain: Callable[..., Any]
    """The extractor's own: waveforms (N, S) to float32 (N, mel bins, S // hop)."""
    hop_samples: int
    reach_samples: int
    """How far a frame hears to both sides of its centre."""
    log_mel: LogMel | None
    """The same in fewer passes; None where only the plain computation is known to be exact."""

    def compute(self, waveforms: Waveforms) -> Waveforms:
        """Return the features of all frames of waveforms."""
        if self.log_mel is not None:
            return self.log_mel(waveforms)
        features: Waveforms = self.plain(waveforms, "cpu")
        return features

    def __call__(self, waveforms: Waveforms, device: str = "cpu", **kwargs: object) -> Waveforms:
        """Return the features of padded waveforms, bit for bit those of the plain computation."""
        if not _is_fit(waveforms, device, kwargs):
            whole: Waveforms = self.plain(waveforms, device, **kwargs)
            return whole
        kept = self.frames_to_compute(waveforms)
        if kept is None:
            return self.compute(waveforms)
        part = self.compute(waveforms[:, : kept * self.hop_samples])
        shape = (*part.shape[:-1], waveforms.shape[-1] // self.hop_samples)
        features = np.empty(shape, part.dtype)
        features[..., :kept] = part
        features[..., kept:] = part[..., -1:]
        return features

    def frames_to_compute(self, waveforms: Waveforms) -> int | None:
        """Return how many frames must be computed; None where it is as well to compute all."""
        num_audible = count_audible(waveforms)
        num_heard = -(-(num_audible + self.reach_samples) // self.hop_samples)
        kept = -(-(num_heard + MARGIN_FRAMES) // GRAIN_FRAMES) * GRAIN_FRAMES
        kept = max(kept, LEAST_FRAMES)
        # The last frames hear the window's end mirrored: it has to be silence, too.
        is_shorter = kept * self.hop_samples + 2 * self.reach_samples <= waveforms.shape[-1]
        return kept if is_shorter else None


def find_mel(extractor: Any) -> Any | None:  # noqa: ANN401 - a transformers feature extractor
    """Return a copy of a feature extractor that computes no silent frame but a few, or None.

    It is compared with the original on noise first: frames of the extractor's own window (a
    minute of it at most) beside those of parts of it, and whole results around every edge. Takes
    well under 300 ms.

    Returns:
        The copy, for use by several threads at once; None where an extractor computes its features
        otherwise, has no window, adds noise of its own, or is not met bit for bit.
    """
    window = getattr(extractor, "n_samples", None)
    if not isinstance(window, int) or window <= 0:
        return None
    for audible in _ways(extractor):
        if _agrees(audible, min(window, _MOST_WINDOW_SAMPLES)):
            faster = copy.copy(extractor)
            setattr(faster, _METHOD, audible)
            pad = find_pad(extractor)
            if pad is not None:
                faster.pad = pad
            return faster
    return None


def count_audible(waveforms: Waveforms) -> int:
    """Return how many samples there are up to the last one of any waveform that is not +0.0."""
    bits = waveforms.view(np.uint32)
    stop: int = bits.shape[-1]
    for step in _SCAN_STEPS:
        # The maximum is found by vectors, and so in half the time of `any`.
        while stop > 0 and not bits[:, max(stop - step, 0) : stop].max():
            stop = max(stop - step, 0)
    if stop == 0:
        return 0
    last = bits[:, max(stop - step, 0) : stop].max(axis=0)
    return stop - int((last[::-1] != 0).argmax())


def _ways(extractor: object) -> list[AudibleFrames]:
    """Return what might stand in for an extractor's computation, the fastest first."""
    plain = getattr(extractor, _METHOD, None)
    hop, size = getattr(extractor, "hop_length", None), getattr(extractor, "n_fft", None)
    if plain is None or getattr(extractor, "dither", 0.0) != 0.0:
        return []
    if not isinstance(hop, int) or not isinstance(size, int) or not 0 < size <= MARGIN_FRAMES * hop:
        return []
    ways = (*find_log_mels(extractor, hop, size), None)
    return [AudibleFrames(plain, hop, -(-size // 2), way) for way in ways]


def _is_fit(waveforms: object, device: str, kwargs: dict[str, object]) -> bool:
    if device != "cpu" or kwargs or not isinstance(waveforms, np.ndarray):
        return False
    return waveforms.ndim == 2 and waveforms.dtype == np.float32


def _noise(num_samples: int) -> Waveforms:
    """Return noise that is loudest at once, so that features of any part are floored alike."""
    period = np.random.default_rng(0).standard_normal(_NOISE_SAMPLES, np.float32)
    noise = np.resize(period, (1, num_samples))
    noise *= np.float32(0.05)
    noise[:, :64] *= np.float32(10)
    return noise


def _agrees(audible: AudibleFrames, window: int) -> bool:
    """Return whether results are the plain ones, bit for bit."""
    try:
        with torch.inference_mode():
            return (
                _parts_agree(audible, window) and _edges_agree(audible) and _levels_agree(audible)
            )
    except UNFIT:
        return False


def _parts_agree(audible: AudibleFrames, window: int) -> bool:
    """Return whether frames do not depend on how many are computed with them."""
    hop = audible.hop_samples
    noise = _noise(window)
    whole = audible.plain(noise, "cpu")
    if whole.dtype != np.float32 or whole.shape[-1] != window // hop:
        return False
    if not np.array_equal(audible.compute(noise), whole):
        return False
    at_end = -(-audible.reach_samples // hop)  # a part ends with frames that hear its end mirrored
    for kept in (frames for frames in _PART_FRAMES if frames <= window // hop // 4):
        part = audible.compute(noise[:, : kept * hop])
        if part.shape != (*whole.shape[:-1], kept):
            return False
        inner = slice(0, kept - at_end)
        if not np.array_equal(part[..., inner], whole[..., inner]):
            return False
    return True


def _edges_agree(audible: AudibleFrames) -> bool:
    """Return whether whole results are equal, of clips that end just before and after any edge."""
    hop, reach = audible.hop_samples, audible.reach_samples
    window = _SMALL_WINDOW_FRAMES * hop + hop - 1
    noise = _noise(window)
    edges = [0, reach, hop]
    edges += [
        (kept - MARGIN_FRAMES) * hop - reach
        for kept in range(LEAST_FRAMES, _SMALL_WINDOW_FRAMES, GRAIN_FRAMES)
    ]
    lengths = {max(edge + near, 0) for edge in edges for near in (0, 1)} | {window - 1, window}
    for length in sorted(lengths):
        padded = noise.copy()
        padded[:, length:] = 0
        if not np.array_equal(audible(padded), audible.plain(padded, "cpu")):
            return False
    return True


def _levels_agree(audible: AudibleFrames) -> bool:
    """Return whether results are equal of sound so quiet that it is floored, and of loud sound."""
    noise = _noise(LEAST_FRAMES * audible.hop_samples)
    return all(
        np.array_equal(audible.compute(scaled), audible.plain(scaled, "cpu"))
        for scaled in (noise * np.float32(scale) for scale in _LEVELS)
    )
