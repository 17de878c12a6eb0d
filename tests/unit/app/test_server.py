"""What our HTTP protocol adds to uvicorn's, seen from a socket and from a transport."""

import asyncio
from typing import Any

from starlette.applications import Starlette
from uvicorn.server import ServerState

from app.config import ServerSettings
from app.server import UNREAD_BYTES, JoiningTransport, Protocol, make_server

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Recorder:
    """A transport that keeps what is written, call by call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.calls.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.calls.append(b"".join(pieces))

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str) -> str:
        return f"extra {name}"


def joining() -> tuple[JoiningTransport, Recorder]:
    recorder: Any = Recorder()
    return JoiningTransport(recorder, asyncio.get_running_loop()), recorder


async def test_a_head_goes_out_with_what_follows() -> None:
    """Head and first piece are one write, what comes later is its own; views are taken as well."""
    transport, sent = joining()
    transport.write(HEAD)
    transport.write(memoryview(b"ok"))
    transport.write(b"more")
    assert sent.calls == [HEAD + b"ok", b"more"]


async def test_a_head_alone_goes_out_at_the_end_of_the_turn() -> None:
    """A response without a body, or whose body takes a while, is not held back."""
    transport, sent = joining()
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert sent.calls == [HEAD]
    transport.write(HEAD)
    transport.close()
    assert sent.calls == [HEAD, HEAD]
    assert sent.is_closed


async def test_only_heads_of_final_responses_wait() -> None:
    """Bodies go out as they come, and so does the leave to send one."""
    transport, sent = joining()
    leave = b"HTTP/1.1 100 Continue\r\n\r\n"
    pieces = [b"body", b"HTTP/1.1 is what this body speaks of", leave, b""]
    for piece in pieces:
        transport.write(piece)
    assert sent.calls == pieces
    assert transport.get_extra_info("peername") == "extra peername"


async def test_reading_pauses_when_much_is_unread() -> None:
    """A body that nobody takes over stops being read, at our bound."""

    class Flow:
        is_paused = False

        def pause_reading(self) -> None:
            self.is_paused = True

    class Cycle:
        response_complete = False
        body = bytearray()
        message_event = asyncio.Event()

    protocol: Any = Protocol.__new__(Protocol)
    protocol.cycle, protocol.flow = Cycle(), Flow()
    protocol.on_body(bytes(UNREAD_BYTES))
    assert not protocol.flow.is_paused
    assert protocol.cycle.message_event.is_set()
    protocol.on_body(b"x")
    assert protocol.flow.is_paused
    assert len(protocol.cycle.body) == UNREAD_BYTES + 1


async def test_a_watch_tells_once_that_the_client_left() -> None:
    """Within its context, at once where it was too late, and no more when the context is left."""
    told: list[str] = []

    class Flow:
        is_paused = True

        def resume_reading(self) -> None:
            self.is_paused = False

        def resume_writing(self) -> None:
            pass

    class Transport(Recorder):
        def get_extra_info(self, name: str) -> None:
            pass

    protocol: Any = Protocol(make_server(Starlette(), ServerSettings()).config, ServerState(), {})
    protocol.connection_made(Transport())
    protocol.flow = Flow()
    with protocol.watch(lambda: told.append("left before")):
        assert not protocol.flow.is_paused
    with protocol.watch(lambda: told.append("left")):
        assert not told
        protocol.connection_lost(None)
        assert told == ["left"]
    with protocol.watch(lambda: told.append("was gone")):
        assert told == ["left", "was gone"]
