"""Fetching from a real server: what goes out, what comes back, what is shared."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import blake3
import pytest

from app.loading.errors import MediaUpstreamError, SourceForbiddenError
from processors.errors import InvalidRequestError, MediaTooLargeError
from processors.types import Modality
from tests.helpers.loading import FixedResolver, Loading, run_loader
from tests.helpers.origin import Origin, Request, run_origin, send, send_raw

BODY = bytes(range(256)) * 1024
MAX = 4 << 20


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with run_origin() as running:
        yield running


async def load(loading: Loading, url: str, max_bytes: int = MAX) -> bytes:
    staged = await loading.loader.load(url, modality=Modality.IMAGE, max_bytes=max_bytes)
    with staged:
        assert staged.digest == blake3.blake3(staged.view()).digest()
        return bytes(staged.view())


async def test_a_medium_is_fetched_into_shared_memory(origin: Origin) -> None:
    """The bytes behind a URL lie in staging, hashed, and nothing is held afterwards."""
    url = origin.serve("/a.jpg", BODY)
    async with run_loader() as loading:
        assert await load(loading, url) == BODY
        assert loading.held_bytes == 0
    assert origin.requests[0].headers["accept"].startswith("image/*")
    assert origin.requests[0].headers["accept-encoding"] == "identity"


async def test_signed_urls_arrive_as_given(origin: Origin) -> None:
    """Path and query reach the server byte for byte, without the fragment."""
    origin.serve("/a/../b%2f%2F//c", BODY)
    target = "/a/../b%2f%2F//c?X-Sig=a%2Bb%3d&b=&{}"
    async with run_loader() as loading:
        await load(loading, origin.url(target + "#top"))
    assert origin.requests[0].path == target


async def test_headers_are_the_operators(origin: Origin) -> None:
    """User agent and further headers come from the settings, credentials from the URL."""
    origin.serve("/a", BODY)
    async with run_loader(user_agent="me/1", headers={"X-From": "here"}) as loading:
        await load(loading, f"http://u:p@127.0.0.1:{origin.port}/a")
    headers = origin.requests[0].headers
    assert headers["user-agent"] == "me/1"
    assert headers["x-from"] == "here"
    assert headers["authorization"] == "Basic dTpw"
    assert headers["host"] == f"127.0.0.1:{origin.port}"


async def test_chunked_and_unsized_bodies_are_read(origin: Origin) -> None:
    """A body may come without Content-Length, in chunks or until the connection ends."""

    async def chunked(_: Request, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [b"%x\r\n%s\r\n" % (1000, BODY[i : i + 1000]) for i in range(0, 200_000, 1000)]
        await send_raw(writer, head + b"".join(chunks) + b"0\r\n\r\n", close=False)

    async def until_closed(_: Request, writer: asyncio.StreamWriter) -> None:
        await send_raw(writer, b"HTTP/1.0 200 OK\r\n\r\n" + BODY * 4)

    origin.answers |= {"/chunked": chunked, "/closed": until_closed}
    async with run_loader() as loading:
        assert await load(loading, origin.url("/chunked")) == BODY[:200_000]
        assert await load(loading, origin.url("/closed")) == BODY * 4


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:])),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", bytes),
    ],
)
async def test_content_encodings_are_undone(origin: Origin, coding: str, encode) -> None:
    """Servers that compress unasked are understood; the digest is that of the medium."""
    url = origin.serve("/a", encode(BODY), f"Content-Encoding: {coding}")
    async with run_loader() as loading:
        assert await load(loading, url) == BODY


async def test_an_unknown_content_encoding_is_the_servers_fault(origin: Origin) -> None:
    """What was not asked for and is not known cannot be read."""
    url = origin.serve("/a", BODY, "Content-Encoding: br")
    async with run_loader() as loading:
        with pytest.raises(MediaUpstreamError, match="encoding"):
            await load(loading, url)


async def test_redirects_are_followed(origin: Origin) -> None:
    """Each kind of redirect leads on, relative or not."""
    origin.serve("/end", BODY)
    origin.redirect("/3", origin.url("/end"), "308 Permanent Redirect")
    origin.redirect("/2", "3?x=y", "303 See Other")
    url = origin.redirect("/1", f"//127.0.0.1:{origin.port}/2", "301 Moved Permanently")
    async with run_loader() as loading:
        assert await load(loading, url) == BODY
    assert [r.path for r in origin.requests] == ["/1", "/2", "/3?x=y", "/end"]


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
async def test_locations_in_any_coding_are_followed(origin: Origin, coding: str) -> None:
    """Servers write what they like into Location."""
    origin.serve("/b%C3%A9", BODY)
    location = "/b\u00e9".encode(coding).decode("latin-1")
    url = origin.redirect("/1", location)
    async with run_loader() as loading:
        assert await load(loading, url) == BODY


async def test_credentials_do_not_follow_to_another_origin(origin: Origin) -> None:
    """Userinfo is for the server it was given for."""
    async with run_origin() as other:
        end = other.serve("/end", BODY)
        origin.redirect("/2", end)
        origin.redirect("/1", "/2")
        async with run_loader() as loading:
            await load(loading, f"http://u:p@127.0.0.1:{origin.port}/1")
        assert [("authorization" in r.headers) for r in origin.requests] == [True, True]
        assert "authorization" not in other.requests[0].headers


@pytest.mark.parametrize(
    ("status", "retryable"),
    [("404 Not Found", False), ("403 Forbidden", False), ("500 Oops", True), ("503 Busy", True),
     ("204 No Content", False), ("206 Partial Content", False), ("304 Not Modified", False)],
)  # fmt: skip
async def test_other_statuses_fail(origin: Origin, status: str, retryable: bool) -> None:
    """Everything but a whole medium is the upstream's failure; a 5xx may pass."""
    url = origin.serve("/a", b"", status=status)
    async with run_loader() as loading:
        with pytest.raises(MediaUpstreamError, match=status[:3]) as caught:
            await load(loading, url)
        assert caught.value.retryable is retryable


