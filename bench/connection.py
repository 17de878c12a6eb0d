"""A lean HTTP/1.1 client, so that what is measured is the service and not a client library."""

import mmap
import socket

BINARY = "application/vnd.mmprep.safetensors"
JSON = "application/json"
BUFFER_BYTES = 256 << 20


def post(path: str, body: bytes, accept: str = JSON) -> bytes:
    """Return a request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {JSON}\r\naccept: {accept}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def get(path: str) -> bytes:
    """Return a request as it goes over the wire."""
    return f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()


class Connection:
    """One keep-alive connection, read into memory of its own that is used again and again.

    Args:
        address: `http://host:port`, or `unix:/path`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._buffer = mmap.mmap(-1, BUFFER_BYTES)
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        if self._address.startswith("unix:"):
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(self._address.removeprefix("unix:"))
            return connected
        host, port = self._address.removeprefix("http://").rsplit(":", 1)
        connected = socket.create_connection((host, int(port)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def reconnect(self) -> None:
        """Connect anew, since the service closes idle connections; the buffer stays warm."""
        self._socket.close()
        self._socket = self._connect()

    def exchange(self, request: bytes) -> tuple[int, memoryview]:
        """Send a request and return status and body; the body is overwritten by the next one.

        Raises:
            ConnectionError: If the service hangs up.
        """
        self._socket.sendall(request)
        view, have = memoryview(self._buffer), 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, have)) < 0:
            have += self._receive(view[have:])
        head = bytes(view[:end]).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        stop = end + 4 + length
        while have < stop:
            have += self._receive(view[have:stop])
        return int(head[9:12]), view[end + 4 : stop]

    def _receive(self, view: memoryview) -> int:
        count = self._socket.recv_into(view)
        if not count:
            raise ConnectionError("the service closed the connection")
        return count

    def close(self) -> None:
        self._socket.close()
