"""Still images: header probe and decode, upright, RGB, 8 bit."""

from __future__ import annotations

import importlib.util
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import simplejpeg
from PIL import Image

from processors.decode.pixels import to_rgb
from processors.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

FORMATS = [
    "JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO", "PCX",
    "QOI", "SGI",
]  # fmt: skip
"""Pillow's plugins that read untrusted bytes here; none of them runs another program."""
HEIF_PLUGIN = "pillow_heif"
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, ArithmeticError,
    RuntimeError, AttributeError, AssertionError, struct.error, zlib.error,
)  # fmt: skip
"""What Pillow's plugins raise at bytes they cannot read."""
_EXIF_ORIENTATION = 0x0112
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation(?:>|\s*=\s*[\"'])\s*([1-8])")
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
Buffer = bytes | bytearray | memoryview
# All plugins are registered once; a format not yet registered would not be found by its name.
Image.init()
# Our own limits hold before anything is allocated.
Image.MAX_IMAGE_PIXELS = None


def register_heif() -> bool:
    """Make HEIC readable where the plug-in is installed (`mmprep[heif]`); says whether it is."""
    if importlib.util.find_spec(HEIF_PLUGIN) is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)
    return True


def probe_image(data: Buffer, limits: DecodeLimits, *, heif: bool = False) -> MediaInfo:
    """Read an image's header.

    Raises:
        MediaDecodeError: If the bytes are no image.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing.
        MediaTooLargeError: If it claims more pixels than the limit.
    """
    with open_image(data, limits, heif=heif) as image:
        orientation = orientation_of(image)
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
    """Decode an image as it is meant to be seen; of an animated one the first picture.

    Returns:
        uint8 of shape (H, W, 3), or (H, W, 4) where alpha is to be kept and there is some;
        contiguous, writable and the caller's own.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing.
        MediaTooLargeError: If it has more pixels than the limit.
    """
    with open_image(data, limits, heif=is_heif(data)) as image:
        orientation = orientation_of(image)
        if _is_plain_jpeg(image):
            pixels = _decode_plain_jpeg(data)
            if pixels is not None:
                return _upright(pixels, orientation)
        image.load()
        rgb = to_rgb(image, options.alpha or "white")
        if orientation != 1:
            rgb = rgb.transpose(_TRANSPOSES[orientation])
        return writable(rgb)


def is_heif(data: Buffer) -> bool:
    """Return whether bytes are HEIC, whose plug-in may be missing."""
    from processors.decode.sniff import sniff

    return sniff(data) == "heif"


@contextmanager
def open_image(data: Buffer, limits: DecodeLimits, *, heif: bool = False) -> Iterator[Image.Image]:
    """Open an image; whatever its plugin raises inside becomes our error.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing.
        MediaTooLargeError: If it claims more pixels than the limit.
    """
    if heif and not register_heif():
        raise UnsupportedMediaTypeError(
            "HEIC images need the server's plug-in (pip install 'mmprep[heif]'); send JPEG or PNG."
        )
    formats = ["HEIF"] if heif else FORMATS
    try:
        with warnings.catch_warnings():
            # Pillow warns of what it can read all the same; what it cannot read is an error.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=formats) as image:
                check_pixels(image.width, image.height, limits)
                yield image
    except DECODER_ERRORS as error:
        raise MediaDecodeError("The image is cut, corrupt or of an unknown format.") from error


def check_pixels(width: int, height: int, limits: DecodeLimits) -> None:
    """Refuse a picture by its header's claim.

    Raises:
        MediaTooLargeError: With both numbers.
    """
    if width * height > limits.max_pixels:
        raise MediaTooLargeError(
            f"The picture has {width} x {height} pixels; at most {limits.max_pixels} are decoded."
        )


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image, 1-8, as its header tells it.

    Nothing is decoded for it: what stands behind the pixels of a PNG is not looked at.
    """
    value: object = None
    tags = getattr(image, "tag_v2", None)
    if tags is not None:
        value = tags.get(_EXIF_ORIENTATION)
    elif isinstance(raw := image.info.get("exif"), bytes):
        exif = Image.Exif()
        exif.load(raw)
        value = exif.get(_EXIF_ORIENTATION)
    if value is None:
        value = _xmp_orientation(image)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _xmp_orientation(image: Image.Image) -> int | None:
    for name in ("xmp", "XML:com.adobe.xmp"):
        text = image.info.get(name)
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if isinstance(raw, bytes) and (found := _XMP_ORIENTATION.search(raw)):
            return int(found[1])
    return None


def _is_plain_jpeg(image: Image.Image) -> bool:
    """Return whether both decoders give the same pixels: 8-bit grey or YCbCr."""
    return (
        image.format in ("JPEG", "MPO")
        and image.mode in ("L", "RGB")
        and image.info.get("adobe_transform", 1) == 1
    )


def _decode_plain_jpeg(data: Buffer) -> np.ndarray | None:
    """Decode without Pillow's copies; None where the strict decoder has a complaint."""
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
    except ValueError:
        # Pillow decides whether what is odd here is still a picture.
        return None
    return pixels


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return pixels turned as an EXIF orientation says; a copy unless they are upright."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def writable(image: Image.Image) -> np.ndarray:
    """Return an image's pixels in memory of their own."""
    channels = len(image.getbands())
    raw = np.frombuffer(bytearray(image.tobytes()), dtype=np.uint8)
    return raw.reshape(image.height, image.width, channels)
