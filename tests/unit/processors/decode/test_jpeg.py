"""The fast JPEG decoder gives Pillow's pixels, or leaves the file to Pillow."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from processors.decode import decode_image
from processors.errors import MediaDecodeError
from processors.types import DecodeLimits, MediaOptions

LIMITS = DecodeLimits()


def picture(width: int, height: int, mode: str) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 255, (height, width, 3), np.uint8)
    smooth = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX)
    return smooth.convert(mode)


@pytest.mark.parametrize("size", [(1, 1), (17, 9), (64, 48), (131, 257)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
def test_equal_to_pillow(
    size: tuple[int, int], mode: str, subsampling: str, progressive: bool, orientation: int
) -> None:
    """Every sampling, grey, progressive, odd sizes, turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    picture(*size, mode).save(
        out, "JPEG", quality=80, progressive=progressive, exif=exif,
        **({} if mode == "L" else {"subsampling": subsampling}),
    )  # fmt: skip
    data = out.getvalue()
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    pixels = decode_image(data, options=MediaOptions(), limits=LIMITS)
    assert np.array_equal(pixels, expected)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


def test_cmyk_is_left_to_pillow() -> None:
    """Other colour spaces are not the fast decoder's."""
    out = io.BytesIO()
    picture(32, 16, "RGB").convert("CMYK").save(out, "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(out.getvalue())).convert("RGB"))
    pixels = decode_image(out.getvalue(), options=MediaOptions(), limits=LIMITS)
    assert np.array_equal(pixels, expected)


def test_a_cut_jpeg_is_refused() -> None:
    """Half a picture is no picture."""
    out = io.BytesIO()
    picture(256, 256, "RGB").save(out, "JPEG")
    with pytest.raises(MediaDecodeError):
        decode_image(out.getvalue()[:-2000], options=MediaOptions(), limits=LIMITS)
