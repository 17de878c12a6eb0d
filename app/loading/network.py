"""Connections whose address has been checked: resolved once, judged, and dialled as resolved.

The pool below this asks for a host name; what it gets is a connection to an address that the guard
has seen. TLS, which the pool starts on top, still verifies the certificate against the host name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpcore2
import httpx2

from app.loading.addresses import Address
from app.loading.errors import MediaFetchTimeoutError, MediaUpstreamError
from app.loading.guard import Guard
from app.loading.settings import LoadingSettings

SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)
Resolver = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Resolves a host name to the addresses to try, best first; raises `socket.gaierror`."""

MAX_ADDRESSES = 4
"""Addresses of one name that are tried."""
RESOLVER_THREADS = 8
"""Names resolved at once; the system's resolver blocks its thread."""


class SystemResolver:
    """The system's resolver in threads of its own, so that a dead name server blocks no one else.

    Cancellation: The thread goes on until the system gives up; its answer is dropped.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, "mmprep-dns")

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a host, in the order the system prefers."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return tuple(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in found))

    def close(self) -> None:
        """Drop what is queued; a look-up that runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections for the pool, to checked addresses only."""

    def __init__(self, guard: Guard, resolver: Resolver) -> None:
        self._guard = guard
        self._resolver = resolver
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the pool's interface
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve a host, check every address, and connect to the first that answers.

        Raises:
            SourceForbiddenError: If any of the addresses is not allowed.
            MediaUpstreamError: If the name does not resolve.
            MediaFetchTimeoutError: If resolving takes too long.
            httpcore2.ConnectError: If no address accepts.
            httpcore2.ConnectTimeout: If the last one tried does not answer in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        addresses = await self._resolve(host, port, timeout)
        self._guard.check_addresses(addresses)
        tried = alternate_families(addresses)[:MAX_ADDRESSES]
        for place, address in enumerate(tried):
            left = None if end is None else max(0.0, end - time.monotonic()) / (len(tried) - place)
            try:
                return await self._plain.connect_tcp(
                    str(address), port, left, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if place == len(tried) - 1:
                    raise
        raise MediaUpstreamError("The source's host has no address.")

    async def _resolve(self, host: str, port: int, limit_s: float | None) -> Sequence[Address]:
        try:
            return (ipaddress.ip_address(host),)
        except ValueError:
            pass  # a name, then
        try:
            async with asyncio.timeout(limit_s):
                return await self._resolver(host, port)
        except TimeoutError as error:
            raise MediaFetchTimeoutError("The source's host name took too long to resolve.") from (
                error
            )
        except (socket.gaierror, UnicodeError) as error:
            temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            raise MediaUpstreamError(
                "The source's host name does not resolve.", retryable=temporary
            ) from error


def alternate_families(addresses: Sequence[Address]) -> list[Address]:
    """Return addresses with IPv4 and IPv6 taking turns, the first one's family first.

    So that a machine without one of the two reaches hosts that have many addresses of it.
    """
    first = [a for a in addresses if a.version == addresses[0].version]
    other = [a for a in addresses if a.version != addresses[0].version]
    pairs = itertools.zip_longest(first, other)
    return [address for pair in pairs for address in pair if address is not None]


def make_pool(
    settings: LoadingSettings, guard: Guard, resolver: Resolver
) -> httpcore2.AsyncConnectionPool:
    """Return the one pool of connections of a loader.

    The pool is httpx2's own transport layer, used without its client: the client would normalise
    URLs, which breaks signed ones, and log them with their queries.
    """
    # At its debug level the pool writes down hosts and response headers, redirects with signed
    # URLs among them.
    logging.getLogger("httpcore2").setLevel(logging.INFO)
    proxy = None
    backend: httpcore2.AsyncNetworkBackend = GuardedBackend(guard, resolver)
    if settings.proxy is not None:
        # What is dialled is the operator's proxy; it resolves the sources' names itself.
        proxy, backend = _read_proxy(settings.proxy.get_secret_value()), httpcore2.AnyIOBackend()
    return httpcore2.AsyncConnectionPool(
        ssl_context=make_ssl_context(settings),
        proxy=proxy,
        max_connections=settings.max_connections,
        max_keepalive_connections=min(32, settings.max_connections),
        keepalive_expiry=15.0,
        network_backend=backend,
    )


def make_ssl_context(settings: LoadingSettings) -> ssl.SSLContext:
    """Return the context that verifies servers: by the system's authorities or by a bundle's."""
    if settings.ca_bundle is not None:
        return ssl.create_default_context(cafile=settings.ca_bundle)
    return httpx2.create_ssl_context(trust_env=False)


def _read_proxy(url: str) -> httpcore2.Proxy:
    proxy = httpx2.Proxy(url)
    return httpcore2.Proxy(
        url=httpcore2.URL(
            scheme=proxy.url.raw_scheme,
            host=proxy.url.raw_host,
            port=proxy.url.port,
            target=proxy.url.raw_path,
        ),
        auth=proxy.raw_auth,
        headers=proxy.headers.raw,
    )
