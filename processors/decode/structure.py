"""A picture file's structure, walked before a decoder reads it.

Pillow's plugins read headers in Python, and without bounds on how many blocks there are; what is
found here beyond any encoder's habits is refused. On the way it is learned what the plugins tell
only after decoding: how many pictures there are, how long they are shown, and an orientation that
stands behind the pixels. A file that ends early is no error here: it may be the beginning of one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from processors.decode.orientation import orientation_in
from processors.errors import MediaDecodeError

MAX_BLOCKS = 65_536
"""Blocks of headers, metadata or pictures; encoders write dozens, animations some thousands."""
MAX_PIXEL_BLOCKS = 4_000_000
"""Blocks that a GIF's data is cut into; they are cheap, and of a large file there are many."""
MAX_SCANS = 256
"""Scans of a progressive JPEG, each a pass over the whole picture; encoders write about ten."""
MAX_TIFF_TAGS = 4096
DEFAULT_FRAME_S = 0.1
"""How long a picture is shown whose file says nothing, or less than browsers do."""
_SHORTEST_FRAME_S = 0.02
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_XMP_KEYWORD = b"XML:com.adobe.xmp\0"


@dataclass(frozen=True, slots=True)
class Structure:
    """What was found; None where the format's walk does not tell."""

    num_frames: int | None = None
    durations_s: tuple[float, ...] | None = None
    """How long each picture of an animation is shown."""
    orientation: int | None = None
    """Only if it stands where the plugin does not look."""
    size: tuple[int, int] | None = None
    """Width and height, where the plugin allocates before it tells them."""


def examine(view: memoryview, plugin: str) -> Structure:
    """Walk a picture file's blocks.

    Raises:
        MediaDecodeError: If there are more than any encoder writes, or they contradict themselves.
    """
    walk = _WALKS.get(plugin)
    if walk is None:
        return Structure()
    try:
        return walk(view)
    except (struct.error, IndexError):
        # The file ends here; whether that matters is the decoder's to say.
        return Structure()


def shown_s(seconds: float) -> float:
    """Return how long a picture is shown by a player that takes no hurry."""
    return seconds if seconds >= _SHORTEST_FRAME_S else DEFAULT_FRAME_S


def _too_many(what: str) -> MediaDecodeError:
    return MediaDecodeError(f"The picture's file has more {what} than any encoder writes.")


