"""uvicorn with what this service needs: a drain before the sockets close, a way to cut readers."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.config import ServerSettings

ABORT_KEY = "mmprep.abort"
"""Scope key of a callable that drops the connection at once, unsent bytes included."""
WATCH_KEY = "mmprep.watch"
"""Scope key of `Protocol.watch`, which costs no task as waiting for ASGI's `receive` does."""
SOCKET_MODE = 0o660
UNREAD_BYTES = 512 * 1024
"""Of a body that may wait in the server: eight times uvicorn's own bound, with which a body of
some hundred kilobytes is paused several times."""


class JoiningTransport:
    """A transport that sends a response's head together with the first bytes of its body.

    Each write to a socket is a call into the kernel that wakes the reader; uvicorn makes one for
    the head alone.

    Args:
        transport: What it writes to; everything else is asked of it.
        loop: Where the head is sent from if nothing follows in this turn.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or keep the head of a response until the next write or the end of this turn."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines([head, data])
        elif isinstance(data, bytes) and data.startswith(b"HTTP/1.1 ") and _ends_head(data):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever transports have
        return getattr(self._transport, name)


def _ends_head(data: bytes) -> bool:
    return data.endswith(b"\r\n\r\n") and not data.startswith(b"HTTP/1.1 100 ")


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with an abort and a watch in its scope, joined or larger pieces."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take over a connection."""
        self._is_lost = False
        self._watchers: set[Callable[[], None]] = set()
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of a connection, and tell who watches it."""
        super().connection_lost(exc)
        self._is_lost = True
        for tell in list(self._watchers):
            tell()

    @contextmanager
    def watch(self, tell: Callable[[], None]) -> Iterator[None]:
        """Have a function called, soon or at once, if the client leaves within the context."""
        if self._is_lost:
            tell()
        # Where reading is paused nothing tells that the client has left.
        self.flow.resume_reading()
        self._watchers.add(tell)
        try:
            yield
        finally:
            self._watchers.discard(tell)

    def on_body(self, body: bytes) -> None:
        """Take bytes of a request's body; reading pauses when too many wait to be taken over."""
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > UNREAD_BYTES:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_begin(self) -> None:
        """Start a request's scope."""
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # servers may add keys
        scope[ABORT_KEY] = self.transport.abort
        scope[WATCH_KEY] = self.watch


class DrainingServer(uvicorn.Server):
    """A server that keeps answering while it drains, then exits.

    The first SIGTERM or SIGINT starts `drain`; probes, feature reads and lease calls go on being
    answered. A second signal ends at once.
    """

    def __init__(self, app: Starlette, config: uvicorn.Config, drain_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None
        self.on_started: Callable[[], None] = lambda: None
        """Called once the sockets are being served."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, then the sockets."""
        await super().startup(sockets=sockets)
        if self.started:
            self.on_started()

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ANN401 - uvicorn's signature
        """Begin the drain at the first signal."""
        if self._draining is not None:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.clear()
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        house = self._app.state.house
        try:
            async with asyncio.timeout(self._drain_s):
                await house.admission.drain()
        except TimeoutError:
            house.log.warning("drain_timed_out", requests=house.admission.num_requests)
        self.should_exit = True


def bind(settings: ServerSettings) -> list[socket.socket]:
    """Open the listening sockets: TCP unless only a unix socket is asked for.

    Raises:
        OSError: If an address is taken.
    """
    sockets = []
    if settings.uds is not None:
        sockets.append(_bind_unix(settings.uds))
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    tcp = socket.socket(family, socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind((settings.host, settings.port))
    sockets.append(tcp)
    return sockets


def _bind_unix(path: str) -> socket.socket:
    if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        os.unlink(path)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(path)
    os.chmod(path, SOCKET_MODE)
    return unix


def make_server(app: Starlette, settings: ServerSettings) -> DrainingServer:
    """Return the server of an application, its signals and protocol set up."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(app, config, settings.drain_s)
