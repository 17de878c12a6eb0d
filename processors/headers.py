"""Headers of plain pictures, read in Python alone: what most JPEGs and PNGs begin with.

Whatever is unusual (metadata with an orientation, several pictures, progressive scans, palettes,
blocks that contradict themselves) is left to `processors.decode`, which runs in workers only.
Nothing here is decoded or allocated by what the bytes claim, so the API process may look for
itself whether it has planned a picture of this size before.
"""

from __future__ import annotations

import struct
import zlib

from processors.types import MediaInfo, Modality

MAX_BLOCKS = 64
"""Blocks that are walked; each takes about a microsecond."""
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_SIZES = {b"sRGB": 1, b"gAMA": 4, b"pHYs": 9, b"cHRM": 32}
"""Bytes of the chunks that may stand before the pixels."""
_SOI, _SOF0, _SOF1, _DHT, _SOS, _DQT, _DRI, _APP0, _COM = (
    0xD8, 0xC0, 0xC1, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xFE,
)  # fmt: skip
_SKIPPED = frozenset({_DHT, _DRI, _COM})

Buffer = bytes | memoryview


def read_plain_header(data: Buffer) -> MediaInfo | None:
    """Return what `processors.decode.probe` says of a picture; None where that must look itself."""
    view = memoryview(data)
    try:
        if bytes(view[:2]) == b"\xff\xd8":
            size, mime = _jpeg_size(view), "image/jpeg"
        elif bytes(view[:8]) == _PNG_MAGIC:
            size, mime = _png_size(view), "image/png"
        else:
            return None
    except (struct.error, IndexError):
        return None  # the file ends here
    if size is None or not (size[0] and size[1]):
        return None
    return MediaInfo(
        kind=Modality.IMAGE,
        mime=mime,
        nbytes=view.nbytes,
        width=size[0],
        height=size[1],
        orientation=1,
        num_frames=1,
    )


def _jpeg_size(view: memoryview) -> tuple[int, int] | None:
    position, size = 2, None
    for _ in range(MAX_BLOCKS):
        prefix, marker, length = struct.unpack_from(">BBH", view, position)
        start, stop = position + 4, position + 2 + length
        if prefix != 0xFF or length < 2 or stop > len(view):
            return None
        block = view[start:stop]
        if marker == _SOS:
            return size
        if marker in (_SOF0, _SOF1) and size is None:
            size = _frame_size(block)
            if size is None:
                return None
        elif not _is_plain_block(marker, block):
            return None
        position = stop
    return None


def _is_plain_block(marker: int, block: memoryview) -> bool:
    """Return whether a block says nothing of the picture that a plain header leaves out."""
    if marker == _DQT:
        return _holds_tables(block)
    if marker == _APP0:
        # Pillow reads the fields of a JFIF block; one that lacks them is its to judge.
        return bytes(block[:5]) == b"JFIF\0" and len(block) >= 14
    return marker in _SKIPPED


def _frame_size(block: memoryview) -> tuple[int, int] | None:
    """Return width and height of a frame of 8-bit grey or three components."""
    bits, height, width, components = struct.unpack_from(">BHHB", block)
    if bits != 8 or components not in (1, 3) or len(block) != 6 + 3 * components:
        return None
    return width, height


def _holds_tables(block: memoryview) -> bool:
    """Return whether a block is made of whole quantisation tables."""
    position = 0
    while position < len(block):
        position += 1 + (64 if block[position] < 16 else 128)
    return position == len(block)


def _png_size(view: memoryview) -> tuple[int, int] | None:
    position, size, has_pixels = len(_PNG_MAGIC), None, False
    for _ in range(MAX_BLOCKS):
        length, kind = struct.unpack_from(">I4s", view, position)
        start, stop = position + 8, position + 8 + length
        if stop + 4 > len(view):
            return None
        if kind == b"IDAT":
            has_pixels = True
        elif kind == b"IEND":
            # What stands behind the end may tell of an animation or an orientation.
            return size if has_pixels and length == 0 and stop + 4 == len(view) else None
        elif has_pixels or zlib.crc32(view[position + 4 : stop]) != _u32(view, stop):
            return None
        elif kind == b"IHDR" and size is None and length == 13:
            size = _png_picture_size(view[start:stop])
            if size is None:
                return None
        elif size is None or _PNG_SIZES.get(kind) != length:
            return None
        position = stop + 4
    return None


def _png_picture_size(block: memoryview) -> tuple[int, int] | None:
    """Return width and height of a picture of 8-bit RGB or RGBA."""
    width, height, bits, colour, compression, filters, interlace = struct.unpack(">IIBBBBB", block)
    if bits != 8 or colour not in (2, 6) or compression or filters or interlace > 1:
        return None
    return width, height


def _u32(view: memoryview, position: int) -> int:
    return int.from_bytes(view[position : position + 4], "big")
