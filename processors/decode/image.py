"""Still images: header probe and decode, with Pillow's allow-listed plugins."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from processors.errors import MediaDecodeError, MediaTooLargeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

FORMATS = (
    "JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO",
    "TGA", "PCX", "QOI", "SGI",
)  # fmt: skip
"""Pillow plugins that read untrusted bytes; none runs another program."""
_ORIENTATION_TAG = 0x0112
Image.init()
# Our own limits hold before anything is allocated.
Image.MAX_IMAGE_PIXELS = None
Buffer = bytes | memoryview


def probe_image(data: Buffer, limits: DecodeLimits) -> MediaInfo:
    """Read an image's header.

    Raises:
        MediaDecodeError: If the bytes are no image.
        MediaTooLargeError: If it claims more pixels than the limit.
    """
    with _open(data) as image:
        check_pixels(image.width, image.height, limits)
        orientation = _orientation(image)
        width, height = image.size
        if orientation >= 5:
            width, height = height, width
        return MediaInfo(
            kind=Modality.IMAGE,
            mime=Image.MIME.get(image.format or "", "application/octet-stream"),
            nbytes=memoryview(data).nbytes,
            width=width,
            height=height,
            orientation=orientation,
            num_frames=getattr(image, "n_frames", 1),
        )


def decode_image(data: Buffer, *, options: MediaOptions, limits: DecodeLimits) -> np.ndarray:
    """Decode an image as it is meant to be seen.

    Returns:
        uint8 of shape (H, W, 3), or (H, W, 4) where alpha is to be kept and there is some.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        MediaTooLargeError: If it has more pixels than the limit.
    """
    with _open(data) as image:
        check_pixels(image.width, image.height, limits)
        try:
            image.load()
            upright = ImageOps.exif_transpose(image)
        except (OSError, SyntaxError, ValueError, EOFError, IndexError) as error:
            raise MediaDecodeError("The image is cut or corrupt.") from error
        return np.array(_to_rgb(upright, options.alpha or "white"))


def check_pixels(width: int, height: int, limits: DecodeLimits) -> None:
    """Refuse an image by its header's claim.

    Raises:
        MediaTooLargeError: With both numbers.
    """
    if width * height > limits.max_pixels:
        raise MediaTooLargeError(
            f"The image has {width} x {height} pixels; at most {limits.max_pixels} are decoded."
        )


def _open(data: Buffer) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise MediaDecodeError("The bytes are not an image in a format that is served.") from error


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(_ORIENTATION_TAG, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _to_rgb(image: Image.Image, alpha: str) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        scaled = np.asarray(image, dtype=np.float64) / 257.0
        image = Image.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    if alpha == "keep":
        return rgba
    if alpha == "drop":
        return rgba.convert("RGB")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")
