"""Servers that stall, drip, lie, break off or never end: the right code each time, and no leak."""

import asyncio
import gzip
import os
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from app.loading.addresses import Address
from app.loading.errors import MediaFetchTimeoutError, MediaUpstreamError
from processors.errors import MediaTooLargeError
from processors.types import Modality
from tests.helpers.loading import FixedResolver, Loading, run_loader
from tests.helpers.origin import Answer, Origin, Request, run_origin, send_raw
from transport.errors import StoreFullError

TLS = Path(__file__).parents[1] / "resources" / "tls"
MAX = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
async def no_leaks() -> AsyncIterator[None]:
    """Descriptors and tasks are no more than before."""
    fds, tasks = num_fds(), len(asyncio.all_tasks())
    yield
    for _ in range(100):  # closing a transport takes a turn or two of the loop
        if num_fds() <= fds and len(asyncio.all_tasks()) <= tasks:
            break
        await asyncio.sleep(0)
    assert num_fds() <= fds
    assert len(asyncio.all_tasks()) <= tasks


@pytest.fixture
async def origin(no_leaks: None) -> AsyncIterator[Origin]:
    async with run_origin() as running:
        yield running


async def load(loading: Loading, url: str, max_bytes: int = MAX) -> bytes:
    with await loading.loader.load(url, modality=Modality.IMAGE, max_bytes=max_bytes) as staged:
        return bytes(staged.view())


def raw(data: bytes, *, close: bool = True) -> Answer:
    """Send bytes, then hang up or stay silent."""

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        await send_raw(writer, data, close=close)
        if not close:
            await asyncio.Event().wait()

    return answer


def endless(head: bytes, piece: bytes) -> Answer:
    """Send a head, then the same piece for ever."""

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return answer


BROKEN: dict[str, Answer] = {
    "closes at once": raw(b""),
    "garbage": raw(b"\x00\x01\x02 nonsense\r\n\r\n"),
    "not HTTP": raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "cut head": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "cut body": raw(HEAD + b"x" * 99_999),
    "no body": raw(HEAD),
    "cut chunk": raw(CHUNKED + b"ff\r\nabc"),
    "no last chunk": raw(CHUNKED + b"3\r\nabc\r\n"),
    "bad chunk size": raw(CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "negative length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabcd"),
    "switching protocols": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    "endless head": endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n"),
    "endless header line": endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1000),
    "redirect without location": raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
    "two locations": raw(
        b"HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    ),
    "crumbs": endless(CHUNKED, b"1\r\nx\r\n" * 1000),
    "corrupt gzip": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: gzip\r\n\r\nabcd"
    ),
    "cut gzip": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nContent-Encoding: gzip\r\n\r\n"
        + gzip.compress(b"x" * 1000)[:20]
    ),
    "corrupt deflate": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: deflate\r\n\r\n\xff\xff\xff\xff"
    ),
    "two encodings": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Encoding: gzip, gzip\r\n\r\nx"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_the_upstreams_failure(origin: Origin, name: str) -> None:
    """Whatever a server gets wrong is 502, and the next fetch works."""
    origin.answers["/a"] = BROKEN[name]
    good = origin.serve("/good", b"fine")
    async with run_loader() as loading:
        with pytest.raises(MediaUpstreamError):
            await load(loading, origin.url("/a"))
        assert loading.held_bytes == 0
        assert await load(loading, good) == b"fine"


SLOW: dict[str, tuple[Answer, dict[str, float]]] = {
    "silent": (raw(b"", close=False), {"read_timeout_s": 0.05}),
    "silent in the head": (raw(b"HTTP/1.1 200 OK\r\n", close=False), {"read_timeout_s": 0.05}),
    "silent in the body": (raw(HEAD + b"x" * 100, close=False), {"read_timeout_s": 0.05}),
    "patient beyond all": (raw(HEAD + b"x", close=False), {"total_timeout_s": 0.05}),
    "endless interim answers": (
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        {"total_timeout_s": 0.05},
    ),
    "dripping": (
        raw(HEAD + b"x", close=False),
        {"min_rate_grace_s": 0, "min_bytes_per_s": 1e12},
    ),
}


