"""Multipart bodies: parts found in place, however the body is cut into chunks."""

import itertools
import re
from collections.abc import AsyncIterator, Sequence

import blake3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.body import BodyLimits, BodyTooLargeError, RequestTimeoutError
from app.multipart import PartScanner, read_multipart
from processors.errors import InvalidRequestError
from tests.helpers.loading import run_staging

BOUNDARY = "xYz"
TYPE = {"content-type": f'multipart/form-data; boundary="{BOUNDARY}"'}
LIMITS = BodyLimits(max_bytes=1 << 20, stall_s=30)


def part(name: str, data: bytes, *headers: str) -> bytes:
    lines = [f'Content-Disposition: form-data; name="{name}"; filename="a.bin"', *headers, "", ""]
    return f"--{BOUNDARY}\r\n".encode() + "\r\n".join(lines).encode() + data + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


async def stream(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def scan(chunks: Sequence[bytes], max_parts: int = 10) -> dict[str, tuple[int, int]]:
    scanner = PartScanner(BOUNDARY.encode(), max_parts)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.finish()


# What looks like a boundary is what confuses scanners.
pieces = st.sampled_from(
    [b"\r\n", b"\r", b"\n", b"--", b"-", BOUNDARY.encode(), b"\r\n--", b"\r\n--xY", b"\r\n--xYzz",
     b"\r\n--xYz-", b"\x00\xff", b"data"]
)  # fmt: skip
contents = st.lists(pieces, max_size=8).map(b"".join)


def holds_boundary(data: bytes) -> bool:
    return re.search(rb"\r\n--xYz(--|\r\n|[ \t])", b"\r\n" + data + b"\r\n") is not None


@given(
    st.lists(contents.filter(lambda d: not holds_boundary(d)), max_size=3),
    st.lists(st.integers(0, 10_000), max_size=12),
)
@example([b"\r\n--xY", b""], list(range(400)))
@example([b"\r\n--xYz-"], list(range(400)))
def test_parts_are_where_they_are(datas: list[bytes], places: list[int]) -> None:
    """Offsets into the body give exactly the parts, whatever the chunks."""
    whole = body(*(part(f"p{i}", data, "Content-Type: image/png") for i, data in enumerate(datas)))
    found = scan(cut(whole, places))
    assert [whole[a : a + n] for a, n in found.values()] == datas
    assert list(found) == [f"p{i}" for i in range(len(datas))]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_scanned_or_refused(data: bytes, places: list[int]) -> None:
    """No body fails in another way."""
    for text in (data, f"--{BOUNDARY}\r\n".encode() + data, body(part("a", b""))[:-4] + data):
        try:
            scan(cut(text, places))
        except InvalidRequestError:
            continue


async def test_files_lie_in_one_region_and_are_hashed() -> None:
    """A body becomes its request and its files, without a copy of the files."""
    big = bytes(range(256)) * 1500
    whole = body(part("request", b'{"a": 1}'), part("one", big), part("zwei \u00e4", b""))
    async with run_staging() as (staging, arena):
        headers = TYPE | {"content-length": str(len(whole))}
        multipart = await read_multipart(
            headers, stream(cut(whole, [10, 5000, 200_000])), LIMITS, staging, max_parts=3
        )
        assert multipart.request == b'{"a": 1}'
        assert list(multipart.parts) == ["one", "zwei \u00e4"]
        assert bytes(multipart.parts["one"].view()) == big
        assert multipart.parts["one"].digest == blake3.blake3(big).digest()
        assert multipart.parts["zwei \u00e4"].nbytes == 0
        assert arena.statistics().regions == 1
        multipart.release()
        multipart.release()
        assert arena.statistics().held_bytes == 0


NO_NAME = b'--xYz\r\nContent-Disposition: form-data; filename="a"\r\n\r\nx\r\n'
BROKEN = {
    "empty": b"",
    "preamble": b"hello " + body(part("request", b"{}")),
    "another boundary": body(part("request", b"{}")).replace(b"xYz", b"abc"),
    "cut": body(part("request", b"{}"))[:-4],
    "cut in a header": b"--xYz\r\nContent-Dis",
    "no request": body(part("file", b"x")),
    "nothing": body(),
    "two requests": body(part("request", b"{}"), part("request", b"{}")),
    "two files of one name": body(part("request", b"{}"), part("a", b"1"), part("a", b"2")),
    "too many parts": body(*(part(f"p{i}", b"") for i in range(5))),
    "no disposition": b"--xYz\r\nX: y\r\n\r\nx\r\n" + body(part("request", b"{}")),
    "no headers": b"--xYz\r\n\r\nx\r\n" + body(part("request", b"{}")),
    "no name": NO_NAME + body(part("request", b"{}")),
    "empty name": body(part("", b"x"), part("request", b"{}")),
    "endless name": body(part("x" * 300, b"x"), part("request", b"{}")),
    "an attachment": body(part("request", b"{}")).replace(b"form-data;", b"attachment;"),
    "a transfer encoding": body(part("request", b"e30=", "Content-Transfer-Encoding: base64")),
    "a header twice": body(part("request", b"{}", "Content-Disposition: form-data; name=b")),
    "many headers": body(part("request", b"{}", *(f"X-{i}: y" for i in range(100)))),
    "a long header": body(part("request", b"{}", "X: " + "y" * 100_000)),
    "a bad header": body(part("request", b"{}", "X\x00Y: z")),
    "a name in no encoding": body(part("request", b"{}"), part("a", b"")).replace(
        b'"a"', b'"\xff\xfe"'
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_bodies_are_the_clients_mistake(name: str) -> None:
    """Everything that is not well-formed is 400 and holds nothing."""
    async with run_staging() as (staging, arena):
        for places in ([], list(range(0, 200_000, 97))):
            chunks = stream(cut(BROKEN[name], places))
            with pytest.raises(InvalidRequestError):
                await read_multipart(TYPE, chunks, LIMITS, staging, max_parts=4)
            assert arena.statistics().held_bytes == 0


@pytest.mark.parametrize(
    "parameter", ["", "; boundary=", "; boundary=" + "x" * 300], ids=["none", "empty", "endless"]
)
async def test_a_useless_boundary_is_refused(parameter: str) -> None:
    """Without a boundary nothing can be found."""
    async with run_staging() as (staging, _):
        with pytest.raises(InvalidRequestError):
            await read_multipart(
                {"content-type": f"multipart/form-data{parameter}"},
                stream([]),
                LIMITS,
                staging,
                max_parts=4,
            )


async def test_the_body_limit_holds() -> None:
    """By header and while streaming; nothing stays held."""
    whole = body(part("request", b"{}"), part("a", bytes(5000)))
    limits = BodyLimits(max_bytes=4000, stall_s=30)
    async with run_staging() as (staging, arena):
        for headers in (TYPE, TYPE | {"content-length": "5400"}):
            with pytest.raises(BodyTooLargeError):
                await read_multipart(
                    headers, stream(cut(whole, [1000, 3000])), limits, staging, max_parts=4
                )
            assert arena.statistics().held_bytes == 0


async def test_a_dripping_upload_is_given_up() -> None:
    """408, and nothing stays held."""
    limits = BodyLimits(1 << 20, stall_s=30, min_bytes_per_s=1e12, grace_s=0)
    async with run_staging() as (staging, arena):
        with pytest.raises(RequestTimeoutError):
            await read_multipart(
                TYPE, stream([body(part("request", b"{}"))]), limits, staging, max_parts=4
            )
        assert arena.statistics().held_bytes == 0
