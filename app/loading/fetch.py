"""Fetching over http and https: guarded, bounded in bytes and time, redirects checked hop by hop.

Blocking and cancellation: everything here only waits for sockets; a cancelled fetch closes its
connection. URLs are never logged, and no message repeats one.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self

import httpcore2

from app.loading.cache import freshness_s
from app.loading.content_encoding import find_inflater
from app.loading.errors import MediaFetchTimeoutError, MediaUpstreamError, SourceForbiddenError
from app.loading.guard import Guard
from app.loading.limits import HostPermits, RateGuard, TimeBudget
from app.loading.network import Resolver, SystemResolver, make_pool
from app.loading.settings import LoadingSettings
from app.loading.urls import Target, follow
from processors.errors import InvalidRequestError, MediaTooLargeError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
GOOD = frozenset({200, 203})
PARTIAL = 206
UNSATISFIABLE = 416
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
RETRIED = (
    httpcore2.ConnectError,
    httpcore2.ConnectTimeout,
    # A kept connection may be closed under a new request; a fresh one tells the truth.
    httpcore2.ReadError,
    httpcore2.WriteError,
    httpcore2.RemoteProtocolError,
)
FREE_CHUNKS = 4096
MIN_CHUNK_BYTES = 32
"""Average size of a body's chunks beyond the first `FREE_CHUNKS`: each costs the loop time."""
CHUNKS_PER_TURN = 32
Headers = list[tuple[bytes, bytes]]


class Body:
    """The decoded body of an answer, to be iterated once, inside the context that opened it."""

    def __init__(
        self,
        response: httpcore2.Response,
        *,
        max_bytes: int,
        rate: RateGuard,
        was_redirected: bool,
        part: range | None,
    ) -> None:
        self._response = response
        self._max_bytes = max_bytes
        self._rate = rate
        self._inflater = find_inflater(_header(response.headers, b"content-encoding"))
        length = _header(response.headers, b"content-length")
        sent = int(length) if length.isascii() and length.isdigit() else None
        self.is_part = response.status == PARTIAL
        """Whether this is the part that was asked for, not the whole."""
        if self.is_part:
            sent = _total_of_part(response, part)
        if sent is not None and sent > max_bytes:
            raise _too_large(max_bytes)
        self.nbytes = sent if self._inflater is None else None
        """Bytes of the whole body where the server says so truthfully; a promise, not a fact."""
        self.fresh_s = (
            0.0
            if was_redirected
            else freshness_s(
                _header(response.headers, b"cache-control"),
                _header(response.headers, b"age"),
                _header(response.headers, b"vary"),
            )
        )
        """Seconds for which the body may be used again."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in chunks.

        Raises:
            MediaTooLargeError: As soon as more bytes than the limit were received or decoded.
            MediaFetchTimeoutError: If the server sends too slowly.
            MediaUpstreamError: If the content encoding is corrupt or cut.
        """
        decoded = 0
        async for piece in self._decoded():
            decoded += len(piece)
            if decoded > self._max_bytes:
                raise _too_large(self._max_bytes)
            yield piece

    async def _decoded(self) -> AsyncIterator[bytes]:
        async for chunk in self._received():
            if self._inflater is None:
                yield chunk
                continue
            for piece in self._inflater.pieces(chunk):
                yield piece
        if self._inflater is not None:
            for piece in self._inflater.finish():
                yield piece

    async def _received(self) -> AsyncIterator[bytes]:
        received = count = 0
        async for chunk in self._response.stream:  # type: ignore[union-attr]  # always async here
            count += 1
            received += len(chunk)
            if received > self._max_bytes:
                raise _too_large(self._max_bytes)
            if self._rate.is_too_slow(len(chunk)):
                raise MediaFetchTimeoutError("The source sends too slowly.")
            if count > FREE_CHUNKS and received < count * MIN_CHUNK_BYTES:
                raise MediaUpstreamError("The source sends its body in crumbs.")
            if count % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)  # chunks already received come without a turn of the loop
            yield chunk