def _jpeg(view: memoryview) -> Structure:
    position = 2
    for _ in range(MAX_BLOCKS):
        if position + 4 > len(view) or view[position] != 0xFF:
            return Structure()
        marker = view[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker == 0xC2:
            if bytes(view[position:]).count(b"\xff\xda") > MAX_SCANS:
                raise _too_many("scans")
            return Structure()
        elif marker in (0xD9, 0xDA):
            return Structure()
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
        else:
            position += 2 + int.from_bytes(view[position + 2 : position + 4], "big")
    raise _too_many("segments")


def _png_chunks(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    position = len(_PNG_MAGIC)
    blocks = 0
    while position + 8 <= len(view):
        size, kind = struct.unpack_from(">I4s", view, position)
        yield kind, view[position + 8 : position + 8 + size]
        position += size + 12
        blocks += 1
        if blocks > MAX_BLOCKS:
            raise _too_many("chunks")


def _png(view: memoryview) -> Structure:
    durations: list[float] = []
    is_animated = default_is_shown_alone = has_pixels = False
    orientation = None
    for kind, data in _png_chunks(view):
        if kind == b"acTL":
            is_animated = not has_pixels
        elif kind == b"IDAT":
            default_is_shown_alone = not durations
            has_pixels = True
        elif kind == b"fcTL" and len(data) >= 24:
            numerator, denominator = struct.unpack_from(">HH", data, 20)
            durations.append(shown_s(numerator / (denominator or 100)))
        elif has_pixels and orientation is None:
            orientation = _late_orientation(kind, data)
    if not is_animated or not durations:
        return Structure(1, orientation=orientation)
    if default_is_shown_alone:
        durations.insert(0, DEFAULT_FRAME_S)
    return Structure(len(durations), tuple(durations), orientation)


def _late_orientation(kind: bytes, data: memoryview) -> int | None:
    if kind == b"eXIf":
        return orientation_in(b"Exif\0\0" + bytes(data[:65536]), None)
    if kind == b"iTXt" and bytes(data[: len(_XMP_KEYWORD)]) == _XMP_KEYWORD:
        return orientation_in(None, bytes(data[:65536]))
    return None


def _gif(view: memoryview) -> Structure:
    width, height = struct.unpack_from("<HH", view, 6)
    position = 13 + _colour_table_bytes(view[10])
    durations: list[float] = []
    delay_s = 0.0
    left = MAX_PIXEL_BLOCKS
    for _ in range(MAX_BLOCKS):
        # Nothing that Pillow would look at fits into less than eleven bytes.
        kind = view[position] if position + 11 <= len(view) else 0x3B
        if kind == 0x3B:
            count = max(len(durations), 1)
            return Structure(count, tuple(durations) or (DEFAULT_FRAME_S,), size=(width, height))
        if kind == 0x21:
            if view[position + 1] == 0xF9:
                delay_s = struct.unpack_from("<H", view, position + 4)[0] / 100.0
            position, left = _skip_gif_blocks(view, position + 2, left)
        elif kind == 0x2C:
            x, y, w, h, flags = struct.unpack_from("<HHHHB", view, position + 1)
            # A picture that stands out makes Pillow's canvas larger, for all pictures.
            width, height = max(width, x + w), max(height, y + h)
            durations.append(shown_s(delay_s))
            delay_s = 0.0
            start = position + 11 + _colour_table_bytes(flags)
            position, left = _skip_gif_blocks(view, start, left)
        else:
            # Pillow goes over what is no block byte by byte.
            position += 1
    raise _too_many("blocks")


def _colour_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_gif_blocks(view: memoryview, position: int, left: int) -> tuple[int, int]:
    """Return the position behind a run of sub-blocks, and how many more there may be."""
    while position < len(view) and (size := view[position]):
        position += size + 1
        left -= 1
        if left < 0:
            raise _too_many("blocks")
    return position + 1, left


def _tiff(view: memoryview) -> Structure:
    order = "<" if view[0] == 0x49 else ">"
    is_big = 0x2B in (view[2], view[3])
    count_format, tag_bytes, next_format = ("Q", 20, "Q") if is_big else ("H", 12, "I")
    position = struct.unpack_from(order + next_format, view, 8 if is_big else 4)[0]
    seen: set[int] = set()
    while position and position not in seen:
        if position >= len(view):
            break
        seen.add(position)
        if len(seen) > MAX_BLOCKS:
            raise _too_many("pages")
        count = struct.unpack_from(order + count_format, view, position)[0]
        if count > MAX_TIFF_TAGS:
            raise _too_many("tags")
        position += struct.calcsize(count_format) + count * tag_bytes
        if position + struct.calcsize(next_format) > len(view):
            break
        position = struct.unpack_from(order + next_format, view, position)[0]
    return Structure(max(len(seen), 1))


def _webp(view: memoryview) -> Structure:
    durations: list[float] = []
    position = 12
    for _ in range(MAX_BLOCKS):
        if position + 8 > len(view):
            return Structure(
                max(len(durations), 1), tuple(durations) or None, size=_webp_size(view)
            )
        kind, size = struct.unpack_from("<4sI", view, position)
        if kind == b"ANMF" and position + 24 <= len(view):
            milliseconds = int.from_bytes(view[position + 20 : position + 23], "little")
            durations.append(shown_s(milliseconds / 1000.0))
        position += 8 + size + (size & 1)
    raise _too_many("chunks")


def _webp_size(view: memoryview) -> tuple[int, int] | None:
    kind = bytes(view[12:16])
    if kind == b"VP8X":
        width = int.from_bytes(view[24:27], "little") + 1
        return width, int.from_bytes(view[27:30], "little") + 1
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", view, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", view, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _icon(view: memoryview) -> Structure:
    """Pillow decodes an icon when it opens it, at the size that stands inside."""
    count = struct.unpack_from("<H", view, 4)[0]
    for entry in range(min(count, (len(view) - 6) // 16)):
        width, height = view[6 + 16 * entry], view[7 + 16 * entry]
        offset = struct.unpack_from("<I", view, 18 + 16 * entry)[0]
        told = width or 256, height or 256
        if offset + 24 <= len(view) and _inner_size(view[offset : offset + 24]) != told:
            raise MediaDecodeError("The icon's directory tells another size than its picture.")
    return Structure(1)


def _inner_size(head: memoryview) -> tuple[int, int]:
    if bytes(head[:8]) == _PNG_MAGIC:
        width, height = struct.unpack_from(">II", head, 16)
        return width, height
    width, doubled = struct.unpack_from("<ii", head, 4)
    # The mask stands below the picture, and both count.
    return width, abs(doubled) // 2


_WALKS: dict[str, Callable[[memoryview], Structure]] = {
    "JPEG": _jpeg, "PNG": _png, "GIF": _gif, "TIFF": _tiff, "WEBP": _webp, "ICO": _icon,
}  # fmt: skip
