"""Logs are one JSON object a line, from libraries too, and hold no URLs of media."""

import io
import json
import subprocess
import sys
import threading
import time

from app.logging import BatchedLines

_SCRIPT = """
import logging
import structlog
from app.logging import configure

configure("info", "json")
with structlog.contextvars.bound_contextvars(request_id="r-1"):
    structlog.get_logger("mmprep").info("ours", seconds=0.5)
    logging.getLogger("uvicorn.error").info("from %s", "a library")
logging.getLogger("httpx2").info("GET https://media.example/a.jpg?signature=secret")
logging.getLogger("uvicorn.access").info("GET /preprocess")
structlog.get_logger("mmprep").debug("hidden")
try:
    1 / 0
except ZeroDivisionError as error:
    structlog.get_logger("mmprep").error("internal_error", exc_info=error)
"""


def test_lines_are_json_and_carry_the_request() -> None:
    """Our lines and libraries' have the bound id; URLs, access lines and debug lines are absent."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["ours", "from a library", "internal_error"]
    assert [line.get("request_id") for line in lines] == ["r-1", "r-1", None]
    assert all(line["timestamp"].endswith("Z") and line["level"] for line in lines)
    assert "ZeroDivisionError" in lines[-1]["exception"]
    assert done.stdout == ""


def test_lines_are_written_together_in_order_and_none_is_lost() -> None:
    """Lines of several threads come out whole, each thread's in its order."""
    stream = io.StringIO()
    lines = BatchedLines(stream)

    def write(name: int) -> None:
        for number in range(500):
            lines.write(f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.drain()
    told = [tuple(map(int, line.split())) for line in stream.getvalue().splitlines()]
    assert len(told) == 2000
    for name in range(4):
        assert [number for who, number in told if who == name] == list(range(500))


def test_lines_come_out_without_a_drain() -> None:
    """A line is written a moment later by itself."""
    stream = io.StringIO()
    BatchedLines(stream).write("alone\n")
    give_up = time.monotonic() + 30
    while stream.getvalue() != "alone\n":
        assert time.monotonic() < give_up
        time.sleep(0.01)
