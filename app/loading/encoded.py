"""Decoding base64 and percent-encoded text, bounded before anything is allocated.

Blocking: a gigabyte of base64 takes about a second; run it in a thread. pybase64 lets go of the
interpreter lock.
"""

from __future__ import annotations

import binascii
from urllib.parse import unquote_to_bytes

import pybase64

from app.loading.source import EncodedSource
from app.staging import too_large
from processors.errors import InvalidRequestError, MediaTooLargeError

MAX_PERCENT_CHARS = 1 << 20
"""Percent-decoding is slow and grows threefold; what is larger comes as base64."""
_NOT_BASE64 = (
    "The source is neither a URL nor valid base64. Give an http(s) URL, a data: URI, a file:// URL "
    "under a configured root, or base64."
)
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITESPACE = b" \t\r\n\f\v"
_PERCENT = tuple(
    (code, plain)
    for codes, plain in (
        (("%2B", "%2b"), "+"),
        (("%2F", "%2f"), "/"),
        (("%3D", "%3d"), "="),
        (("%0A", "%0a", "%0D", "%0d", "%20"), ""),
    )
    for code in codes
)


def max_decoded_bytes(source: EncodedSource, max_bytes: int) -> int:
    """Return what decoding a source gives at most.

    Raises:
        MediaTooLargeError: If it is certain to exceed the limit.
    """
    nchars = len(source.text) - source.start
    if not source.is_base64:
        if nchars > MAX_PERCENT_CHARS:
            raise MediaTooLargeError(
                f"A percent-encoded data: URI may have {MAX_PERCENT_CHARS} characters; use base64."
            )
        return min(nchars, max_bytes)
    # Line breaks and percent-encoded signs may add to the four characters per three bytes.
    if nchars > max_bytes // 3 * 4 * 1.1 + 1024:
        raise too_large(max_bytes)
    return min(nchars // 4 * 3 + 3, max_bytes)


def decode_into(view: memoryview, source: EncodedSource, max_bytes: int) -> int:
    """Decode a source into memory of `max_decoded_bytes` and return how many bytes it has.

    Accepts the url-safe alphabet, white space, and missing padding.

    Raises:
        InvalidRequestError: If it is not base64.
        MediaTooLargeError: If it has more bytes than the limit.
    """
    payload = source.text[source.start :] if source.start else source.text
    data = _decode_base64(payload, max_bytes) if source.is_base64 else _decode_percent(payload)
    if len(data) > max_bytes:
        raise too_large(max_bytes)
    view[: len(data)] = data
    return len(data)


def _decode_percent(payload: str) -> bytes:
    if not payload.isascii():
        raise InvalidRequestError(
            "A data: URI is ASCII; percent-encode what is not, or use base64."
        )
    return unquote_to_bytes(payload)


def _decode_base64(payload: str, max_bytes: int) -> bytes:
    if len(payload) // 4 * 3 <= max_bytes + 2:
        padding = "=" * (-len(payload) % 4)
        try:
            return pybase64.b64decode(payload + padding if padding else payload, validate=True)
        except ValueError:
            pass  # perhaps it only needs tidying
    tidy = _tidy(payload)
    if len(tidy) // 4 * 3 > max_bytes + 2:
        raise too_large(max_bytes)
    try:
        return pybase64.b64decode(tidy, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(_NOT_BASE64) from error


def _tidy(payload: str) -> bytes:
    """Return base64 in the standard alphabet, without white space, padded."""
    if "%" in payload:
        for code, plain in _PERCENT:
            payload = payload.replace(code, plain)
    try:
        text = payload.encode("ascii")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(_NOT_BASE64) from error
    text = text.translate(_FROM_URL_SAFE, _WHITESPACE)
    bare = text.rstrip(b"=")
    if len(text) - len(bare) > 2 or len(bare) % 4 == 1:
        raise InvalidRequestError(_NOT_BASE64)
    return bare + b"=" * (-len(bare) % 4)
