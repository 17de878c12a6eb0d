"""Request bodies: kinds, sizes, patience."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from app.body import (
    BodyLimits,
    BodyTooLargeError,
    RequestTimeoutError,
    UnsupportedContentTypeError,
    find_body_kind,
    read_body,
)
from processors.errors import InvalidRequestError

LIMITS = BodyLimits(max_bytes=100, stall_s=30)


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def silent() -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/json", "json"),
        ("Application/JSON; charset=utf-8", "json"),
        ("multipart/form-data; boundary=x", "multipart"),
    ],
)
def test_kinds_of_bodies(content_type: str, kind: str) -> None:
    """JSON and multipart are read, whatever their parameters."""
    assert find_body_kind({"content-type": content_type}) == kind


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/mixed; boundary=x"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_bodies_are_not_read(headers: dict[str, str]) -> None:
    """Other types and compressed bodies are 415."""
    with pytest.raises(UnsupportedContentTypeError):
        find_body_kind(headers)


async def test_a_body_is_joined() -> None:
    """Chunks come out as one, empty ones and the exact limit included."""
    assert await read_body({}, stream([b"a", b"", b"b" * 99]), LIMITS) == b"a" + b"b" * 99
    assert await read_body({"content-length": "0"}, stream([]), LIMITS) == b""


async def test_a_body_over_its_limit_is_refused() -> None:
    """By its header before a byte is read, and while it comes in."""
    with pytest.raises(BodyTooLargeError, match="100"):
        await read_body({"content-length": "101"}, silent(), LIMITS)
    with pytest.raises(BodyTooLargeError):
        await read_body({"content-length": "9" * 5000}, silent(), LIMITS)
    with pytest.raises(BodyTooLargeError):
        await read_body({}, stream([b"x" * 60, b"x" * 60, b"x"]), LIMITS)


@pytest.mark.parametrize("text", ["-1", "1e2", "\u0661", "", "1 2"])
async def test_a_content_length_that_is_no_number_is_refused(text: str) -> None:
    """Servers pass headers on as they come."""
    with pytest.raises(InvalidRequestError):
        await read_body({"content-length": text}, stream([]), LIMITS)


async def test_a_stalled_body_is_given_up() -> None:
    """Silence is 408."""
    with pytest.raises(RequestTimeoutError):
        await read_body({}, silent(), BodyLimits(100, stall_s=0.01))


async def test_a_dripping_body_is_given_up() -> None:
    """So is a body that comes too slowly on the whole."""
    limits = BodyLimits(100, stall_s=30, min_bytes_per_s=1e12, grace_s=0)
    with pytest.raises(RequestTimeoutError):
        await read_body({}, stream([b"x"]), limits)
