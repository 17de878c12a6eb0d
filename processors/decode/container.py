"""Videos and audio clips opened by FFmpeg (PyAV), from memory and by a forced demuxer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import av
import av.container
import av.error
import av.logging

from processors.decode.clock import Clock
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits

AvObject: TypeAlias = Any
"""An object of PyAV's, whose compiled classes carry no types."""
Track: TypeAlias = tuple[AvObject, AvObject]
"""A container and its best video track."""
FFMPEG_ERRORS = (av.error.FFmpegError, OSError, ValueError, EOFError)
"""What PyAV raises at bytes it cannot read."""
VIDEO_CODECS = frozenset({
    "av1", "gif", "h263", "h264", "hevc", "libdav1d", "libvpx-vp9", "mjpeg", "mpeg1video",
    "mpeg2video", "mpeg4", "msmpeg4", "msmpeg4v2", "prores", "theora", "vc1", "vp8", "vp9",
    "wmv1", "wmv2", "wmv3", "flv", "png", "rawvideo",
})  # fmt: skip
AUDIO_CODECS = frozenset({
    "aac", "aac_latm", "ac3", "adpcm_ima_wav", "adpcm_ms", "alac", "amrnb", "amrwb", "eac3",
    "flac", "gsm", "gsm_ms", "libopencore_amrnb", "libopencore_amrwb", "libopus", "mp1", "mp1float",
    "mp2", "mp2float", "mp3", "mp3float", "opus", "vorbis", "wmav1", "wmav2",
})  # fmt: skip
"""Decoders that read untrusted bytes here, beside those of plain samples (`pcm_*`)."""
_ATTACHED_PICTURE = 0x0400
_PLAIN_SAMPLES = tuple(
    f"pcm_{name}"
    for name in (
        "alaw", "mulaw", "f16le", "f24le", "f32be", "f32le", "f64be", "f64le", "s8", "u8",
        "s16be", "s16le", "s24be", "s24le", "s32be", "s32le", "s64be", "s64le", "u16be", "u16le",
        "u24be", "u24le", "u32be", "u32le",
    )
)  # fmt: skip
_CODECS = VIDEO_CODECS | AUDIO_CODECS | set(_PLAIN_SAMPLES)
_OPTIONS = {
    # Nothing but the bytes given may be opened, whatever they refer to.
    "protocol_whitelist": "none",
    # FFmpeg decodes a little by itself when it opens a container.
    "codec_whitelist": ",".join(sorted(_CODECS)),
}
_INDEXED = frozenset({"mov", "matroska"})
_MOV_OPTIONS = {"enable_drefs": "0", "use_absolute_path": "0"}
_WAV_OPTIONS = {
    # Of plain samples FFmpeg else reads megabytes to see whether they are not a stream of another
    # codec: milliseconds for a sound of seconds.
    "probesize": "2048",
}
_DEMUXER_OPTIONS = {"mov": _MOV_OPTIONS, "wav": _WAV_OPTIONS}
# FFmpeg's own log would call into Python from its threads, and tells of the media.
av.logging.set_level(None)


