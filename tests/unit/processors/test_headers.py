"""Plain headers are read as the full probe reads them, or not at all."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from processors.decode import probe
from processors.errors import MmprepError
from processors.headers import read_plain_header
from processors.types import DecodeLimits, Modality

ROOT = Path(__file__).parents[3]
FOLDERS = [ROOT / "tests" / "resources" / "media", ROOT.parent / "shared" / "media"]
LIMITS = DecodeLimits(max_pixels=1 << 40)


def save(kind: str, mode: str = "RGB", size: tuple[int, int] = (37, 21), **options: Any) -> bytes:
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels, mode).save(out, kind, **options)
    return out.getvalue()


def full(data: bytes) -> Any:
    try:
        return probe(data, limits=LIMITS, prefer=Modality.IMAGE)
    except MmprepError as error:
        return error


@pytest.mark.parametrize(
    "data",
    [
        save("JPEG"),
        save("JPEG", "L"),
        save("JPEG", size=(1, 1)),
        save("JPEG", size=(2000, 3), quality=100, subsampling=0),
        save("JPEG", comment=b"hello", dpi=(300, 300)),
        save("PNG"),
        save("PNG", "RGBA", size=(300, 200)),
        save("PNG", dpi=(72, 72), compress_level=0),
    ],
    ids=["jpeg", "grey", "dot", "wide", "comment", "png", "rgba", "dpi"],
)
def test_plain_headers_are_read(data: bytes) -> None:
    """What encoders write by default is read, and as the probe reads it."""
    assert read_plain_header(data) == full(data)
    assert read_plain_header(memoryview(data)) == full(data)


def with_chunk(data: bytes, kind: bytes, body: bytes, *, at_end: bool = False) -> bytes:
    """A PNG with one chunk more, behind its header or behind its end."""
    chunk = struct.pack(">I", len(body)) + kind + body
    chunk += struct.pack(">I", zlib.crc32(kind + body))
    place = len(data) if at_end else 33
    return data[:place] + chunk + data[place:]


def text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Title", "x")
    return info


EXIF = Image.Exif()
EXIF[0x0112] = 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        save("JPEG", progressive=True),
        save("JPEG", exif=EXIF),
        save("JPEG", "CMYK"),
        save("JPEG")[:100],
        save("PNG", "L"),
        save("PNG", pnginfo=text()),
        save("PNG", exif=EXIF),
        save("PNG")[:60],
        save("PNG") + b"x",
        with_chunk(save("PNG"), b"acTL", bytes(8)),
        with_chunk(save("PNG"), b"eXIf", bytes(20), at_end=True),
        save("GIF", "L"),
        save("WEBP"),
        save("BMP"),
    ],
)
def test_what_is_not_plain_is_left_to_the_probe(data: bytes) -> None:
    """Metadata, several pictures, other modes and formats, and files that end early."""
    assert read_plain_header(data) is None


@pytest.mark.parametrize(
    "path",
    [p for folder in FOLDERS if folder.is_dir() for p in sorted(folder.rglob("*")) if p.is_file()],
    ids=lambda path: str(path.relative_to(ROOT.parent)),
)
def test_the_media_set_is_read_as_by_the_probe(path: Path) -> None:
    """Real and broken files: the same answer, or none."""
    data = path.read_bytes()
    if (read := read_plain_header(data)) is not None:
        assert read == full(data)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from([save("JPEG"), save("JPEG", "L", comment=b"abc"), save("PNG", dpi=(9, 9))]),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 800)),
)
def test_mutated_headers_are_read_as_by_the_probe(
    data: bytes, changes: list[tuple[int, int]], cut: int | None
) -> None:
    """Whatever is changed in the header, the answer is the probe's or none."""
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    mutated = bytes(changed[:cut])
    if (read := read_plain_header(mutated)) is not None:
        assert read == full(mutated)
