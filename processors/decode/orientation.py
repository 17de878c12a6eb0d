"""EXIF orientations as views of arrays."""

from __future__ import annotations

import re

import numpy as np
from PIL import Image

EXIF_ORIENTATION = 0x0112
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation(?:>|\s*+=\s*+[\"'])\s*+([1-8])")
_INVERSE = {6: 8, 8: 6}


def upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """Return a view of stored pixels as an EXIF orientation (1-8) says they are to be seen."""
    if orientation >= 5:
        stored = stored.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        stored = stored[:, ::-1]
    if orientation in (3, 4, 7, 8):
        stored = stored[::-1]
    return stored


def as_stored(shown: np.ndarray, orientation: int) -> np.ndarray:
    """Return a view of shown pixels into which a stored raster can be written."""
    return upright(shown, _INVERSE.get(orientation, orientation))


def is_turned(orientation: int) -> bool:
    """Return whether width and height change places."""
    return orientation >= 5


def orientation_in(exif: bytes | None, xmp: bytes | None) -> int | None:
    """Return the orientation that an EXIF block or else an XMP packet tells, if any."""
    if exif:
        tags = Image.Exif()
        tags.load(exif)
        value = tags.get(EXIF_ORIENTATION)
        if isinstance(value, int) and 1 <= value <= 8:
            return value
    if xmp and (found := _XMP_ORIENTATION.search(xmp)):
        return int(found[1])
    return None