async def test_connections_are_reused(origin: Origin) -> None:
    """Two media of one server come over one connection."""
    origin.serve("/a", BODY)
    origin.serve("/b", BODY)
    async with run_loader() as loading:
        await load(loading, origin.url("/a"))
        await load(loading, origin.url("/b"))
    assert origin.num_connections == 1


async def test_a_connection_closed_meanwhile_is_replaced(origin: Origin) -> None:
    """A kept connection that the server closes costs nobody a failure."""

    async def once(_: Request, writer: asyncio.StreamWriter) -> None:
        await send(writer, BODY)
        writer.close()

    origin.answers["/a"] = once
    async with run_loader() as loading:
        for _ in range(3):
            assert await load(loading, origin.url("/a")) == BODY


async def test_equal_urls_in_flight_are_fetched_once(origin: Origin) -> None:
    """Twenty requests for one medium are one GET and one region."""
    url = origin.serve("/a", BODY)
    async with run_loader() as loading:
        bodies = await asyncio.gather(*(load(loading, url) for _ in range(20)))
        assert set(bodies) == {BODY}
        assert len(origin.requests) == 1
        assert await load(loading, url) == BODY
    assert len(origin.requests) == 2


class Gate:
    """An answer that waits until it is let go, and says when `expected` requests have come."""

    def __init__(self, origin: Origin, path: str, expected: int = 1) -> None:
        self._expected = expected
        self.has_come = asyncio.Event()
        self.may_go = asyncio.Event()
        origin.answers[path] = self.answer

    async def answer(self, _: Request, writer: asyncio.StreamWriter) -> None:
        self._expected -= 1
        if self._expected == 0:
            self.has_come.set()
        await self.may_go.wait()
        await send(writer, BODY)


async def test_a_shared_fetch_survives_one_waiter(origin: Origin) -> None:
    """Who leaves early does not take the medium from the others."""
    gate = Gate(origin, "/a")
    async with run_loader() as loading:
        first, second = (asyncio.create_task(load(loading, origin.url("/a"))) for _ in range(2))
        await gate.has_come.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.may_go.set()
        assert await second == BODY
        assert len(origin.requests) == 1


async def test_a_fetch_nobody_waits_for_is_cancelled(origin: Origin) -> None:
    """With its last waiter a fetch ends, its connection with it; the next one starts afresh."""
    gate = Gate(origin, "/a")
    async with run_loader() as loading:
        waiters = [asyncio.create_task(load(loading, origin.url("/a"))) for _ in range(3)]
        await gate.has_come.wait()
        for waiter in waiters:
            waiter.cancel()
        assert loading.loader.num_fetching == 1
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        gate.may_go.set()
        await origin.all_closed.wait()
        assert loading.held_bytes == 0
        assert await load(loading, origin.url("/a")) == BODY
        assert len(origin.requests) == 2


async def test_errors_are_everyones_own(origin: Origin) -> None:
    """Waiters of a failed fetch get errors that they may change."""
    url = origin.serve("/a", b"", status="404 Not Found")
    async with run_loader() as loading:
        errors = await asyncio.gather(
            *(load(loading, url) for _ in range(3)), return_exceptions=True
        )
    assert len({id(error) for error in errors}) == 3
    assert len(origin.requests) == 1


async def test_fetches_of_one_host_are_bounded(origin: Origin) -> None:
    """No more than the permitted number reach a server at once."""
    gate = Gate(origin, "/a", expected=2)
    async with run_loader(max_connections_per_host=2) as loading:
        loads = [asyncio.create_task(load(loading, origin.url(f"/a?{i}"))) for i in range(6)]
        await gate.has_come.wait()
        assert origin.num_open == 2
        gate.may_go.set()
        assert await asyncio.gather(*loads) == [BODY] * 6
    assert origin.num_connections <= 3


