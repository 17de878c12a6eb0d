"""What bytes are, by their first ones; the declared type of a medium is never believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from processors.errors import MediaDecodeError, UnsupportedMediaTypeError

HEAD_BYTES = 4096
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Container:
    """A container format that FFmpeg is told to read, and nothing else."""

    demuxer: str
    """FFmpeg's name of the demuxer, forced: no playlist or script can pass for media."""
    video_mime: str
    audio_mime: str


Kind = Literal["image", "heif"] | Container

_MOV = Container("mov", "video/mp4", "audio/mp4")
_MATROSKA = Container("matroska", "video/x-matroska", "audio/x-matroska")
_WEBM = Container("matroska", "video/webm", "audio/webm")
_AVI = Container("avi", "video/x-msvideo", "audio/x-msvideo")
_OGG = Container("ogg", "video/ogg", "audio/ogg")
_MP3 = Container("mp3", "video/mpeg", "audio/mpeg")
_AAC = Container("aac", "audio/aac", "audio/aac")
_TS = Container("mpegts", "video/mp2t", "audio/mp2t")
_CONTAINERS: tuple[tuple[bytes, Container], ...] = (
    (b"OggS", _OGG),
    (b"fLaC", Container("flac", "audio/flac", "audio/flac")),
    (b"ID3", _MP3),
    (b"FLV\x01", Container("flv", "video/x-flv", "video/x-flv")),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Container("asf", "video/x-ms-asf", "audio/x-ms-wma")),
    (b".snd", Container("au", "audio/basic", "audio/basic")),
    (b"#!AMR", Container("amr", "audio/amr", "audio/amr")),
    (b"caff", Container("caf", "audio/x-caf", "audio/x-caf")),
    (b"\x00\x00\x01\xba", Container("mpeg", "video/mpeg", "audio/mpeg")),
)
_IMAGES: tuple[bytes, ...] = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*",
    b"II+\x00", b"MM\x00+", b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51", b"qoif",
    b"\x00\x00\x01\x00",
    b"\x0a\x05\x01", b"\x01\xda",
)  # fmt: skip
_PORTABLE = re.compile(rb"P[1-7f][\s#]")
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})
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
    (re.compile(rb"\s*+#EXTM3U"), "a playlist"),
    (re.compile(rb"\s*+<\?xml"), "XML"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive"),
    (re.compile(rb"\x1f\x8b"), "gzip data"),
)


def sniff(data: Buffer) -> Kind:
    """Return what bytes are.

    Raises:
        MediaDecodeError: If they are empty or nothing that is known.
        UnsupportedMediaTypeError: If they are known and not served.
    """
    head = bytes(memoryview(data)[:HEAD_BYTES])
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
    raise MediaDecodeError("The bytes are no image, video or audio format that is known.")


def _boxed(head: bytes) -> Kind | None:
    """Return what an ISO base media file is (MP4, MOV, AVIF, HEIC)."""
    kind = head[4:8]
    if kind == b"ftyp":
        size = int.from_bytes(head[:4], "big")
        brands = {head[8:12]} | {head[n : n + 4] for n in range(16, min(size, len(head)), 4)}
        if head[8:12] in _AVIF_BRANDS or (
            brands & _AVIF_BRANDS and not brands & {b"heic", b"heix"}
        ):
            return "image"
        return "heif" if head[8:12] in _HEIF_BRANDS else _MOV
    return _MOV if kind in (b"moov", b"mdat", b"wide", b"free", b"skip") else None


def _riff(head: bytes) -> Kind | None:
    form = head[8:12]
    if head[:4] in (b"RIFF", b"RF64", b"BW64"):
        if form == b"WEBP":
            return "image"
        if form == b"WAVE":
            return Container("wav", "audio/wav", "audio/wav")
        return _AVI if form == b"AVI " else None
    if head[:4] == b"FORM" and form in (b"AIFF", b"AIFC"):
        return Container("aiff", "audio/aiff", "audio/aiff")
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _WEBM if b"webm" in head[:64] else _MATROSKA
    return None


def _simple(head: bytes) -> Kind | None:
    for magic, container in _CONTAINERS:
        if head.startswith(magic):
            return container
    if head.startswith(_IMAGES) or _PORTABLE.match(head):
        return "image"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return _AAC if head[1] & 0xF6 == 0xF0 else _MP3 if head[1] & 0x06 else None
    if len(head) > 376 and head[0] == head[188] == head[376] == 0x47:
        return _TS
    return None
