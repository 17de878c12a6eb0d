"""Animated pictures (GIF, WebP, APNG, AVIF) read as videos."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from processors.decode.clock import Clock
from processors.decode.frames import DecodedVideo, FrameBuffer
from processors.decode.image import OpenedImage, load, open_image, probe_image
from processors.decode.pixels import Alpha, fill
from processors.decode.sniff import Buffer, Picture
from processors.decode.structure import DEFAULT_FRAME_S
from processors.errors import MediaDecodeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

_ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF"})


def probe_animation(data: Buffer, picture: Picture, limits: DecodeLimits) -> MediaInfo:
    """Read an animated picture as a video, or a still one as the image that it is.

    Raises:
        MediaDecodeError: If it is cut or corrupt.
        UnsupportedMediaTypeError: If its samples have no defined range.
        MediaTooLargeError: If it has more pixels than the limit.
    """
    info = probe_image(data, picture, limits)
    if not _can_move(picture, info.num_frames or 1):
        return info
    with open_image(data, picture, limits) as opened:
        durations_s = _durations_s(opened)
    seconds = sum(durations_s)
    return replace(
        info,
        kind=Modality.VIDEO,
        fps=len(durations_s) / seconds,
        seconds=seconds,
        orientation=None,
        exact=False,
    )


def decode_animation(
    data: Buffer,
    picture: Picture,
    frame_indices: Sequence[int],
    options: MediaOptions,
    limits: DecodeLimits,
) -> DecodedVideo:
    """Decode pictures of an animation by index, ascending; alpha on white unless it is dropped.

    Raises:
        MediaDecodeError: If none of them decodes.
        UnsupportedMediaTypeError: If the picture is not animated.
        MediaTooLargeError: If they have more pixels or frames than the limits.
    """
    clock = Clock(limits.max_decode_s)
    with open_image(data, picture, limits) as opened:
        if not _can_move(picture, opened.num_frames):
            raise UnsupportedMediaTypeError("The bytes are a still picture, not an animation.")
        width, height = opened.shown_size
        buffer = FrameBuffer(frame_indices, limits)
        buffer.allocate(width, height)
        alpha: Alpha = "drop" if options.alpha == "drop" else "white"
        starts_s = (0.0, *itertools.accumulate(_durations_s(opened)))
        for index in range(min(opened.num_frames, max(frame_indices, default=-1) + 1)):
            clock.check()
            place = buffer.place_of(index)
            if not _show(opened, index, is_wanted=place is not None):
                break
            if place is not None:
                fill(place, opened.image, alpha, opened.turn)
                buffer.took(index, starts_s[index])
    return buffer.finish()


def _show(opened: OpenedImage, index: int, *, is_wanted: bool) -> bool:
    """Bring an animation to a picture; False where it ends or breaks before it."""
    try:
        opened.image.seek(index)
        if is_wanted:
            load(opened)
    except (EOFError, OSError, SyntaxError, ValueError, MediaDecodeError):
        # What came before it is whole.
        return False
    return True


def _can_move(picture: Picture, num_frames: int) -> bool:
    return picture.plugin == "GIF" or (picture.plugin in _ANIMATED and num_frames > 1)


def _durations_s(opened: OpenedImage) -> Sequence[float]:
    told = opened.structure.durations_s
    if told is not None and len(told) == opened.num_frames:
        return told
    return [DEFAULT_FRAME_S] * opened.num_frames
