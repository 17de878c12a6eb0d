"""structlog for everything: JSON lines or a console, the standard library's loggers included."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections import deque
from typing import Any, Literal, TextIO

import orjson
import structlog

_SHARED: list[structlog.types.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


DELAY_S = 0.05
"""How long a line may wait for others to be written with: a write for each wakes its reader, who
takes the processor from the request that comes next."""


class BatchedLines:
    """A stream of lines that are written together, a moment later, by a thread of its own.

    Args:
        stream: Where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()
        self._some = threading.Event()
        threading.Thread(target=self._serve, name="log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, text: str) -> int:
        """Take text to be written soon."""
        self._lines.append(text)
        self._some.set()
        return len(text)

    def flush(self) -> None:
        """Do nothing: loggers flush after every line."""

    def drain(self) -> None:
        """Write all there is now."""
        with self._lock:
            while self._lines:
                self._stream.write(self._lines.popleft())
            self._stream.flush()

    def _serve(self) -> None:
        while self._some.wait():
            time.sleep(DELAY_S)
            self._some.clear()
            self.drain()


def configure(level: str, fmt: Literal["json", "console"]) -> None:
    """Set logging up for the process; called once, before anything is logged."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer(_to_json)
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    lines: Any = BatchedLines(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=_SHARED)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    # httpx2 logs whole URLs at INFO, queries with their signatures included.
    for name in ("httpx2", "httpcore2", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _to_json(event: Any, **options: Any) -> str:  # noqa: ANN401 - whatever is logged
    """Return an event as one line; what JSON cannot say is told as structlog would tell it."""
    return orjson.dumps(event, default=options["default"]).decode()
