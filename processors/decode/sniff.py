"""What bytes are, by their first ones; the declared type of a medium is never believed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from processors.errors import MediaDecodeError, UnsupportedMediaTypeError

HEAD_BYTES = 4096
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture format that one plugin of Pillow's is told to read, and no other."""

    plugin: str
    """Pillow's name of the format."""
    mime: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container format that FFmpeg is told to read, and nothing else."""

    demuxer: str
    """FFmpeg's name of the demuxer, forced: no playlist or script can pass for media."""
    video_mime: str
    audio_mime: str


Kind = Picture | Container

_AVIF = Picture("AVIF", "image/avif")
_HEIF = Picture("HEIF", "image/heic")
_WEBP = Picture("WEBP", "image/webp")
_TIFF = Picture("TIFF", "image/tiff")
_J2K = Picture("JPEG2000", "image/jp2")
_GIF = Picture("GIF", "image/gif")
_PPM = Picture("PPM", "image/x-portable-anymap")
_TGA = Picture("TGA", "image/x-tga")
_MOV = Container("mov", "video/mp4", "audio/mp4")
_QUICKTIME = Container("mov", "video/quicktime", "audio/mp4")
_MATROSKA = Container("matroska", "video/x-matroska", "audio/x-matroska")
_WEBM = Container("matroska", "video/webm", "audio/webm")
_AVI = Container("avi", "video/x-msvideo", "audio/x-msvideo")
_WAV = Container("wav", "audio/wav", "audio/wav")
_AIFF = Container("aiff", "audio/aiff", "audio/aiff")
_MP3 = Container("mp3", "video/mpeg", "audio/mpeg")
_AAC = Container("aac", "audio/aac", "audio/aac")
_FLAC = Container("flac", "audio/flac", "audio/flac")
_TS = Container("mpegts", "video/mp2t", "audio/mp2t")
_MAGICS: tuple[tuple[bytes, Kind], ...] = (
    (b"\xff\xd8\xff", Picture("JPEG", "image/jpeg")),
    (b"\x89PNG\r\n\x1a\n", Picture("PNG", "image/png")),
    (b"GIF87a", _GIF),
    (b"GIF89a", _GIF),
    (b"BM", Picture("BMP", "image/bmp")),
    (b"II*\x00", _TIFF),
    (b"MM\x00*", _TIFF),
    (b"II+\x00", _TIFF),
    (b"MM\x00+", _TIFF),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", _J2K),
    (b"\xff\x4f\xff\x51", _J2K),
    (b"qoif", Picture("QOI", "image/qoi")),
    (b"\x00\x00\x01\x00", Picture("ICO", "image/x-icon")),
    (b"\x0a\x05\x01", Picture("PCX", "image/x-pcx")),
    (b"\x01\xda", Picture("SGI", "image/sgi")),
    (b"OggS", Container("ogg", "video/ogg", "audio/ogg")),
    (b"fLaC", _FLAC),
    (b"FLV\x01", Container("flv", "video/x-flv", "video/x-flv")),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Container("asf", "video/x-ms-asf", "audio/x-ms-wma")),
    (b".snd", Container("au", "audio/basic", "audio/basic")),
    (b"#!AMR", Container("amr", "audio/amr", "audio/amr")),
    (b"caff", Container("caf", "audio/x-caf", "audio/x-caf")),
    (b"\x00\x00\x01\xba", Container("mpeg", "video/mpeg", "audio/mpeg")),
)
_RIFF_FORMS: dict[bytes, Kind] = {b"WEBP": _WEBP, b"WAVE": _WAV, b"AVI ": _AVI}
_PORTABLE = re.compile(rb"P[1-6][\s#]")
_TGA_FOOTER = b"TRUEVISION-XFILE.\x00"
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs"})
_ANY_STILL_BRANDS = frozenset({b"mif1", b"msf1", b"mif2"})
"""Major brands of pictures whose codec only the compatible brands tell."""
_COMMENTS = rb"\s*+(?:<!--(?:(?!-->).)*+-->\s*+)*+"
# Possessive throughout: no input makes these patterns try twice.
_REFUSED: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"%PDF-"), "PDF"),
    (re.compile(rb"%!PS|\xc5\xd0\xd3\xc6"), "PostScript"),
    (
        re.compile(
            rb"\s*+(?:<\?xml[^>]*+>)?+" + _COMMENTS + rb"(?:<!DOCTYPE\s++svg[^>]*+>\s*+)?+<svg\b",
            re.DOTALL | re.IGNORECASE,
        ),
        "SVG",
    ),
    (
        re.compile(
            _COMMENTS + rb"(?:<!DOCTYPE\s++html|<html|<head|<body)", re.DOTALL | re.IGNORECASE
        ),
        "HTML",
    ),
    (re.compile(rb"\s*+#EXTM3U|ffconcat version"), "a playlist"),
    (re.compile(rb"\s*+<\?xml"), "XML"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive"),
    (re.compile(rb"\x1f\x8b"), "gzip data"),
    (re.compile(rb"\xff\x0a|\x00\x00\x00\x0cJXL "), "JPEG XL"),
    (re.compile(rb"8BPS"), "a Photoshop document"),
    (re.compile(rb"icns"), "an icon set"),
    (re.compile(rb"\xd7\xcd\xc6\x9a|\x01\x00\x00\x00.{36} EMF", re.DOTALL), "a metafile"),
)


