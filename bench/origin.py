"""A web server for the loader to fetch from: `python -m bench.origin FILE`.

Serves the file at every path, as another file each time. Answers an order with its port.
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


def main() -> None:
    files = list(itertools.islice(distinct(Path(sys.argv[1]).read_bytes()), FILES))
    head = f"HTTP/1.1 200 OK\r\ncontent-type: image/jpeg\r\ncontent-length: {len(files[0])}\r\n\r\n"
    answers = itertools.cycle([head.encode() + data for data in files])

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                while self.rfile.readline():
                    while self.rfile.readline().strip():
                        pass
                    self.connection.sendall(next(answers))
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
