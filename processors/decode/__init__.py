"""Media bytes to pixels and samples, and header probes.

Everything here may crash or hang on hostile bytes and therefore runs in workers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from processors.decode.animation import decode_animation, probe_animation
from processors.decode.audio import decode_audio_of, probe_audio
from processors.decode.frames import DecodedVideo as DecodedVideo
from processors.decode.image import decode_still, probe_image
from processors.decode.sniff import Buffer, Container, Picture, sniff
from processors.decode.video import decode_frames_of, probe_video
from processors.errors import MediaDecodeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality


def probe(data: Buffer, *, limits: DecodeLimits, prefer: Modality | None = None) -> MediaInfo:
    """Read a medium's header.

    Args:
        data: The encoded bytes; of a picture its beginning may do.
        limits: Claims beyond them are refused.
        prefer: What it was sent as: decides for what could be either, as an animated GIF or the
            audio track of a video.

    Raises:
        MediaDecodeError: If the bytes are empty, unknown, cut or corrupt.
        UnsupportedMediaTypeError: If they are known and not served.
        MediaTooLargeError: If they claim more than the limits allow.
    """
    kind = sniff(data)
    if isinstance(kind, Picture):
        if prefer is Modality.VIDEO:
            return probe_animation(data, kind, limits)
        return probe_image(data, kind, limits)
    first, second = probe_video, probe_audio
    if prefer is Modality.AUDIO:
        first, second = second, first
    info = first(data, kind, limits) or second(data, kind, limits)
    if info is None:
        raise MediaDecodeError("The container holds neither video nor audio.")
    return info


def probe_prefix(data: Buffer, *, limits: DecodeLimits) -> MediaInfo | None:
    """Read an image's header from the first bytes of its file; None where more are needed.

    What stands behind the pixels is not seen: how many pictures an animation has, and the
    orientation of the rare PNG that tells it last.

    Raises:
        UnsupportedMediaTypeError: If they are known and not served.
        MediaTooLargeError: If they claim more than the limits allow.
    """
    try:
        kind = sniff(data)
        return probe_image(data, kind, limits) if isinstance(kind, Picture) else None
    except MediaDecodeError:
        return None


def check_modality(info: MediaInfo, modality: Modality) -> None:
    """Refuse a medium of another kind than it was sent as.

    Raises:
        UnsupportedMediaTypeError: Naming both.
    """
    if info.kind is not modality:
        raise UnsupportedMediaTypeError(
            f"The bytes are of kind {info.kind.value}; here {modality.value} is expected."
        )


def decode_image(data: Buffer, *, options: MediaOptions, limits: DecodeLimits) -> np.ndarray:
    """Decode an image as it is meant to be seen; of an animated one the first picture.

    Returns:
        uint8 of shape (H, W, 3), or (H, W, 4) where alpha is to be kept and there is some;
        contiguous, writable and the caller's own.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        UnsupportedMediaTypeError: If they are known and not served, or no picture.
        MediaTooLargeError: If it has more pixels than the limit.
    """
    kind = sniff(data)
    if not isinstance(kind, Picture):
        raise UnsupportedMediaTypeError("The bytes are video or audio; here an image is expected.")
    return decode_still(data, kind, options, limits)


def decode_frames(
    data: Buffer,
    frame_indices: Sequence[int],
    *,
    options: MediaOptions,
    limits: DecodeLimits,
    num_threads: int = 1,
) -> DecodedVideo:
    """Decode frames of a video, or pictures of an animation, by ascending index.

    Args:
        data: The encoded bytes.
        frame_indices: Ascending.
        options: How pictures are to be seen.
        limits: What decodes to more is refused.
        num_threads: Most threads to decode a video with; what comes out does not depend on it.

    Raises:
        MediaDecodeError: If none of them decodes.
        UnsupportedMediaTypeError: If the bytes are known and not served, or hold nothing that
            moves.
        MediaTooLargeError: If they have more pixels or frames than the limits.
    """
    kind = sniff(data)
    if isinstance(kind, Container):
        return decode_frames_of(data, kind, frame_indices, limits, num_threads)
    return decode_animation(data, kind, frame_indices, options, limits)


def decode_audio(
    data: Buffer, *, sample_rate_hz: int, options: MediaOptions, limits: DecodeLimits
) -> np.ndarray:
    """Decode an audio clip, or a video's audio track, to mono float32 of shape (S,).

    Raises:
        MediaDecodeError: If none of it decodes.
        UnsupportedMediaTypeError: If the bytes are known and not served, or hold no audio.
        MediaTooLargeError: If it lasts longer than the limit.
    """
    kind = sniff(data)
    if not isinstance(kind, Container):
        raise UnsupportedMediaTypeError("The bytes are a picture; here audio is expected.")
    return decode_audio_of(data, kind, sample_rate_hz, options, limits)
