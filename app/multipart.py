"""multipart/form-data, streamed into one staging region of which every file part is an extent.

The body is written once, as it comes in; the parser only says where the parts are. Nothing is
copied out but the part `request`, nothing is spooled to disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from app.body import BodyLimits, bounded, find_content_length
from app.staging import StagedMedia, StagingArea
from processors.errors import InvalidRequestError

REQUEST_PART = "request"
MAX_NAME_CHARS = 256
_NO_ENCODINGS = frozenset({"", "binary", "8bit", "7bit"})


@dataclass(frozen=True, slots=True)
class MultipartBody:
    """A multipart request, its files in shared memory."""

    request: bytes
    """The JSON of the part `request`."""
    parts: Mapping[str, StagedMedia] = field(default_factory=dict)
    """File parts by name, hashed."""

    def release(self) -> None:
        """Let go of all file parts; idempotent."""
        for part in self.parts.values():
            part.release()


@dataclass(slots=True)
class _Part:
    name: str = ""
    start: int = 0
    """Bytes from the body's start."""
    nbytes: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class PartScanner:
    """Finds the parts of a multipart body by offset.

    Args:
        boundary: From the Content-Type header.
        max_parts: Parts beyond which the body is refused.
    """

    def __init__(self, boundary: bytes, max_parts: int) -> None:
        self._max_parts = max_parts
        self._parts: list[_Part] = []
        self._chunk = b""
        self._base = 0  # bytes of the body before the chunk
        self._field = self._value = b""
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_field,
                    "on_header_value": self._add_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                },
            )
        except FormParserError as error:
            raise InvalidRequestError("The multipart boundary is too long.") from error

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the body.

        Raises:
            InvalidRequestError: If the body is not well-formed multipart.
        """
        self._chunk = chunk
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequestError("The multipart body is malformed.") from error
        self._base += len(chunk)

    def finish(self) -> dict[str, tuple[int, int]]:
        """Return (start, bytes) of every part by name.

        Raises:
            InvalidRequestError: If the body is cut.
        """
        if self._parser.state != MultipartState.END:
            raise InvalidRequestError("The multipart body ends before its closing boundary.")
        return {part.name: (part.start, part.nbytes) for part in self._parts}

    def _begin_part(self) -> None:
        if len(self._parts) == self._max_parts:
            raise InvalidRequestError(f"A multipart body may have {self._max_parts} parts.")
        self._parts.append(_Part())

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        headers = self._parts[-1].headers
        name = self._field.decode("latin-1").lower()
        if name in headers:
            raise InvalidRequestError("A part repeats one of its headers.")
        headers[name] = self._value.decode("latin-1")
        self._field = self._value = b""

    def _end_headers(self) -> None:
        part = self._parts[-1]
        encoding = part.headers.get("content-transfer-encoding", "").strip().lower()
        if encoding not in _NO_ENCODINGS:
            raise InvalidRequestError("A part must not have a Content-Transfer-Encoding.")
        part.name = _read_name(part.headers.get("content-disposition", ""))
        if any(other.name == part.name for other in self._parts[:-1]):
            raise InvalidRequestError("Two parts of the multipart body have the same name.")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        part = self._parts[-1]
        if not part.nbytes:
            # What looked like a boundary and was none comes out of the parser's own copy of it:
            # it lies at the end of the chunks before.
            part.start = self._base + start if data is self._chunk else self._base - (end - start)
        part.nbytes += end - start


def _read_name(disposition: str) -> str:
    kind, params = parse_options_header(disposition)
    try:
        name = params.get(b"name", b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("A part's name is not valid UTF-8.") from error
    if kind != b"form-data" or not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequestError(
            f"A part needs Content-Disposition: form-data with a name of at most {MAX_NAME_CHARS} "
            "characters."
        )
    return name


async def read_multipart(
    headers: Mapping[str, str],
    chunks: AsyncIterator[bytes],
    limits: BodyLimits,
    staging: StagingArea,
    *,
    max_parts: int,
) -> MultipartBody:
    """Stream a multipart body into shared memory.

    Args:
        headers: The request's, found in lower case.
        chunks: The body as it comes in (`Request.stream()`).
        limits: What it may take.
        staging: Where it goes.
        max_parts: Parts it may have, `request` included.

    Raises:
        InvalidRequestError: If it is not well-formed, or has no part `request`.
        BodyTooLargeError: If it exceeds the limit.
        RequestTimeoutError: If the client stalls or drips.
        MediaTooLargeError: If the staging area could never hold it.
        StoreFullError: If there is no room for it now.

    Cancellation: Nothing stays held.
    """
    _, params = parse_options_header(headers.get("content-type"))
    boundary = params.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequestError("The Content-Type of a multipart body names its boundary.")
    scanner = PartScanner(boundary, max_parts)
    length = find_content_length(headers, limits.max_bytes)
    with staging.buffer(expected_bytes=length, max_bytes=limits.max_bytes) as buffer:
        async for chunk in bounded(chunks, limits):
            scanner.feed(chunk)
            await buffer.append(chunk)
        extents = scanner.finish()
        start, nbytes = extents.pop(REQUEST_PART, (0, -1))
        if nbytes < 0:
            raise InvalidRequestError('A multipart body needs a part named "request".')
        request = await buffer.read(start, nbytes)
        media = await buffer.split(list(extents.values()))
    return MultipartBody(request, dict(zip(extents, media, strict=True)))