@pytest.mark.parametrize("name", SLOW)
async def test_a_slow_server_is_cut_off(origin: Origin, name: str) -> None:
    """Silence, dripping and endless patience end in 504, and the connection is closed."""
    answer, settings = SLOW[name]
    origin.answers["/a"] = answer
    async with run_loader(retries=0, **settings) as loading:
        with pytest.raises(MediaFetchTimeoutError):
            await load(loading, origin.url("/a"))
        assert loading.held_bytes == 0


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.0 200 OK\r\n\r\n"], ids=["chunked", "unsized"])
async def test_an_endless_body_ends_at_the_limit(origin: Origin, head: bytes) -> None:
    """Without Content-Length the limit holds while streaming."""
    piece = b"1000\r\n" + b"x" * 0x1000 + b"\r\n" if head is CHUNKED else b"x" * 0x1000
    origin.answers["/a"] = endless(head, piece)
    async with run_loader() as loading:
        with pytest.raises(MediaTooLargeError):
            await load(loading, origin.url("/a"))
        assert loading.held_bytes == 0


async def test_a_server_that_says_too_little_is_believed(origin: Origin) -> None:
    """Bytes beyond Content-Length are not part of the body, nor of the next answer."""
    origin.answers["/a"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef")
    good = origin.serve("/good", b"fine")
    async with run_loader() as loading:
        assert await load(loading, origin.url("/a")) == b"abc"
        assert await load(loading, good) == b"fine"


@pytest.mark.parametrize(
    "bomb",
    [
        gzip.compress(bytes(64 << 20), 9),
        b"".join([gzip.compress(bytes(1 << 19), 9)] * 64),
        gzip.compress(b"") * 100_000,
    ],
    ids=["one member", "many members", "empty members"],
)
async def test_a_gzip_bomb_goes_off_harmlessly(origin: Origin, bomb: bytes) -> None:
    """The limit holds for what comes out of a content encoding, and for what goes in."""
    url = origin.serve("/a", bomb, "Content-Encoding: gzip")
    async with run_loader() as loading:
        with pytest.raises(MediaTooLargeError):
            await load(loading, url)
        assert loading.held_bytes == 0


async def test_a_zlib_bomb_goes_off_harmlessly(origin: Origin) -> None:
    """Deflate is bounded like gzip."""
    url = origin.serve("/a", zlib.compress(bytes(64 << 20), 9), "Content-Encoding: deflate")
    async with run_loader() as loading:
        with pytest.raises(MediaTooLargeError):
            await load(loading, url)


async def test_redirect_loops_end(origin: Origin) -> None:
    """A loop ends after the permitted number of hops."""
    origin.redirect("/b", "/a")
    url = origin.redirect("/a", "/b")
    async with run_loader(max_redirects=4) as loading:
        with pytest.raises(MediaUpstreamError, match="4"):
            await load(loading, url)
    assert len(origin.requests) == 5


async def test_a_refused_connection_is_retryable(no_leaks: None) -> None:
    """Nobody listens: 502, and worth trying again."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with run_loader() as loading:
            with pytest.raises(MediaUpstreamError) as caught:
                await load(loading, f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert caught.value.retryable


async def test_a_backlog_that_is_full_times_out(no_leaks: None) -> None:
    """A server that never accepts is 504 after the connect timeout."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        fillers = []
        for _ in range(4):  # the queue takes one or two; the rest stay half open
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        async with run_loader(connect_timeout_s=0.1, retries=0) as loading:
            with pytest.raises(MediaFetchTimeoutError):
                await load(loading, f"http://127.0.0.1:{address[1]}/")
        for filler in fillers:
            filler.close()


async def test_a_dead_name_server_times_out(no_leaks: None) -> None:
    """Resolving counts as connecting."""

    async def never(host: str, port: int) -> Sequence[Address]:
        await asyncio.Event().wait()
        return []

    async with run_loader(never, connect_timeout_s=0.01) as loading:
        with pytest.raises(MediaFetchTimeoutError, match="resolve"):
            await load(loading, "http://media.test/")


async def test_a_name_without_addresses_fails(no_leaks: None) -> None:
    """A resolver may answer with nothing."""
    async with run_loader(FixedResolver({"media.test": [[]]})) as loading:
        with pytest.raises(MediaUpstreamError):
            await load(loading, "http://media.test/")


async def test_a_cancelled_load_lets_everything_go(origin: Origin) -> None:
    """Cancelling in the middle of a body frees memory and connection."""
    arrived = asyncio.Event()

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        await send_raw(writer, HEAD + b"x" * 50_000, close=False)
        arrived.set()
        await asyncio.Event().wait()

    origin.answers["/a"] = answer
    async with run_loader() as loading:
        task = asyncio.create_task(load(loading, origin.url("/a")))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert loading.held_bytes == 0


async def test_closing_the_loader_ends_its_fetches(origin: Origin) -> None:
    """A loader that closes cancels what is under way; who waits sees it."""
    arrived = asyncio.Event()

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.Event().wait()

    origin.answers["/a"] = answer
    async with run_loader() as loading:
        task = asyncio.create_task(load(loading, origin.url("/a")))
        await arrived.wait()
        await loading.loader.__aexit__(None, None, None)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_full_staging_area_refuses_and_recovers(origin: Origin) -> None:
    """Without room a medium is 429, its connection closed; with room it works again."""
    url = origin.serve("/a", bytes(600_000))
    async with run_loader(nbytes=1 << 20) as loading:
        held = await loading.loader.load(url, modality=Modality.IMAGE, max_bytes=MAX)
        with pytest.raises(StoreFullError, match="staging"):
            await load(loading, url + "?2")
        held.release()
        assert await load(loading, url) == bytes(600_000)


async def test_a_medium_larger_than_the_staging_area_is_too_large(origin: Origin) -> None:
    """What could never be held is 413, not 429."""
    url = origin.serve("/a", bytes(900_000))
    async with run_loader(nbytes=1 << 19) as loading:
        with pytest.raises(MediaTooLargeError):
            await load(loading, url)


class TestTls:
    """Certificates are verified against the host's name, whatever address is dialled."""

    @pytest.fixture
    async def secure(self, no_leaks: None) -> AsyncIterator[Origin]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server-chain.pem")
        async with run_origin(tls=context) as running:
            running.serve("/a", b"fine")
            yield running

    async def test_the_name_is_verified_and_the_address_is_pinned(self, secure: Origin) -> None:
        """A trusted certificate for the name passes on an address it does not mention."""
        resolver = FixedResolver({"media.test": [["127.0.0.1"]]})
        async with run_loader(resolver, ca_bundle=TLS / "ca.pem") as loading:
            assert await load(loading, f"https://media.test:{secure.port}/a") == b"fine"
        assert secure.requests[0].headers["host"] == f"media.test:{secure.port}"

    async def test_another_name_is_refused(self, secure: Origin) -> None:
        """A certificate for another name is 502 and not worth a retry."""
        resolver = FixedResolver({"other.test": [["127.0.0.1"]]})
        async with run_loader(resolver, ca_bundle=TLS / "ca.pem") as loading:
            with pytest.raises(MediaUpstreamError, match="TLS") as caught:
                await load(loading, f"https://other.test:{secure.port}/a")
        assert not caught.value.retryable
        assert secure.requests == []

    async def test_an_unknown_authority_is_refused(self, secure: Origin) -> None:
        """The system's authorities do not know the test's."""
        resolver = FixedResolver({"media.test": [["127.0.0.1"]]})
        async with run_loader(resolver) as loading:
            with pytest.raises(MediaUpstreamError, match="TLS"):
                await load(loading, f"https://media.test:{secure.port}/a")

    async def test_a_plain_server_is_no_tls_server(self, no_leaks: None) -> None:
        """https to a server that speaks plain HTTP is told as what it is."""

        async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await send_raw(writer, b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server, run_loader() as loading:
            with pytest.raises(MediaUpstreamError, match="TLS"):
                await load(loading, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
