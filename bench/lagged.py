"""The service with a clock on its event loop: `python -m bench.lagged FILE serve`.

Every 5 ms the loop is asked to call back; by how much the call is late is appended to FILE, in
seconds, as doubles.
"""

import asyncio
import socket
import sys
import time
from array import array
from pathlib import Path

from app.cli import main as run_command
from app.server import DrainingServer

EVERY_S = 0.005
FLUSH = 64


class LagClock:
    """Writes down how late the loop is."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._late = array("d")
        self._due = 0.0

    def start(self) -> None:
        self._due = time.perf_counter() + EVERY_S
        asyncio.get_running_loop().call_later(EVERY_S, self._tick)

    def _tick(self) -> None:
        self._late.append(time.perf_counter() - self._due)
        if len(self._late) >= FLUSH:
            self._file.write(self._late)
            self._late = array("d")
        self.start()


def main() -> int:
    clock = LagClock(Path(sys.argv[1]))
    plain = DrainingServer.startup

    async def startup(server: DrainingServer, sockets: list[socket.socket] | None = None) -> None:
        await plain(server, sockets=sockets)
        clock.start()

    DrainingServer.startup = startup
    return run_command(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
