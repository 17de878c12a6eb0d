"""Animated pictures (GIF, WebP, APNG) read as videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from processors.decode.image import open_image, probe_image, writable
from processors.decode.pixels import to_rgb
from processors.decode.sniff import Buffer
from processors.decode.video import DecodedVideo
from processors.errors import MediaDecodeError, MediaTooLargeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

_DEFAULT_MS = 100.0
"""How long a picture is shown whose file does not say, as browsers do."""


def probe_animation(data: Buffer, limits: DecodeLimits) -> MediaInfo:
    """Read an animated picture as a video; a still one is a video of one frame.

    Raises:
        MediaDecodeError: If it is cut or corrupt.
        MediaTooLargeError: If it has more pixels or frames than the limits.
    """
    info = probe_image(data, limits)
    total_ms = 0.0
    with open_image(data, limits) as image:
        count = int(getattr(image, "n_frames", 1))
        if count > 100_000:
            raise MediaTooLargeError("The animation has too many frames.")
        total_ms = (image.info.get("duration") or _DEFAULT_MS) * count
    return replace(
        info,
        kind=Modality.VIDEO,
        num_frames=count,
        fps=1000.0 * count / total_ms,
        seconds=total_ms / 1000.0,
        orientation=None,
        exact=False,
    )


def decode_animation(
    data: Buffer, frame_indices: Sequence[int], options: MediaOptions, limits: DecodeLimits
) -> DecodedVideo:
    """Decode pictures of an animation by index.

    Raises:
        MediaDecodeError: If none of them decodes.
        MediaTooLargeError: If they have more pixels than the limit.
    """
    frames: list[np.ndarray] = []
    with open_image(data, limits) as image:
        total = image.width * image.height * len(frame_indices)
        if total > limits.max_pixels or len(frame_indices) > limits.max_frames:
            raise MediaTooLargeError(
                f"The frames hold {total} pixels; at most {limits.max_pixels} are decoded."
            )
        count = int(getattr(image, "n_frames", 1))
        there = tuple(index for index in frame_indices if index < count)
        for index in there:
            image.seek(index)
            frames.append(writable(to_rgb(image, options.alpha or "white"))[..., :3])
    if not frames:
        raise MediaDecodeError("None of the animation's frames decodes.")
    missing = len(frame_indices) - len(there)
    return DecodedVideo(np.stack(frames), there, tuple(float(i) for i in there), missing)
