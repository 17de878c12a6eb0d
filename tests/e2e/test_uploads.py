"""Multipart uploads over a real socket: written in place, and clients of every temper."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import blake3
import httpx2
import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.body import BodyLimits, find_body_kind
from app.multipart import read_multipart
from processors.errors import MmprepError
from tests.helpers.loading import run_staging
from transport.arena import Arena

BODY = bytes(range(251)) * 20_000
MAX = 8 << 20


@dataclass
class Receiver:
    """An ASGI application that stages uploads and tells their digests."""

    staging: object
    stall_s: float = 30.0
    outcomes: list[str] = field(default_factory=list)
    has_outcome: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            find_body_kind(request.headers)
            body = await read_multipart(
                request.headers,
                request.stream(),
                BodyLimits(MAX, self.stall_s),
                self.staging,
                max_parts=4,
            )
        except (MmprepError, ClientDisconnect) as error:
            self.tell(getattr(error, "code", "client_gone"))
            answer = JSONResponse({"code": self.outcomes[-1]}, 400)
        else:
            self.tell("read")
            digests = {name: part.digest.hex() for name, part in body.parts.items()}
            answer = JSONResponse({"request": body.request.decode(), "digests": digests})
            body.release()
        await answer(scope, receive, send)

    def tell(self, outcome: str) -> None:
        self.outcomes.append(outcome)
        self.has_outcome.set()


@dataclass
class Running:
    receiver: Receiver
    arena: Arena
    port: int


@asynccontextmanager
async def run_receiver(stall_s: float = 30.0) -> AsyncIterator[Running]:
    async with run_staging(16 << 20) as (staging, arena):
        receiver = Receiver(staging, stall_s)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(receiver, http="httptools", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        try:
            yield Running(receiver, arena, listener.getsockname()[1])
        finally:
            server.should_exit = True
            await serving
            listener.close()


async def test_uploads_are_staged_over_a_socket() -> None:
    """What a common client sends comes out as its parts, each with its digest."""
    async with run_receiver() as running, httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"http://127.0.0.1:{running.port}/",
            files={
                "request": (None, b'{"images": []}', "application/json"),
                "a": ("a.jpg", BODY, "image/jpeg"),
                "b": ("b.bin", b"\r\n--\r\n"),
            },
        )
    assert answer.json() == {
        "request": '{"images": []}',
        "digests": {
            "a": blake3.blake3(BODY).hexdigest(),
            "b": blake3.blake3(b"\r\n--\r\n").hexdigest(),
        },
    }


async def test_chunked_uploads_are_staged_too() -> None:
    """A body may come without Content-Length."""
    whole = (
        b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n{}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + BODY + b"\r\n--x--\r\n"
    )

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 77_777):
            yield whole[start : start + 77_777]

    async with run_receiver() as running, httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"http://127.0.0.1:{running.port}/",
            content=chunks(),
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
    assert answer.json()["digests"] == {"a": blake3.blake3(BODY).hexdigest()}


HEAD = (
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 4000000\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
)


@pytest.mark.parametrize(
    ("stall_s", "hangs_up", "outcome"),
    [(0.05, False, "request_timeout"), (30.0, True, "client_gone")],
)
async def test_clients_that_stop_midway_hold_nothing(
    stall_s: float, hangs_up: bool, outcome: str
) -> None:
    """A stalled upload is 408, a broken one is over; the memory is free either way."""
    async with run_receiver(stall_s) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(HEAD + bytes(100_000))
        await writer.drain()
        if hangs_up:
            writer.close()
        await running.receiver.has_outcome.wait()
        writer.close()
        assert running.receiver.outcomes == [outcome]
        assert running.arena.statistics().held_bytes == 0
