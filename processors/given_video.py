"""What a caller tells of the videos that it has preprocessed: times, for the text between frames.

The names are those of transformers' `VideoMetadata`. They make text and are not handed on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from processors.errors import InvalidRequestError
from processors.given_checks import MAX_LENGTH

METADATA_NAMES = frozenset({"fps", "frames_indices", "total_num_frames", "duration"})
_MAX_FPS = 1000.0
_MAX_DURATION_S = 1e7


@dataclass(frozen=True)
class GivenMetadata:
    """One video: frames a second of the file, and which of its frames were taken."""

    fps: float
    frames_indices: tuple[int, ...]
    total_num_frames: int
    duration_s: float


def read_metadata(
    tensors: Mapping[str, torch.Tensor], count: int, max_frames: int
) -> tuple[GivenMetadata, ...]:
    """Return what is told of each video; nothing where nothing is.

    Args:
        tensors: By name: `fps` and `duration` (items), `total_num_frames` (items),
            `frames_indices` (items, frames), -1 behind a shorter one's last; (frames) of one item.
        count: Items of the entry.
        max_frames: Of one video.

    Raises:
        InvalidRequestError: If `fps` or `frames_indices` is missing, or a value is none that a
            video has.
    """
    if not tensors:
        return ()
    missing = [name for name in ("fps", "frames_indices") if name not in tensors]
    if missing:
        raise InvalidRequestError(f"A video's times need '{missing[0]}', too.")
    rates = _numbers(tensors["fps"], "fps", count, _MAX_FPS)
    frames = _frames(tensors["frames_indices"], count, max_frames)
    totals = [indices[-1] + 1 for indices in frames]
    if "total_num_frames" in tensors:
        told = _numbers(tensors["total_num_frames"], "total_num_frames", count, MAX_LENGTH)
        totals = [int(total) for total in told]
    durations = [total / fps for total, fps in zip(totals, rates, strict=True)]
    if "duration" in tensors:
        durations = _numbers(tensors["duration"], "duration", count, _MAX_DURATION_S)
    each = zip(rates, frames, totals, durations, strict=True)
    return tuple(GivenMetadata(*fields) for fields in each)


def _numbers(tensor: torch.Tensor, name: str, count: int, most: float) -> list[float]:
    """Return one positive number per item."""
    if tensor.numel() != count or tensor.dtype is torch.bool:
        raise InvalidRequestError(f"'{name}' is one number per item.")
    values = [float(value) for value in tensor.reshape(-1).tolist()]
    if not all(math.isfinite(value) and 0 < value <= most for value in values):
        raise InvalidRequestError(f"'{name}' is above 0 and at most {most:g}.")
    return values


def _frames(tensor: torch.Tensor, count: int, max_frames: int) -> list[tuple[int, ...]]:
    is_whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
    rows = tensor[None] if tensor.ndim == 1 and count == 1 else tensor
    if not is_whole or rows.ndim != 2 or len(rows) != count or not 0 < rows.shape[1] <= max_frames:
        raise InvalidRequestError(
            "'frames_indices' is integers, a row per item with -1 behind its last, of at most "
            f"{max_frames} frames."
        )
    found = []
    for row in rows.tolist():
        kept = row[: row.index(-1)] if -1 in row else row
        if not kept or any(not 0 <= value <= MAX_LENGTH for value in kept):
            raise InvalidRequestError("'frames_indices' are places of frames in their video.")
        if any(value != -1 for value in row[len(kept) :]):
            raise InvalidRequestError("'frames_indices' has a frame behind its end.")
        found.append(tuple(kept))
    return found
