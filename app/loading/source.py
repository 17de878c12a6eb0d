"""What a Media string is: a URL, a data URI, a file under a root, or base64.

Pure: nothing is fetched, opened or decoded. The kinds are told apart by what they start with, so
that megabytes of base64 are not looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from processors.errors import InvalidRequestError

MAX_DATA_HEADER_CHARS = 1024
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_PATH = re.compile(r"(/[A-Za-z_]|\.{1,2}/|~)")
_MAX_PATH_CHARS = 4096
_WHAT_IS_RIGHT = (
    "Give an http(s) URL, a data: URI, a file:// URL under a configured root, or base64."
)


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A medium to fetch."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EncodedSource:
    """A medium that stands in the request: base64, or percent-encoded text of a data URI."""

    text: str = field(repr=False)
    start: int
    """Where in the text the payload begins; a slice would copy it."""
    is_base64: bool


@dataclass(frozen=True, slots=True)
class FileSource:
    """A medium on the server's own disk."""

    path: str = field(repr=False)
    """Absolute, percent-decoded; not yet checked against the roots."""


MediaSource = HttpSource | EncodedSource | FileSource


def parse_source(text: str) -> MediaSource:
    """Tell what a Media string is.

    Raises:
        InvalidRequestError: If it is none of the kinds, saying what would be right.
    """
    match = _SCHEME.match(text[:40])
    if match is None:
        if len(text) <= _MAX_PATH_CHARS and _PATH.match(text):
            raise InvalidRequestError(f"A bare path is not a source. {_WHAT_IS_RIGHT}")
        return EncodedSource(text, 0, is_base64=True)
    scheme = match[1].lower()
    if scheme in ("http", "https"):
        return HttpSource(text)
    if scheme == "data":
        return _parse_data(text, match.end())
    if scheme == "file":
        return FileSource(_parse_file(text))
    raise InvalidRequestError(f"This kind of source is not known. {_WHAT_IS_RIGHT}")


def _parse_data(text: str, start: int) -> EncodedSource:
    comma = text.find(",", start, start + MAX_DATA_HEADER_CHARS)
    if comma < 0:
        raise InvalidRequestError(
            "A data: URI needs a comma after its media type: data:image/png;base64,..."
        )
    params = [part.strip().lower() for part in text[start:comma].split(";")]
    return EncodedSource(text, comma + 1, is_base64="base64" in params[1:])


def _parse_file(text: str) -> str:
    match = re.fullmatch(r"file://(?:localhost)?(/[^?#]*)", text, re.IGNORECASE)
    if match is None or len(text) > _MAX_PATH_CHARS:
        raise InvalidRequestError("A file URL has three slashes and no host: file:///folder/name.")
    try:
        path = unquote(match[1], errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("The file URL's path is not valid UTF-8.") from error
    if "\0" in path or "\\" in path:
        raise InvalidRequestError("The file URL's path holds a character that no path may have.")
    return path
