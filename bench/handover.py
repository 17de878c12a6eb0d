"""The ways from a stored feature to a tensor in the consumer, taking turns in one process.

`python -m bench.handover ADDRESS SOCKET`. An order is `{"rounds": n}`, its answer
`{"nbytes": n, "ms": {way: [..]}}`: milliseconds from the request's first byte to the tensor.
"""

import io
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pybase64
from PIL import Image

from bench.connection import BINARY, JSON, Connection, get, post
from bench.consumer import Reader
from bench.facts import SEED
from bench.orders import serve_orders
from bench.stand import PROMPT
from transport.client import Client
from transport.safetensors import parse_document
from transport.shm import consumer_proof

WARM_UP = 2


def picture() -> bytes:
    """A picture whose feature is 23 MB."""
    out = io.BytesIO()
    pixels = np.random.default_rng(SEED).integers(0, 255, (1000, 1000, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


class Ways:
    """Each method hands over the same stored feature and returns its bytes."""

    def __init__(self, address: str, socket: str) -> None:
        self._tcp, self._unix = Connection(address), Connection(f"unix:{socket}")
        self._reader = Reader()
        self._client = Client(address)
        first = self._client.preprocess(prompt=PROMPT, images=[picture()], transport="safetensors")
        self._hash = first.items[0].hash
        inline = {"prompt": PROMPT, "images": [{"hash": self._hash}]}
        self._inline = orjson.dumps(inline)
        self._shm = post(
            "/preprocess",
            orjson.dumps({**inline, "transport": "shm", "consumer": consumer_proof()}),
        )
        self._buffer = np.zeros(64 << 20, np.uint8)

    def shm(self) -> int:
        answer = self._ask(self._tcp, self._shm)
        item = orjson.loads(answer)["items"][0]
        self._reader.read(item)
        return item["tensors"]["pixel_values"]["nbytes"]

    def copied(self) -> int:
        answer = self._ask(self._tcp, self._shm)
        item = orjson.loads(answer)["items"][0]
        view = self._reader.feature(item)
        self._buffer[: len(view)] = view
        return len(view)

    def features(self) -> int:
        return self._feature(self._ask(self._tcp, get(f"/features/{self._hash}")), "")

    def binary(self) -> int:
        request = post("/preprocess", self._inline, BINARY)
        return self._feature(self._ask(self._tcp, request), "0.")

    def unix(self) -> int:
        request = post("/preprocess", self._inline, BINARY)
        return self._feature(self._ask(self._unix, request), "0.")

    def json(self) -> int:
        answer = orjson.loads(self._ask(self._tcp, post("/preprocess", self._inline, JSON)))
        data = pybase64.b64decode(answer["items"][0]["location"]["data"], validate=True)
        return self._feature(memoryview(data), "")

    def client(self) -> int:
        answer = self._client.preprocess(
            prompt=PROMPT, images=[{"hash": self._hash}], transport="shm"
        )
        with self._client.open_item(answer.items[0], copy=False) as tensors:
            return int(tensors["pixel_values"].nbytes)

    def _ask(self, connection: Connection, request: bytes) -> memoryview:
        status, body = connection.exchange(request)
        if status != 200:
            raise RuntimeError(f"answered {status}: {bytes(body[:500])!r}")
        return body

    def _feature(self, document: memoryview, prefix: str) -> int:
        views: Mapping[str, Any] = parse_document(document)
        return views[f"{prefix}pixel_values"].view.nbytes


def clock(way: Callable[[], int], nbytes: int | None) -> tuple[float, int]:
    start = time.perf_counter()
    got = way()
    elapsed = time.perf_counter() - start
    if nbytes is not None and got != nbytes:
        raise RuntimeError(f"{got} bytes came instead of {nbytes}")
    return elapsed * 1e3, got


def main() -> None:
    address, socket = sys.argv[1:]

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        ways = Ways(address, socket)
        names = ("shm", "copied", "features", "binary", "unix", "json", "client")
        times: dict[str, list[float]] = {name: [] for name in names}
        nbytes: int | None = None
        for turn in range(order["rounds"] + WARM_UP):
            for name in names:
                ms, nbytes = clock(getattr(ways, name), nbytes)
                if turn >= WARM_UP:
                    times[name].append(ms)
        return {"nbytes": nbytes, "ms": times}

    serve_orders(handle)


if __name__ == "__main__":
    main()
