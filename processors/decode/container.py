"""Videos and audio clips opened by FFmpeg (PyAV), from memory and by a forced demuxer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import av
import av.container
import av.error
import av.logging

from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError

AvObject: TypeAlias = Any
"""An object of PyAV's, whose compiled classes carry no types."""
FFMPEG_ERRORS = (av.error.FFmpegError, OSError, ValueError, EOFError, MemoryError)
"""What PyAV raises at bytes it cannot read."""
_OPTIONS = {
    # Nothing but the bytes given may be opened, whatever they refer to.
    "protocol_whitelist": "none",
    "enable_drefs": "0",
    "use_absolute_path": "0",
}
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


class Clock:
    """Ends a decode that takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Go on.

        Raises:
            MediaDecodeError: If the time is over.
        """
        if time.monotonic() > self._end:
            raise MediaDecodeError(f"Decoding took longer than {self._seconds:g} s, the limit.")


@contextmanager
def open_container(data: Buffer, kind: Container) -> Iterator[av.container.InputContainer]:
    """Open a container; whatever FFmpeg says inside becomes our error.

    Raises:
        MediaDecodeError: If it cannot be read.
    """
    options = _OPTIONS if kind.demuxer == "mov" else {"protocol_whitelist": "none"}
    try:
        with av.open(
            MemoryFile(data), "r", format=kind.demuxer, container_options=options
        ) as container:
            yield container
    except FFMPEG_ERRORS as error:
        raise MediaDecodeError("The medium is cut, corrupt or of an unknown codec.") from error
