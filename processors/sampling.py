"""Which frames of a video are looked at: the processor's own rule, or frames per second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from processors import hf
from processors.errors import InvalidRequestError, MediaDecodeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions


@dataclass(frozen=True)
class Selection:
    """The frames chosen from a video."""

    frame_indices: tuple[int, ...]
    """Ascending, in the whole video; a processor's own rule may repeat its last one."""
    num_frames: int
    """Frames of the part of the video that was chosen from."""
    fps: float
    duration_s: float


def select_frames(
    part: hf.HfObject,
    info: MediaInfo,
    kwargs: Mapping[str, Any],
    merged: Mapping[str, Any],
    options: MediaOptions,
    limits: DecodeLimits,
    default_fps: float,
) -> Selection:
    """Choose frames from what a video's header says.

    Where the processor samples by itself, or the caller gives `fps` or `num_frames`, its own rule
    chooses; otherwise `default_fps` frames a second. More than `max_frames` (of the options, of the
    limits) are thinned evenly.

    Args:
        part: The video processor.
        info: The video's header.
        kwargs: Effective keyword arguments, as the caller and the server gave them.
        merged: The same over the processor's own (`videos_kwargs`).
        options: `start_s`, `end_s` and `max_frames` are looked at here.
        limits: For the frame limit.
        default_fps: Frames a second where nobody says otherwise.

    Raises:
        MediaDecodeError: If the header tells no frames.
        InvalidRequestError: If `start_s` and `end_s` leave none, or the rule cannot choose.
    """
    if not info.num_frames:
        raise MediaDecodeError("The video's header tells no frames.")
    fps = info.fps or 24.0
    first, stop = _window(info.num_frames, fps, options)
    whole = stop - first == info.num_frames
    duration_s = info.seconds if whole and info.seconds else (stop - first) / fps
    facts = {
        "num_frames": stop - first,
        "fps": fps,
        "duration_s": duration_s,
        "size": (info.height, info.width),
    }
    indices = _choose(part, facts, kwargs, merged, default_fps)
    most = min(options.max_frames or limits.max_frames, limits.max_frames)
    thinned = thin([first + index for index in indices], most)
    return Selection(tuple(thinned), stop - first, fps, duration_s)


def thin(indices: list[int], most: int) -> list[int]:
    """Return at most `most` of the indices, evenly spread, the first and the last among them."""
    if len(indices) <= most:
        return indices
    kept = np.linspace(0, len(indices) - 1, most).round().astype(int)
    return [indices[place] for place in kept]


def _window(num_frames: int, fps: float, options: MediaOptions) -> tuple[int, int]:
    """Return the half-open range of frames between `start_s` and `end_s`."""
    first = math.ceil((options.start_s or 0.0) * fps)
    stop = num_frames if options.end_s is None else math.ceil(options.end_s * fps)
    stop = min(stop, num_frames)
    if not 0 <= first < stop:
        raise InvalidRequestError("'start_s' and 'end_s' leave no frame of the video.", "options")
    return first, stop


def _choose(
    part: hf.HfObject,
    facts: dict[str, Any],
    kwargs: Mapping[str, Any],
    merged: Mapping[str, Any],
    default_fps: float,
) -> list[int]:
    total = int(facts["num_frames"])
    is_asked = kwargs.get("fps") is not None or kwargs.get("num_frames") is not None
    samples_itself = merged.get("do_sample_frames", getattr(part, "do_sample_frames", False))
    if not is_asked and not samples_itself:
        return _at_rate(total, facts["fps"], default_fps)
    arguments = {name: getattr(part, name, None) for name in part.valid_kwargs.__annotations__}
    arguments |= {name: value for name, value in merged.items() if value is not None}
    if kwargs.get("fps") is not None:
        arguments["num_frames"] = None
    if kwargs.get("num_frames") is not None:
        arguments["fps"] = None
    try:
        return _checked(hf.sample_frames(part, arguments, **facts), total)
    except hf.HF_ERRORS as exc:
        if not is_asked:
            # The rule needs more frames than there are; all of them are the closest to it.
            return list(range(total))
        raise InvalidRequestError(
            f"The processor cannot choose frames so from a video of {total} frames.", "fps"
        ) from exc


def _at_rate(total: int, fps: float, rate: float) -> list[int]:
    count = min(max(round(total / fps * rate), 1), total)
    return [int(index) for index in np.arange(count) * total // count]


def _checked(indices: list[int], total: int) -> list[int]:
    if not indices or min(indices) < 0 or max(indices) >= total:
        raise ValueError("no frames, or frames outside of the video")
    return indices
