"""Still images: header probe and decode, upright, RGB, 8 bit."""

from __future__ import annotations

import importlib.util
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from processors.decode.buffers import empty_pixels
from processors.decode.orientation import is_turned, orientation_in, upright
from processors.decode.pixels import MODES, as_elements, to_pixels
from processors.decode.sniff import Buffer, Picture
from processors.decode.structure import Structure, examine
from processors.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

HEIF_PLUGIN = "pillow_heif"
SLOW_PIXELS = 4_000_000
"""Pixels of a picture whose decoder is written in Python (QOI, run-length BMP, plain PPM, ...)."""
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, ArithmeticError,
    RuntimeError, AttributeError, AssertionError, struct.error, zlib.error,
)  # fmt: skip
"""What Pillow's plugins raise at bytes they cannot read."""
_TURNED_BY_PILLOW = frozenset({"TIFF", "HEIF"})
"""Formats that come upright out of their plugin."""
_COUNTED_BY_PLUGIN = frozenset({"AVIF", "MPO"})
"""Formats whose number of pictures stands in the header."""
# All plugins are registered once; a format not yet registered would not be found by its name.
Image.init()
# Our own limits hold before anything is allocated.
Image.MAX_IMAGE_PIXELS = None


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """An image whose header was read and is within the limits."""

    image: Image.Image
    orientation: int
    """EXIF orientation, 1-8."""
    turn: int
    """The orientation by which decoded pixels are still to be turned."""
    num_frames: int
    structure: Structure

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height after turning."""
        width, height = self.image.size
        return (height, width) if is_turned(self.turn) else (width, height)


def probe_image(data: Buffer, picture: Picture, limits: DecodeLimits) -> MediaInfo:
    """Read an image's header.

    Raises:
        MediaDecodeError: If the bytes are no image.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing, or their samples
            have no defined range.
        MediaTooLargeError: If it claims more pixels than the limit.
    """
    with open_image(data, picture, limits) as opened:
        width, height = opened.shown_size
        return MediaInfo(
            kind=Modality.IMAGE,
            mime=picture.mime,
            nbytes=memoryview(data).nbytes,
            width=width,
            height=height,
            orientation=opened.orientation,
            num_frames=opened.num_frames,
        )


def decode_still(
    data: Buffer, picture: Picture, options: MediaOptions, limits: DecodeLimits
) -> np.ndarray:
    """Decode an image as it is meant to be seen; of an animated one the first picture.

    Returns:
        uint8 of shape (H, W, 3), or (H, W, 4) where alpha is to be kept and there is some;
        contiguous, writable and the caller's own.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing, or their samples
            have no defined range.
        MediaTooLargeError: If it has more pixels than the limit.
    """
    with open_image(data, picture, limits) as opened:
        if _is_plain_jpeg(opened.image):
            pixels = _decode_plain_jpeg(data, opened)
            if pixels is not None:
                return pixels
        load(opened)
        return to_pixels(opened.image, options.alpha or "white", opened.turn)


@contextmanager
def open_image(data: Buffer, picture: Picture, limits: DecodeLimits) -> Iterator[OpenedImage]:
    """Open an image; whatever its plugin raises inside becomes our error.

    Raises:
        MediaDecodeError: If the bytes are no image, cut or corrupt.
        UnsupportedMediaTypeError: If they are HEIC and its plug-in is missing, or their samples
            have no defined range.
        MediaTooLargeError: If it claims more pixels than the limit.
    """
    if picture.plugin == "HEIF" and not _register_heif():
        raise UnsupportedMediaTypeError(
            "HEIC images need the server's plug-in (pip install 'mmprep[heif]'); send JPEG or PNG."
        )
    view = memoryview(data).cast("B")
    structure = examine(view, picture.plugin)
    if structure.size is not None:
        check_pixels(*structure.size, limits)
    try:
        with warnings.catch_warnings():
            # Pillow warns of what it can read all the same; what it cannot read is an error.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(view), formats=[picture.plugin]) as image:
                check_pixels(image.width, image.height, limits)
                _check_mode(image)
                yield _opened(image, structure)
    except DECODER_ERRORS as error:
        raise MediaDecodeError("The image is cut, corrupt or of an unknown format.") from error


def load(opened: OpenedImage) -> None:
    """Decode an opened image's (next) picture.

    Raises:
        MediaTooLargeError: If its decoder is slow and it is large.
        MediaDecodeError: If the pixels have another size than the header told.
    """
    image = opened.image
    tiles = getattr(image, "tile", None)
    size = image.size
    if tiles and tiles[0][0] in Image.DECODERS:
        check_pixels(*size, DecodeLimits(max_pixels=SLOW_PIXELS))
    image.load()
    if image.size != size:
        raise MediaDecodeError("The picture has another size than its header tells.")


def check_pixels(width: int, height: int, limits: DecodeLimits) -> None:
    """Refuse a picture by its header's claim.

    Raises:
        MediaTooLargeError: With both numbers.
    """
    if width * height > limits.max_pixels:
        raise MediaTooLargeError(
            f"The picture has {width} x {height} pixels; at most {limits.max_pixels} are decoded."
        )


def _register_heif() -> bool:
    """Make HEIC readable where the plug-in is installed (`mmprep[heif]`); says whether it is."""
    if importlib.util.find_spec(HEIF_PLUGIN) is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)
    return True


def _check_mode(image: Image.Image) -> None:
    # Of 32-bit integers only those that Pillow makes of 16-bit pixmaps have a known range.
    is_known = image.mode in MODES and (image.mode != "I" or image.format == "PPM")
    if not is_known:
        raise UnsupportedMediaTypeError(
            "The image's samples are of a kind that is not served (32-bit numbers, or Lab); send 8 "
            "or 16 bit."
        )


def _opened(image: Image.Image, structure: Structure) -> OpenedImage:
    orientation = _orientation_of(image) or structure.orientation or 1
    num_frames = structure.num_frames or 1
    if image.format in _COUNTED_BY_PLUGIN:
        num_frames = max(int(getattr(image, "n_frames", 1)), 1)
    turn = 1 if image.format in _TURNED_BY_PILLOW else orientation
    return OpenedImage(image, orientation, turn, num_frames, structure)


def _orientation_of(image: Image.Image) -> int | None:
    """Return the EXIF orientation of an opened image as its header tells it, decoding nothing."""
    tags = getattr(image, "tag_v2", None)
    if tags is not None:
        value = tags.get(0x0112)
        return value if isinstance(value, int) and 1 <= value <= 8 else None
    exif = image.info.get("exif")
    xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp")
    if isinstance(xmp, str):
        xmp = xmp.encode("utf-8", "replace")
    return orientation_in(
        exif if isinstance(exif, bytes) else None, xmp if isinstance(xmp, bytes) else None
    )


def _is_plain_jpeg(image: Image.Image) -> bool:
    """Return whether both decoders give the same pixels: 8-bit grey or YCbCr."""
    return (
        image.format in ("JPEG", "MPO")
        and image.mode in ("L", "RGB")
        and image.info.get("adobe_transform", 1) == 1
    )


def _decode_plain_jpeg(data: Buffer, opened: OpenedImage) -> np.ndarray | None:
    """Decode without Pillow's copies; None where the strict decoder has a complaint."""
    width, height = opened.image.size
    pixels = empty_pixels((height, width, 3))
    try:
        decoded = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True, buffer=pixels)
    except ValueError:
        # Pillow decides whether what is odd here is still a picture.
        return None
    if decoded.shape != pixels.shape:
        return None  # the two read another header of the same file
    if opened.turn == 1:
        return pixels
    turned = np.ascontiguousarray(upright(as_elements(pixels), opened.turn))
    return turned.view(np.uint8).reshape(*turned.shape, 3)
