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
_WINDOW_BITS = {
    "gzip": zlib.MAX_WBITS | 16,
    "x-gzip": zlib.MAX_WBITS | 16,
    "deflate": zlib.MAX_WBITS,
}
_CORRUPT = "The source's content encoding is corrupt."


class Inflater:
    """Decompresses one gzip or deflate stream, gzip members one after the other included."""

    def __init__(self, window_bits: int) -> None:
        self._window_bits = window_bits
        self._stream = zlib.decompressobj(window_bits)
        self._has_begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what a chunk decompresses to, at most `PIECE_BYTES` at a time.

        Raises:
            MediaUpstreamError: If the stream is corrupt.
        """
        while data:
            if self._stream.eof:
                self._stream = zlib.decompressobj(self._window_bits)
            piece, data = self._inflate(data)
            if piece:
                yield piece

    def finish(self) -> Iterator[bytes]:
        """Yield what is left inside; call once, after the last chunk.

        Raises:
            MediaUpstreamError: If the stream is cut.
        """
        try:
            rest = self._stream.decompress(b"", PIECE_BYTES)
            while rest:
                yield rest
                rest = self._stream.decompress(b"", PIECE_BYTES)
        except zlib.error as error:
            raise MediaUpstreamError(_CORRUPT) from error
        if not self._stream.eof:
            raise MediaUpstreamError("The source's content encoding is cut.")

    def _inflate(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            piece = self._stream.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            if self._has_begun or self._window_bits != zlib.MAX_WBITS:
                raise MediaUpstreamError(_CORRUPT) from error
            # "deflate" is a zlib stream by the standard and a raw one by some servers.
            self._window_bits = -zlib.MAX_WBITS
            self._stream = zlib.decompressobj(self._window_bits)
            return self._inflate(data)
        self._has_begun = True
        return piece, self._stream.unconsumed_tail or self._stream.unused_data


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
