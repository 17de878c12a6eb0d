"""A web server for the loader to fetch from: `python -m bench.origin FILE`.

Serves the file at every path, as another file each time, and the part of it that is asked for.
Answers an order with its port.
"""

import itertools
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any

from bench.media import distinct
from bench.orders import serve_orders

FILES = 256


def answer(data: bytes, part: slice | None) -> bytes:
    """Return a file, or a part of it, as it goes over the wire."""
    status, told, body = "200 OK", "", data
    if part is not None:
        body = data[part]
        status = "206 Partial Content"
        stop = part.start + len(body) - 1
        told = f"content-range: bytes {part.start}-{stop}/{len(data)}\r\n"
    head = f"HTTP/1.1 {status}\r\ncontent-type: image/jpeg\r\n{told}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def main() -> None:
    whole = distinct(Path(sys.argv[1]).read_bytes())
    files = itertools.cycle(list(itertools.islice(whole, FILES)))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                while self.rfile.readline():
                    part = None
                    while line := self.rfile.readline().strip().lower():
                        if line.startswith(b"range: bytes="):
                            first, last = line.partition(b"=")[2].split(b"-")
                            part = slice(int(first), int(last) + 1)
                    self.connection.sendall(answer(next(files), part))
            except ConnectionError:
                return  # the loader has read what it needs

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]

        def handle(_: dict[str, Any]) -> dict[str, Any]:
            return {"port": port}

        serve_orders(handle)
        server.shutdown()


if __name__ == "__main__":
    main()
