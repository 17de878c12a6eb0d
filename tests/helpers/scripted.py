"""A real HTTP server whose answers a test writes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Scripted:
    """Gives its answers in turn, the last one for ever; remembers the requests."""

    url: str = ""
    answers: list = field(default_factory=list)
    """(status, headers, body) each; a body shorter than its Content-Length is cut."""
    requests: list = field(default_factory=list)
    """(method, path, headers, body) each."""

    def say(self, *answers):
        self.answers[:] = answers


def _handler(scripted):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            scripted.requests.append((self.command, self.path, self.headers, body))
            answers = scripted.answers
            status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            # A client that gave up waiting is no fault of the test.
            with suppress(ConnectionError):
                self.wfile.write(body)
            self.close_connection = "Content-Length" in headers

        def do_GET(self):
            self.do_POST()

        def log_message(self, *args):
            """Tests print nothing."""

    return Handler


class _UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)

    def get_request(self):
        connection, _ = super().get_request()
        return connection, ("unix", 0)


@contextmanager
def scripted_service() -> Iterator[Scripted]:
    """Serve on a free port."""
    scripted = Scripted()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
    scripted.url = f"http://127.0.0.1:{server.server_port}"
    with _serving(scripted, server):
        yield scripted


@contextmanager
def scripted_unix_service(path: str) -> Iterator[Scripted]:
    """Serve on a unix socket; `url` is its path."""
    scripted = Scripted(url=path)
    with _serving(scripted, _UnixServer(path, _handler(scripted))):
        yield scripted


@contextmanager
def _serving(scripted, server):
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