class Fetcher:
    """One pooled client for all sources; an async context manager.

    Args:
        settings: The policy and its patience.
        resolver: What resolves host names; the system's unless a test brings its own.
    """

    def __init__(self, settings: LoadingSettings, resolver: Resolver | None = None) -> None:
        self._settings = settings
        self._guard = Guard(settings)
        self._system: SystemResolver | None = None
        if resolver is None:
            self._system = resolver = SystemResolver()
        self._pool = make_pool(settings, self._guard, resolver)
        self._permits = HostPermits(settings.max_connections, settings.max_connections_per_host)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._pool.aclose()
        if self._system is not None:
            self._system.close()

    @asynccontextmanager
    async def open(
        self, target: Target, *, max_bytes: int, accept: str = "*/*", part: range | None = None
    ) -> AsyncIterator[Body]:
        """Request a target, follow its redirects, and give its body.

        Leaving the context early closes the connection; nothing more is read then.

        Args:
            target: What `parse_url` made of the URL.
            max_bytes: Limit of the body, before and after its content encoding is undone.
            accept: Value of the Accept header.
            part: Bytes that are enough; a server may send the whole all the same.

        Raises:
            SourceForbiddenError: If a hop leads where sources may not.
            MediaUpstreamError: If a server cannot be reached, refuses or breaks off.
            MediaFetchTimeoutError: If it is too slow.
            MediaTooLargeError: If the body exceeds the limit.
        """
        budget = TimeBudget(self._settings.total_timeout_s)
        for hop in range(self._settings.max_redirects + 1):
            self._guard.check_target(target)
            async with self._permits.hold(target.host):
                with _translated():
                    async with budget.spend(), self._exchange(target, accept, part) as response:
                        if response.status not in REDIRECTS:
                            yield self._read(response, max_bytes, hop > 0, part)
                            return
                        target = _follow(target, response)
        raise MediaUpstreamError(
            f"The source redirects more than {self._settings.max_redirects} times."
        )

    def _read(
        self,
        response: httpcore2.Response,
        max_bytes: int,
        was_redirected: bool,
        part: range | None,
    ) -> Body:
        if response.status not in GOOD and (part is None or response.status != PARTIAL):
            raise MediaUpstreamError(
                f"The source's server answered with status {response.status}.",
                retryable=response.status >= 500,
            )
        settings = self._settings
        rate = RateGuard(settings.min_bytes_per_s, settings.min_rate_grace_s)
        return Body(
            response, max_bytes=max_bytes, rate=rate, was_redirected=was_redirected, part=part
        )

    @asynccontextmanager
    async def _exchange(
        self, target: Target, accept: str, part: range | None
    ) -> AsyncIterator[httpcore2.Response]:
        response = await self._send(target, accept, part)
        if part is not None and not _is_usable(response, part):
            await response.aclose()
            response = await self._send(target, accept, None)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(self, target: Target, accept: str, part: range | None) -> httpcore2.Response:
        """Return the answer's head; what failed before a byte of it came is tried again."""
        retries_left = self._settings.retries
        while True:
            try:
                return await self._pool.handle_async_request(self._request(target, accept, part))
            except RETRIED as error:
                if not retries_left or _is_tls(error):
                    raise
                retries_left -= 1

    def _request(self, target: Target, accept: str, part: range | None) -> httpcore2.Request:
        settings = self._settings
        headers = [
            ("Host", target.authority),
            ("User-Agent", settings.user_agent),
            ("Accept", accept),
            # Media are compressed as they are, and a decoded size is worth knowing beforehand.
            ("Accept-Encoding", "identity"),
            *settings.headers.items(),
        ]
        if part is not None:
            headers.append(("Range", f"bytes={part.start}-{part.stop - 1}"))
        if target.authorization is not None:
            headers.append(("Authorization", target.authorization))
        return httpcore2.Request(
            "GET",
            httpcore2.URL(
                scheme=target.scheme.encode(),
                host=target.host.encode(),
                port=target.port,
                target=target.path,
            ),
            headers=[(name.encode(), value.encode()) for name, value in headers],
            extensions={
                "timeout": {
                    "connect": settings.connect_timeout_s,
                    "read": settings.read_timeout_s,
                    "write": settings.read_timeout_s,
                }
            },
        )


def _header(headers: Headers, name: bytes) -> str:
    return ", ".join(v.decode("latin-1").strip() for k, v in headers if k.lower() == name)


def _is_usable(response: httpcore2.Response, part: range) -> bool:
    """Return whether an answer to a request for a part is one, or makes sense without it."""
    if response.status == UNSATISFIABLE:
        return False  # an empty file, perhaps; the whole tells
    if response.status != PARTIAL:
        return True
    found = _CONTENT_RANGE.fullmatch(_header(response.headers, b"content-range"))
    is_encoded = find_inflater(_header(response.headers, b"content-encoding")) is not None
    return found is not None and int(found[1]) == part.start and not is_encoded


def _total_of_part(response: httpcore2.Response, part: range | None) -> int | None:
    """Return the bytes of the whole of which an answer is a part; None where it is not told."""
    found = _CONTENT_RANGE.fullmatch(_header(response.headers, b"content-range"))
    if found is None or part is None:
        raise MediaUpstreamError("The source sends a part that it does not describe.")
    return None if found[3] == "*" else int(found[3])


def _too_large(max_bytes: int) -> MediaTooLargeError:
    return MediaTooLargeError(f"The medium has more than {max_bytes} bytes, which is the limit.")


def _follow(base: Target, response: httpcore2.Response) -> Target:
    locations = [v for k, v in response.headers if k.lower() == b"location"]
    if len(locations) != 1:
        raise MediaUpstreamError("The source redirects without saying where to.")
    try:
        location = locations[0].decode("utf-8")
    except UnicodeDecodeError:
        location = locations[0].decode("latin-1")
    try:
        return follow(base, location)
    except InvalidRequestError as error:
        raise SourceForbiddenError(
            "The source redirects to something that is not an http or https URL."
        ) from error


def _is_tls(error: BaseException | None) -> bool:
    """Return whether TLS is what failed, as told by the causes that the layers below recorded."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the pool's errors into ours; the one place where that happens."""
    try:
        yield
    except (TimeoutError, httpcore2.TimeoutException) as error:
        raise MediaFetchTimeoutError("The source's server is too slow.") from error
    except httpcore2.ConnectError as error:
        if _is_tls(error):
            raise MediaUpstreamError(
                "The source's server fails at TLS; its certificate must be valid for the host."
            ) from error
        raise MediaUpstreamError(
            "The source's server cannot be reached.", retryable=True
        ) from error
    except httpcore2.NetworkError as error:
        raise MediaUpstreamError(
            "The connection to the source's server broke.", retryable=True
        ) from error
    except (httpcore2.ProtocolError, httpcore2.ProxyError) as error:
        raise MediaUpstreamError(
            "The source's server breaks the HTTP protocol or breaks off."
        ) from error