def sniff(data: Buffer) -> Kind:
    """Return what bytes are.

    Raises:
        MediaDecodeError: If they are empty or nothing that is known.
        UnsupportedMediaTypeError: If they are known and not served.
    """
    view = memoryview(data)
    head = bytes(view[:HEAD_BYTES])
    if not head:
        raise MediaDecodeError("The medium is empty.")
    found = _boxed(head) or _riff(head) or _simple(head)
    if found is not None:
        return found
    for pattern, name in _REFUSED:
        if pattern.match(head.removeprefix(b"\xef\xbb\xbf")):
            raise UnsupportedMediaTypeError(
                f"The bytes are {name}; images, videos and audio clips are served."
            )
    # The first bytes of a TGA could be anything, its last ones could not.
    if view[-len(_TGA_FOOTER) :] == _TGA_FOOTER:
        return _TGA
    raise MediaDecodeError("The bytes are no image, video or audio format that is known.")


def _boxed(head: bytes) -> Kind | None:
    """Return what an ISO base media file is (MP4, MOV, AVIF, HEIC)."""
    kind = head[4:8]
    if kind == b"ftyp":
        major = head[8:12]
        size = int.from_bytes(head[:4], "big")
        brands = {major} | {head[n : n + 4] for n in range(16, min(size, len(head)), 4)}
        if major in _AVIF_BRANDS:
            return _AVIF
        if major in _HEIF_BRANDS:
            return _HEIF
        if major in _ANY_STILL_BRANDS:
            is_avif = brands & _AVIF_BRANDS and not brands & _HEIF_BRANDS
            return _AVIF if is_avif else _HEIF
        return _QUICKTIME if major == b"qt  " else _MOV
    return _QUICKTIME if kind in (b"moov", b"mdat", b"wide", b"free", b"skip") else None


def _riff(head: bytes) -> Kind | None:
    form = head[8:12]
    if head[:4] in (b"RIFF", b"RF64", b"BW64"):
        return _RIFF_FORMS.get(form)
    if head[:4] == b"FORM" and form in (b"AIFF", b"AIFC"):
        return _AIFF
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _WEBM if b"webm" in head[:64] else _MATROSKA
    return None


def _simple(head: bytes) -> Kind | None:
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    if _PORTABLE.match(head):
        return _PPM
    if head.startswith(b"ID3"):
        return _after_id3(head)
    if len(head) > 376 and head[0] == head[188] == head[376] == 0x47:
        return _TS
    return _raw_audio(head)


def _after_id3(head: bytes) -> Kind:
    """Return what follows an ID3 tag; MP3 unless that can be seen to be something else."""
    size = 0
    for byte in head[6:10]:
        size = size << 7 | (byte & 0x7F)
    rest = head[10 + size :]
    return _FLAC if rest.startswith(b"fLaC") else _raw_audio(rest) or _MP3


def _raw_audio(head: bytes) -> Kind | None:
    """Return what a bare stream of MPEG audio frames is, by its first frame's header."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    if head[1] & 0xF6 == 0xF0:
        return _AAC
    is_mpeg = head[1] & 0x18 != 0x08 and head[1] & 0x06
    is_frame = head[2] & 0xF0 != 0xF0 and head[2] & 0x0C != 0x0C
    return _MP3 if is_mpeg and is_frame else None