async def test_a_medium_over_its_limit_is_not_read(origin: Origin) -> None:
    """Content-Length above the limit ends it before a byte of the body."""
    url = origin.serve("/a", BODY)
    async with run_loader() as loading:
        with pytest.raises(MediaTooLargeError, match="1000"):
            await load(loading, url, max_bytes=1000)
        assert await load(loading, url, max_bytes=len(BODY)) == BODY


async def test_nothing_of_a_url_is_told(origin: Origin) -> None:
    """Messages hold no host, path, query or credentials."""
    origin.serve("/path", b"", status="404 Not Found")
    async with run_loader() as loading:
        with pytest.raises(MediaUpstreamError) as caught:
            await load(loading, f"http://user:pw@127.0.0.1:{origin.port}/path?token=1")
    for secret in ("user", "pw", "127", "path", "token", str(origin.port)):
        assert secret not in caught.value.message


async def test_nothing_of_a_url_is_logged(origin: Origin, caplog: pytest.LogCaptureFixture) -> None:
    """Even with everything at debug level, no line tells where a fetch goes."""
    origin.serve("/path", BODY)
    url = origin.redirect("/first", "/path?token=2")
    async with run_loader() as loading:
        with caplog.at_level("DEBUG"):
            await load(loading, f"{url}?token=1")
    assert "token" not in caplog.text


async def test_environment_proxies_are_ignored(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY and its kin change nothing."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    url = origin.serve("/a", BODY)
    async with run_loader() as loading:
        assert await load(loading, url) == BODY


async def test_an_explicit_proxy_is_asked(origin: Origin) -> None:
    """With a proxy set, it gets the whole URL, and literal private addresses stay refused."""
    seen: list[str] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        seen.append(request.line)
        await send(writer, BODY)

    origin.answers["http://example.test:80/a"] = answer
    async with run_loader(proxy=origin.url(""), allow_private=False) as loading:
        assert await load(loading, "http://example.test/a?q=1") == BODY
        with pytest.raises(SourceForbiddenError):
            await load(loading, "http://10.0.0.1/")
    assert seen == ["GET http://example.test:80/a?q=1 HTTP/1.1"]


async def test_a_name_is_resolved_once_per_connection(origin: Origin) -> None:
    """Look-ups happen where a connection is made, and nowhere else."""
    resolver = FixedResolver({"media.test": [["127.0.0.1"]]})
    origin.serve("/a", BODY)
    async with run_loader(resolver) as loading:
        for _ in range(3):
            assert await load(loading, origin.url("/a", "media.test")) == BODY
    assert resolver.lookups == ["media.test"]


async def test_the_next_address_is_tried(origin: Origin) -> None:
    """A host with a dead address first is still reached."""
    resolver = FixedResolver({"media.test": [["127.0.0.2", "127.0.0.1"]]})
    origin.serve("/a", BODY)
    async with run_loader(resolver, retries=0) as loading:
        assert await load(loading, origin.url("/a", "media.test")) == BODY


async def test_a_name_that_does_not_resolve_is_the_sources_failure() -> None:
    """The system's resolver answers for a reserved name without any network."""
    async with run_loader(connect_timeout_s=30) as loading:
        with pytest.raises(MediaUpstreamError, match="resolve"):
            await load(loading, "http://nothing.invalid/a")


async def test_localhost_resolves_by_the_system_and_is_refused(origin: Origin) -> None:
    """The system's own names are judged by what they resolve to."""
    origin.serve("/a", BODY)
    async with run_loader(allow_private=False) as loading:
        with pytest.raises(SourceForbiddenError):
            await load(loading, origin.url("/a", "localhost"))
    assert origin.num_connections == 0


async def test_a_cached_medium_is_not_fetched_again(origin: Origin) -> None:
    """Where Cache-Control allows it, a medium is kept within its budget."""
    url = origin.serve("/a", BODY, "Cache-Control: public, max-age=60")
    fresh = origin.serve("/b", BODY, "Cache-Control: no-store")
    async with run_loader(cache_bytes=1 << 20) as loading:
        for _ in range(3):
            assert await load(loading, url) == BODY
            assert await load(loading, fresh) == BODY
    assert [r.path for r in origin.requests] == ["/a", "/b", "/b", "/b"]


async def test_cached_media_make_room_for_new_ones(origin: Origin) -> None:
    """The cache gives its memory back before a request is refused."""
    url = origin.serve("/a", BODY * 8, "Cache-Control: max-age=60")
    async with run_loader(nbytes=4 << 20, cache_bytes=4 << 20) as loading:
        await load(loading, url)
        assert loading.held_bytes >= len(BODY) * 8
        other = origin.serve("/b", BODY * 12)
        assert await load(loading, other) == BODY * 12


async def test_a_prefix_is_read_and_no_more(origin: Origin) -> None:
    """A probe that is content with the head leaves the rest unread."""
    many = 64
    sent = 0

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (many * len(BODY)))
        for _i in range(many):
            writer.write(BODY)
            await writer.drain()
            sent += len(BODY)

    origin.answers["/a"] = answer
    seen: list[int] = []

    async def probe(data: bytes) -> str | None:
        assert data == (BODY * 8)[: len(data)]
        seen.append(len(data))
        return "found" if len(data) > 200_000 else None

    async with run_loader() as loading:
        probed = await loading.loader.probe_url(
            origin.url("/a"), probe, modality=Modality.IMAGE, max_bytes=many * len(BODY)
        )
        await origin.all_closed.wait()
    assert probed.value == "found"
    assert probed.nbytes == many * len(BODY)
    assert 65536 <= seen[0] < 131_072 <= seen[1] < 262_144 <= seen[2]
    assert sent < many * len(BODY)


