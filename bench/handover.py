"""How a stored 23 MB feature reaches its consumer: `python -m bench.handover [--rounds N]`.

One service, one feature that is in its store, five ways to a tensor in the consumer, taking turns
in one run: mapped shared memory, the same copied, GET /features, the binary body of
POST /preprocess, and JSON with base64 by the fastest libraries. `request` is POST to answer, `open`
is answer to tensor; for a body both are one. Prints medians with their quartiles and the ratio of
each to JSON, and saves them.
"""

import argparse
import io
import json
import platform
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pybase64
from PIL import Image

from tests.helpers.service import running
from transport.client import Client
from transport.safetensors import parse_document

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
BINARY = b"application/vnd.mmprep.safetensors"
RESULTS = Path(__file__).parent / "results" / "handover.json"


def picture() -> bytes:
    """A picture whose feature is 23 MB."""
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


class Raw:
    """A connection that is read into memory of its own, without an HTTP library's copies."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._buffer = bytearray(64 << 20)

    def post(self, body: bytes, accept: bytes) -> memoryview:
        """Return the body of the answer."""
        head = (
            b"POST /preprocess HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"accept: %s\r\ncontent-length: %d\r\n\r\n" % (accept, len(body))
        )
        return self._exchange(head + body)

    def get(self, path: str) -> memoryview:
        """Return the body of the answer."""
        return self._exchange(b"GET %s HTTP/1.1\r\nhost: bench\r\n\r\n" % path.encode())

    def _exchange(self, request: bytes) -> memoryview:
        self._socket.sendall(request)
        view, have = memoryview(self._buffer), 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, have)) < 0:
            have += self._socket.recv_into(view[have:])
        fields = bytes(view[:end]).lower()
        length = int(fields.split(b"content-length: ")[1].split(b"\r\n")[0])
        while have < end + 4 + length:
            have += self._socket.recv_into(view[have : end + 4 + length])
        return view[end + 4 : have]


def measure(rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of every side and round."""
    times: dict[str, list[float]] = {}

    def clock(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
        return result

    with running() as service, Client(service.base_url) as client:
        data = picture()
        first = client.preprocess(prompt=IMAGE, images=[data], transport=["safetensors"])
        name = first.items[0].hash
        raw = Raw(service.base_url)
        body = orjson.dumps({"prompt": IMAGE, "images": [{"hash": name}]})
        for _ in range(rounds):
            answer = clock(
                "shm request",
                lambda: client.preprocess(prompt=IMAGE, images=[{"hash": name}], transport=["shm"]),
            )

            def map_it(item: Any = answer.items[0]) -> int:
                with client.open_item(item, copy=False) as tensors:
                    return int(tensors["pixel_values"].nbytes)

            nbytes = clock("shm open, mapped", map_it)
            clock("shm open, copied", lambda item=answer.items[0]: client.open_item(item))
            client.release(answer)
            stored = clock("features", lambda: parse_document(raw.get(f"/features/{name}")))
            assert stored["pixel_values"].view.nbytes == nbytes
            document = clock("binary", lambda: parse_document(raw.post(body, BINARY)))
            assert document["0.pixel_values"].view.nbytes == nbytes

            def as_json() -> Any:
                parsed = orjson.loads(raw.post(body, b"application/json"))
                decoded = pybase64.b64decode(parsed["items"][0]["location"]["data"], validate=True)
                return parse_document(decoded)

            assert clock("json", as_json)["pixel_values"].view.nbytes == nbytes
    times["nbytes"] = [float(nbytes)]
    return times


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    times = measure(parser.parse_args().rounds)
    nbytes = times.pop("nbytes")[0]
    base = statistics.median(times["json"])
    report: dict[str, Any] = {"nbytes": nbytes, "machine": platform.processor(), "sides": {}}
    print(f"a stored feature of {nbytes / 1e6:.1f} MB")
    for name, values in times.items():
        low, median, high = statistics.quantiles(values[2:], n=4)
        report["sides"][name] = {"median_ms": median, "quartiles_ms": [low, high]}
        rate = nbytes / median / 1e6
        print(
            f"  {name:17} {median:9.3f} ms ({low:.3f} to {high:.3f})  "
            f"{base / median:8.1f}x json  {rate:8.2f} GB/s"
        )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
