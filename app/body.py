"""Reading a request's body: bounded in bytes and in patience, whatever its headers say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

from app.loading.limits import RateGuard
from processors.errors import InvalidRequestError, MmprepError


class BodyTooLargeError(MmprepError):
    """Raised when a request body exceeds its limit, by its header or while it comes in."""

    code = "body_too_large"


class RequestTimeoutError(MmprepError):
    """Raised when a request body stalls or drips."""

    code = "request_timeout"


class UnsupportedContentTypeError(MmprepError):
    """Raised when a body is of a type, or encoded in a way, that is not read."""

    code = "unsupported_content_type"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a request body may take."""

    max_bytes: int
    stall_s: float
    """Seconds without a byte."""
    min_bytes_per_s: float = 1024
    """Average rate below which the upload is cut off, after `grace_s`."""
    grace_s: float = 30.0


def find_body_kind(headers: Mapping[str, str]) -> Literal["json", "multipart"]:
    """Return how a body is to be read.

    Args:
        headers: The request's, found in lower case.

    Raises:
        UnsupportedContentTypeError: If the body is neither JSON nor multipart, or is compressed.
    """
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedContentTypeError(
            "A body must not have a Content-Encoding.", "Content-Encoding"
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return "json"
    if kind == "multipart/form-data":
        return "multipart"
    raise UnsupportedContentTypeError(
        "The body must be application/json or multipart/form-data.", "Content-Type"
    )


def find_content_length(headers: Mapping[str, str], max_bytes: int) -> int | None:
    """Return the body's size where the client says it.

    Raises:
        InvalidRequestError: If the header is not a number.
        BodyTooLargeError: If it exceeds the limit.
    """
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError("Content-Length must be a number.", "Content-Length")
    if len(text) > 18 or int(text) > max_bytes:
        raise _too_large(max_bytes)
    return int(text)


async def bounded(chunks: AsyncIterator[bytes], limits: BodyLimits) -> AsyncIterator[bytes]:
    """Yield a body's chunks within its limits.

    Raises:
        BodyTooLargeError: As soon as there are more bytes than the limit.
        RequestTimeoutError: If the client stalls or drips.
    """
    rate = RateGuard(limits.min_bytes_per_s, limits.grace_s)
    received = 0
    while True:
        try:
            async with asyncio.timeout(limits.stall_s):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"No byte of the body came for {limits.stall_s:g} s."
            ) from error
        if chunk is None:
            return
        received += len(chunk)
        if received > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        if rate.is_too_slow(len(chunk)):
            raise RequestTimeoutError(
                f"The body comes at less than {limits.min_bytes_per_s:g} bytes a second."
            )
        if chunk:
            yield chunk


async def read_body(
    headers: Mapping[str, str], chunks: AsyncIterator[bytes], limits: BodyLimits
) -> bytes:
    """Return a whole body.

    Args:
        headers: The request's, found in lower case.
        chunks: The body as it comes in (`Request.stream()`).
        limits: What it may take.

    Raises:
        BodyTooLargeError: If it exceeds the limit.
        RequestTimeoutError: If the client stalls or drips.
        InvalidRequestError: If Content-Length is not a number.
    """
    find_content_length(headers, limits.max_bytes)
    return b"".join([chunk async for chunk in bounded(chunks, limits)])


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"A request body may have {max_bytes} bytes; send media by URL, or fewer per request."
    )
