"""Any mode of Pillow to 8-bit RGB: alpha composited, 16 bit scaled, palettes resolved."""

from __future__ import annotations

import numpy as np
from PIL import Image

_WHITE = (255, 255, 255, 255)
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})


def to_rgb(image: Image.Image, alpha: str) -> Image.Image:
    """Return a decoded image as RGB, or RGBA where alpha is to be kept and there is some.

    Args:
        image: Loaded.
        alpha: `white` composites on white, `drop` forgets it, `keep` keeps it.
    """
    if image.mode in _DEEP_GREY:
        return _scaled(image).convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    if alpha == "keep":
        return rgba
    if alpha == "drop":
        return rgba.convert("RGB")
    ground = Image.new("RGBA", rgba.size, _WHITE)
    ground.alpha_composite(rgba)
    return ground.convert("RGB")


def _scaled(image: Image.Image) -> Image.Image:
    """Return 16-bit grey as 8 bit: scaled by 1/257, where a plain conversion would clip."""
    values = np.asarray(image)
    eight = np.clip(np.rint(values / 257.0), 0, 255).astype(np.uint8)
    return Image.fromarray(eight)