async def test_a_prefix_ends_with_the_medium_or_at_its_bound(origin: Origin) -> None:
    """A probe that is never content sees a small medium whole and a big one in part."""
    small = origin.serve("/small", b"tiny")
    big = origin.serve("/big", BODY * 12)
    seen: list[int] = []

    async def probe(data: bytes) -> None:
        seen.append(len(data))

    async with run_loader() as loading:
        for url in (small, big):
            probed = await loading.loader.probe_url(
                url, probe, modality=Modality.VIDEO, max_bytes=MAX
            )
            assert probed.value is None
    assert seen[0] == 4
    assert 1 << 20 <= seen[-1] < len(BODY) * 12


def part_of(request: Request, body: bytes) -> tuple[int, int]:
    """The half-open part that a request asks for, as far as the body goes."""
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1, len(body))


async def test_a_prefix_is_asked_for_in_parts_over_one_connection(origin: Origin) -> None:
    """A server that knows ranges sends what is needed and not a byte more."""
    whole = BODY * 12
    sent: list[tuple[int, int]] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        start, stop = part_of(request, whole)
        sent.append((start, stop))
        told = f"Content-Range: bytes {start}-{stop - 1}/{len(whole)}"
        await send(writer, whole[start:stop], told, status="206 Partial Content")

    origin.answers["/a"] = answer

    async def probe(data: bytes) -> str | None:
        assert data == whole[: len(data)]
        return "found" if len(data) > 200_000 else None

    async with run_loader() as loading:
        probed = await loading.loader.probe_url(
            origin.url("/a"), probe, modality=Modality.IMAGE, max_bytes=len(whole)
        )
        assert (probed.value, probed.nbytes) == ("found", len(whole))
        assert sent == [(0, 65536), (65536, 131_072), (131_072, 262_144)]
        assert origin.num_connections == 1
        with pytest.raises(MediaTooLargeError):
            await loading.loader.probe_url(
                origin.url("/a"), probe, modality=Modality.IMAGE, max_bytes=len(whole) - 1
            )


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ("Content-Range: bytes 7-65542/2000000", "206 Partial Content"),
        ("Content-Range: bytes */2000000", "416 Range Not Satisfiable"),
        ("Content-Range: nonsense", "206 Partial Content"),
        ("X-Nothing: told", "206 Partial Content"),
    ],
)
async def test_a_part_that_is_none_is_read_whole(origin: Origin, told: str, status: str) -> None:
    """A server that answers another part, or refuses parts, is asked for the whole."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if "range" in request.headers:
            await send(writer, b"something else", told, status=status)
        else:
            await send(writer, b"tiny")

    origin.answers["/a"] = answer

    async def probe(data: bytes) -> bytes:
        return data

    async with run_loader() as loading:
        probed = await loading.loader.probe_url(
            origin.url("/a"), probe, modality=Modality.IMAGE, max_bytes=MAX
        )
    assert (probed.value, probed.nbytes) == (b"tiny", 4)


async def test_a_part_nobody_asked_for_is_no_medium(origin: Origin) -> None:
    """Whoever asked for the whole does not take a part for it."""
    url = origin.serve("/a", b"part", "Content-Range: bytes 0-3/9", status="206 Partial Content")
    async with run_loader() as loading:
        with pytest.raises(MediaUpstreamError):
            await load(loading, url)


async def test_a_malformed_url_is_the_callers_mistake() -> None:
    """What is no URL is 400 and says nothing of itself."""
    async with run_loader() as loading:
        with pytest.raises(InvalidRequestError) as caught:
            await load(loading, "http://secret host/")
    assert "secret" not in caught.value.message
