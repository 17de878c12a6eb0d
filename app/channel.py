"""One-way channels between the API process and its workers: frames of pickled messages over pipes.

A frame is a u64 LE length and a pickle. A pipe has one writer and one reader, so a non-blocking end
in the event loop never makes the other end non-blocking too. Pickle never leaves our own process
tree, and what comes back from a worker, whose decoders hostile bytes have passed through, is only
read as far as it consists of our own values.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pickle
import struct
from collections.abc import Callable, Iterator

_LENGTH = struct.Struct("<Q")
MAX_FRAME_BYTES = 256 << 20
"""Longest message; a served tokenizer is the largest one, some tens of megabytes."""
_READ_BYTES = 1 << 20

_OWN_MODULES = frozenset({"app.jobs", "app.worker_messages", "processors.types"})
_PLAIN_NAMES = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)


class ChannelError(Exception):
    """Raised when what came out of a channel is not a message of ours."""


class _ValueUnpickler(pickle.Unpickler):
    """Reads our own frozen values and plain data; never calls anything else."""

    def find_class(self, module: str, name: str) -> object:
        if "." in name or (module not in _OWN_MODULES and (module, name) not in _PLAIN_NAMES):
            raise ChannelError(f"a worker sent {module}.{name}")
        found: object = super().find_class(module, name)
        # Our modules import callables (`field`, `NamedTuple`); only classes of theirs are values.
        if module in _OWN_MODULES and getattr(found, "__module__", None) != module:
            raise ChannelError(f"a worker sent {module}.{name}")
        return found


def encode_frame(message: object) -> bytes:
    """Return a message as it goes over a pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class BlockingChannel:
    """The worker's two ends of a lane: receives messages, sends messages, waits for both.

    Args:
        receive_fd: Read end of the pipe from the API process.
        send_fd: Write end of the pipe to it.
    """

    def __init__(self, receive_fd: int, send_fd: int) -> None:
        self._receive_fd = receive_fd
        self._send_fd = send_fd

    def receive(self) -> object:
        """Wait for the next message.

        Raises:
            EOFError: If the API process has closed its end or died.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # noqa: S301 - from our own parent process

    def send(self, message: object) -> None:
        """Send a message; waits while the pipe is full.

        Raises:
            BrokenPipeError: If the API process has died.
        """
        rest = memoryview(encode_frame(message))
        while rest:
            rest = rest[os.write(self._send_fd, rest) :]

    def _read(self, nbytes: int) -> bytes:
        parts = []
        while nbytes:
            part = os.read(self._receive_fd, min(nbytes, _READ_BYTES))
            if not part:
                raise EOFError
            parts.append(part)
            nbytes -= len(part)
        return b"".join(parts)


class FrameParser:
    """Cuts a stream of bytes from a worker into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[object]:
        """Yield the messages that are complete with these bytes.

        Raises:
            ChannelError: If a frame is too long or is not a message of ours.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ChannelError("a worker sent a frame beyond all bounds")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode(body)


def _decode(body: bytes) -> object:
    try:
        return _ValueUnpickler(io.BytesIO(body)).load()
    except ChannelError:
        raise
    except (pickle.UnpicklingError, AttributeError, TypeError, ValueError, EOFError) as error:
        raise ChannelError("a worker sent a torn message") from error
    except (ImportError, IndexError, KeyError, OverflowError) as error:
        raise ChannelError("a worker sent a torn message") from error


class PipeWriter:
    """The event loop's write end of a pipe; never blocks.

    Args:
        fd: Write end; owned from here on.
        loop: The loop that waits where the pipe is full.
    """

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._rest = memoryview(b"")
        self._is_waiting = False

    def write(self, frame: bytes) -> None:
        """Write a frame, what does not fit as soon as there is room."""
        self._rest = memoryview(bytes(self._rest) + frame) if self._rest else memoryview(frame)
        self._flush()

    def close(self) -> None:
        """Close the pipe; the reader finds its end."""
        if self._fd >= 0:
            self._wait(False)
            os.close(self._fd)
            self._fd = -1

    def _flush(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._rest = memoryview(b"")  # the reader died; its exit is told elsewhere
        self._wait(bool(self._rest))

    def _wait(self, is_waiting: bool) -> None:
        if is_waiting and not self._is_waiting:
            self._loop.add_writer(self._fd, self._flush)
        elif self._is_waiting and not is_waiting:
            self._loop.remove_writer(self._fd)
        self._is_waiting = is_waiting


class PipeReader:
    """The event loop's read end of a pipe.

    Args:
        fd: Read end; owned from here on.
        loop: The loop that watches it.
        on_data: Called with each chunk of bytes; never with none.
    """

    def __init__(
        self, fd: int, loop: asyncio.AbstractEventLoop, on_data: Callable[[bytes], None]
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._on_data = on_data
        self._is_watching = False
        self.resume()

    def resume(self) -> None:
        """Watch the pipe (again)."""
        if self._fd >= 0 and not self._is_watching:
            self._loop.add_reader(self._fd, self._read)
            self._is_watching = True

    def pause(self) -> None:
        """Leave what comes in the pipe, so that its writer has to wait."""
        if self._is_watching:
            self._loop.remove_reader(self._fd)
            self._is_watching = False

    def drain(self, max_bytes: int) -> None:
        """Read what is there now, at most so many bytes; for a writer that has died."""
        while max_bytes > 0 and (nbytes := self._read()):
            max_bytes -= nbytes

    def close(self) -> None:
        """Stop watching and close the pipe."""
        self.pause()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> int:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _READ_BYTES) if self._fd >= 0 else b""
            if not data:
                self.pause()  # its writer is gone
        if data:
            self._on_data(data)
        return len(data)