class MemoryFile:
    """A seekable file over bytes that are not copied."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        stop = self._view.nbytes if size < 0 else min(self._position + size, self._view.nbytes)
        chunk = bytes(self._view[self._position : stop])
        self._position += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, within the bytes or behind them."""
        base = (0, self._position, self._view.nbytes)[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position


@contextmanager
def open_container(
    data: Buffer, kind: Container, limits: DecodeLimits
) -> Iterator[av.container.InputContainer]:
    """Open a container; whatever FFmpeg says inside becomes our error.

    Raises:
        MediaDecodeError: If it cannot be read.
    """
    options = _OPTIONS | _DEMUXER_OPTIONS.get(kind.demuxer, {})
    try:
        with av.open(
            MemoryFile(data),
            "r",
            format=kind.demuxer,
            options={"max_pixels": str(limits.max_pixels)},
            container_options=options,
            metadata_errors="replace",
            io_open=_refuse_to_open,
        ) as container:
            yield container
    except FFMPEG_ERRORS as error:
        raise MediaDecodeError("The medium is cut, corrupt or of an unknown codec.") from error


def video_stream(container: AvObject, limits: DecodeLimits) -> AvObject | None:
    """Return a container's best video track, ready to decode; None where it has none.

    Raises:
        UnsupportedMediaTypeError: If no track's codec is served.
    """
    tracks = [s for s in container.streams.video if not s.disposition.value & _ATTACHED_PICTURE]
    stream = _best(container, "video", tracks, VIDEO_CODECS)
    if stream is not None:
        stream.codec_context.options = {"max_pixels": str(limits.max_pixels)}
    return stream


def new_decoder(stream: AvObject, limits: DecodeLimits) -> AvObject:
    """Return a decoder for a video track that has seen nothing of it.

    PyAV makes decoders with a container alone, and to open that once more costs as much as decoding
    some frames. One that belongs to the copy of a track in a container to be written decodes, too,
    and is given all parameters but the codec's tag.
    """
    with av.open("nothing is written", "w", format="null") as copies:
        decoder = copies.add_stream_from_template(stream, opaque=True).codec_context
    # PyAV reads tags as text; those of some transport streams are none, and tell decoders nothing.
    with suppress(UnicodeDecodeError):
        decoder.codec_tag = stream.codec_context.codec_tag
    decoder.options = {"max_pixels": str(limits.max_pixels)}
    decoder.thread_count = 1
    return decoder


def audio_stream(container: AvObject) -> AvObject | None:
    """Return a container's best audio track, ready to decode; None where it has none.

    Raises:
        UnsupportedMediaTypeError: If no track's codec is served.
    """
    return _best(container, "audio", list(container.streams.audio), _CODECS)


def packets(container: AvObject, stream: AvObject, clock: Clock) -> Iterator[AvObject]:
    """Yield a track's packets, the flushing one last; ends where the container is broken."""
    demuxed = container.demux(stream)
    while True:
        clock.check()
        try:
            yield next(demuxed)
        except (StopIteration, av.error.EOFError):
            return


def decoded(packet: AvObject, decoder: AvObject) -> list[AvObject]:
    """Return the frames that a packet lets out; none where it is broken."""
    try:
        return list(decoder.decode(packet))
    except (av.error.InvalidDataError, av.error.EOFError):
        return []


def is_indexed(kind: Container) -> bool:
    """Return whether a container says where its packets lie, so that seeking meets them."""
    return kind.demuxer in _INDEXED


def drained(decoder: AvObject) -> list[AvObject]:
    """Return the frames that a decoder still holds back, and make it ready to begin anew."""
    try:
        return list(decoder.decode(None))
    except (av.error.InvalidDataError, av.error.EOFError):
        return []
    finally:
        decoder.flush_buffers()


@contextmanager
def open_video(data: Buffer, kind: Container, limits: DecodeLimits) -> Iterator[Track]:
    """Open a container that is known to hold video.

    Raises:
        MediaDecodeError: If it cannot be read.
    """
    with open_container(data, kind, limits) as container:
        yield container, video_stream(container, limits)


@contextmanager
def rewound(
    container: AvObject, stream: AvObject, data: Buffer, kind: Container, limits: DecodeLimits
) -> Iterator[Track]:
    """Return a container that has been read and its video track, at the beginning again.

    Opening one costs as much as decoding some frames.

    Raises:
        MediaDecodeError: If it cannot be read a second time.
    """
    if is_indexed(kind):
        container.seek(stream.start_time or 0, stream=stream, backward=True)
        yield container, stream
        return
    with open_video(data, kind, limits) as again:
        yield again


def _best(
    container: AvObject, kind: str, tracks: list[AvObject], codecs: frozenset[str] | set[str]
) -> AvObject | None:
    if not tracks:
        return None
    served = [s for s in tracks if s.codec_context is not None and s.codec_context.name in codecs]
    if not served:
        raise UnsupportedMediaTypeError(f"The {kind} is of a codec that is not served.")
    best = container.streams.best(kind)
    chosen = best if best in served else served[0]
    # One medium, one thread: many are decoded at once, and the threads' hand-over costs.
    chosen.codec_context.thread_count = 1
    return chosen


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> None:
    raise PermissionError("A medium may not refer to another one.")
