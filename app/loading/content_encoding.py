"""Undoing a response's content encoding in bounded pieces.

Fetches ask for the identity encoding; servers that compress all the same do so with gzip or
deflate. However small a compressed chunk is, at most `PIECE_BYTES` come out at a time, so that the
caller's byte budget stops a bomb after one piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from app.loading.errors import MediaUpstreamError

PIECE_BYTES = 256 * 1024
_GZIP_BITS = zlib.MAX_WBITS | 16
_ZLIB_BITS = zlib.MAX_WBITS
_RAW_BITS = -zlib.MAX_WBITS
_WINDOW_BITS = {"gzip": _GZIP_BITS, "x-gzip": _GZIP_BITS, "deflate": None}


class Inflater:
    """Decompresses one gzip or deflate stream, gzip members one after the other included.

    Args:
        window_bits: zlib's; None where the first two bytes tell, since "deflate" is a zlib stream
            by the standard and a raw one by some servers.
    """

    def __init__(self, window_bits: int | None) -> None:
        self._window_bits = window_bits
        self._head = b""
        self._stream = zlib.decompressobj(_ZLIB_BITS if window_bits is None else window_bits)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what a chunk decompresses to, at most `PIECE_BYTES` at a time.

        Raises:
            MediaUpstreamError: If the stream is corrupt.
        """
        if self._window_bits is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            self._window_bits = _ZLIB_BITS if _is_zlib(data) else _RAW_BITS
            self._stream = zlib.decompressobj(self._window_bits)
        while data:
            if self._stream.eof:
                self._stream = zlib.decompressobj(self._window_bits)
            piece = self._inflate(data)
            if piece:
                yield piece
            data = self._stream.unconsumed_tail or self._stream.unused_data

    def finish(self) -> Iterator[bytes]:
        """Yield what is left inside; call once, after the last chunk.

        Raises:
            MediaUpstreamError: If the stream is cut.
        """
        while piece := self._inflate(b""):
            yield piece
        if not self._stream.eof:
            raise MediaUpstreamError("The source's content encoding is cut.")

    def _inflate(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            raise MediaUpstreamError("The source's content encoding is corrupt.") from error


def _is_zlib(head: bytes) -> bool:
    """Return whether a stream begins with a zlib header: method 8, and its check digits."""
    return head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0


def find_inflater(content_encoding: str) -> Inflater | None:
    """Return what undoes a Content-Encoding, None where there is nothing to undo.

    Raises:
        MediaUpstreamError: If it is one that was not asked for.
    """
    codings = [c for part in content_encoding.split(",") if (c := part.strip().lower())]
    codings = [c for c in codings if c != "identity"]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _WINDOW_BITS:
        raise MediaUpstreamError("The source answers in a content encoding that nobody asked for.")
    return Inflater(_WINDOW_BITS[codings[0]])
