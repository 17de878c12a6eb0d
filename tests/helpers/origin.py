"""A media server on 127.0.0.1 that speaks raw HTTP, well or badly, and counts what reaches it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Request:
    """One request as it came in."""

    line: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Origin:
    """A running server; `answers` maps paths (without query) to what happens there."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0
    all_closed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes, *headers: str, status: str = "200 OK") -> str:
        """Answer a path with a whole body; return its URL."""
        self.answers[path] = lambda _, writer: send(writer, body, *headers, status=status)
        return self.url(path)

    def redirect(self, path: str, location: str, status: str = "302 Found") -> str:
        """Answer a path with a redirect; return its URL."""
        return self.serve(path, b"", f"Location: {location}", status=status)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.tasks.append(asyncio.current_task())
        self.num_open += 1
        self.all_closed.clear()
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                await self.answers[request.path.partition("?")[0]](request, writer)
                await writer.drain()
        except (ConnectionError, KeyError, asyncio.CancelledError):
            pass  # the loop of this Python logs a handler that ends cancelled
        finally:
            writer.close()
            self.num_open -= 1
            if not self.num_open:
                self.all_closed.set()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    fields = (line.partition(":") for line in head[1:] if line)
    return Request(head[0], {name.lower(): value.strip() for name, _, value in fields})


async def send(
    writer: asyncio.StreamWriter, body: bytes, *headers: str, status: str = "200 OK"
) -> None:
    """Write a well-formed answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1") + body)
    await writer.drain()


async def send_raw(writer: asyncio.StreamWriter, data: bytes, *, close: bool = True) -> None:
    """Write bytes as they are, and hang up."""
    writer.write(data)
    await writer.drain()
    if close:
        writer.close()


@asynccontextmanager
async def run_origin(
    tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Origin]:
    """Run a server for as long as the context lasts."""
    origin = Origin()
    server = await asyncio.start_server(origin.handle, host, 0, ssl=tls)
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()
        for task in origin.tasks:
            task.cancel()
        await asyncio.gather(*origin.tasks, return_exceptions=True)
