"""Media bytes to pixels and samples, and header probes."""

from __future__ import annotations

from processors.decode.image import decode_image as decode_image
from processors.decode.image import probe_image
from processors.errors import UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, Modality


def probe(
    data: bytes | memoryview, *, limits: DecodeLimits, prefer: Modality | None = None
) -> MediaInfo:
    """Read a medium's header; `prefer` decides what could be either (an animated GIF)."""
    del prefer
    return probe_image(data, limits)


def check_modality(info: MediaInfo, modality: Modality) -> None:
    """Refuse a medium of another kind than it was sent as.

    Raises:
        UnsupportedMediaTypeError: Naming both.
    """
    if info.kind is not modality:
        raise UnsupportedMediaTypeError(f"An {info.kind} was sent where {modality} is expected.")
