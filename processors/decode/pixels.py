"""Any mode of Pillow to 8-bit RGB: alpha composited, 16 bit scaled, palettes resolved.

A picture is converted strip by strip into its place, so that beside it and the result only a strip
is ever held, and a turned one is written turned.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from PIL import Image

from processors.decode.buffers import empty_pixels
from processors.decode.orientation import as_stored, is_turned

Alpha = Literal["white", "drop", "keep"]

DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
"""Modes of 16-bit grey."""
MODES = DEEP_GREY | {
    "1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr",
}  # fmt: skip
"""Modes whose samples have a defined range; 32-bit integers and floats have none."""
STRIP_PIXELS = 1 << 19
_WHITE = (255, 255, 255, 255)


def num_channels(image: Image.Image, alpha: Alpha) -> int:
    """Return 4 where alpha is to be kept and there is some, else 3."""
    return 4 if alpha == "keep" and image.has_transparency_data else 3


def to_pixels(image: Image.Image, alpha: Alpha, orientation: int) -> np.ndarray:
    """Return a loaded image's pixels, upright.

    Args:
        image: Loaded.
        alpha: `white` composites on white, `drop` forgets it, `keep` keeps it.
        orientation: EXIF orientation by which it is still to be turned, 1-8.

    Returns:
        uint8 of shape (H, W, 3), or (H, W, 4) where alpha is kept; contiguous and writable.
    """
    width, height = image.size
    if is_turned(orientation):
        width, height = height, width
    out = empty_pixels((height, width, num_channels(image, alpha)))
    fill(out, image, alpha, orientation)
    return out


def fill(out: np.ndarray, image: Image.Image, alpha: Alpha, orientation: int) -> None:
    """Write a loaded image's pixels, upright, into an array of its shown size."""
    _narrow_colour_key(image)
    stored = as_stored(as_elements(out), orientation)
    width, height = image.size
    rows = max(STRIP_PIXELS // width, 1)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        pixels = _strip_pixels(strip, alpha, out.shape[2])
        stored[top : top + rows] = as_elements(np.ascontiguousarray(pixels))


def as_elements(pixels: np.ndarray) -> np.ndarray:
    """Return contiguous pixels (H, W, C) as (H, W) of one element each, which copies faster."""
    return pixels.view(f"V{pixels.shape[2]}")[..., 0]


def _strip_pixels(strip: Image.Image, alpha: Alpha, channels: int) -> np.ndarray:
    if strip.mode in DEEP_GREY:
        return _deep_grey_pixels(strip, alpha, channels)
    if not strip.has_transparency_data:
        return np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))
    rgba = strip if strip.mode == "RGBA" else strip.convert("RGBA")
    if alpha == "white":
        return _on_white(rgba)
    return np.asarray(rgba)[..., :channels]


def _deep_grey_pixels(strip: Image.Image, alpha: Alpha, channels: int) -> np.ndarray:
    """Return 16-bit grey as 8 bit: scaled by 1/257, where a plain conversion would clip."""
    values = np.asarray(strip).astype(np.uint32)
    eight = np.minimum((values + 128) // 257, 255).astype(np.uint8)
    pixels = np.repeat(eight[..., None], channels, axis=2)
    key = strip.info.get("transparency")
    if isinstance(key, int):
        if channels == 4:
            pixels[..., 3] = np.where(values == key, 0, 255)
        elif alpha == "white":
            pixels[values == key] = 255
    elif channels == 4:
        pixels[..., 3] = 255
    return pixels


def _narrow_colour_key(image: Image.Image) -> None:
    """Let a 16-bit transparent colour speak of the 8-bit pixels that Pillow made of its image."""
    key = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _on_white(rgba: Image.Image) -> np.ndarray:
    ground = Image.new("RGBA", rgba.size, _WHITE)
    ground.alpha_composite(rgba)
    return np.asarray(ground.convert("RGB"))
