"""Response bodies that are sent from shared memory without being copied together.

A body is a list of buffers and of functions that make one (base64 of a slice, run in a thread).
The views stay pinned until the socket has them: uvicorn's `send` returns while the server's write
buffer may still hold up to its high-water mark of what was sent, so the last `TAIL_BYTES` go out as
two private copies. The second is accepted only once the buffer holds nothing but the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.server import ABORT_KEY, WATCH_KEY

CHUNK_BYTES = 1024 * 1024
TAIL_BYTES = 160 * 1024
"""More than uvicorn's write high-water mark (64 KiB), with room."""
LAST_BYTES = 16 * 1024

Buffer = bytes | memoryview
Made = tuple[int, Callable[[], bytes]]
"""Length of a part that is made in a thread when its turn comes, and the function that makes it."""
Part = Buffer | Made


class StreamedResponse(Response):
    """A response of known length, streamed part by part with back-pressure.

    Args:
        parts: The body in order.
        headers: Further headers.
        media_type: Content type.
        status_code: HTTP status.
        executor: Runs the functions among the parts.
        stalled_s: Seconds without progress after which the connection is dropped.
        on_end: Called exactly once, with whether the whole body was handed to the socket.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        headers: Mapping[str, str],
        media_type: str,
        status_code: int = 200,
        executor: Executor,
        stalled_s: float,
        on_end: Callable[[bool], None],
    ) -> None:
        super().__init__(None, status_code, dict(headers), media_type)
        self._parts = parts
        self._executor = executor
        self._stalled_s = stalled_s
        self._on_end = on_end
        self._is_reader_gone = False
        self.content_nbytes = sum(_length(part) for part in parts)
        self.headers["content-length"] = str(self.content_nbytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; a reader that stalls or leaves gets no more and `on_end(False)`."""
        complete = False
        try:
            with scope[WATCH_KEY](self._leave):
                complete = await self._send_all(scope, send)
        finally:
            self._on_end(complete)

    def _leave(self) -> None:
        self._is_reader_gone = True

    async def _send_all(self, scope: Scope, send: Send) -> bool:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return True
        left = self.content_nbytes
        for part in self._parts:
            buffer = part if isinstance(part, bytes | memoryview) else await self._make(part)
            view = memoryview(buffer)
            private = isinstance(buffer, bytes)
            for start, stop in _cuts(view.nbytes, left):
                if self._is_reader_gone:
                    return False
                chunk = view[start:stop]
                is_tail = left - start <= TAIL_BYTES
                body = bytes(chunk) if is_tail and not private else chunk
                message = {
                    "type": "http.response.body",
                    "body": body,
                    "more_body": stop < left,
                }
                try:
                    async with asyncio.timeout(self._stalled_s):
                        await send(message)
                except TimeoutError:
                    scope[ABORT_KEY]()
                    return False
            left -= view.nbytes
        if not self.content_nbytes:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return not self._is_reader_gone

    async def _make(self, part: Made) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._executor, part[1])


def _length(part: Part) -> int:
    if isinstance(part, memoryview):
        return part.nbytes
    return len(part) if isinstance(part, bytes) else part[0]


def _cuts(nbytes: int, left: int) -> list[tuple[int, int]]:
    """Return the ranges in which a part of `nbytes` is sent, `left` bytes before the body's end."""
    tail = max(0, left - TAIL_BYTES)
    last = max(0, left - LAST_BYTES)
    stops = {*range(CHUNK_BYTES, nbytes, CHUNK_BYTES), tail, last, nbytes}
    marks = sorted(stop for stop in stops if 0 < stop <= nbytes)
    return list(zip([0, *marks[:-1]], marks, strict=True))
