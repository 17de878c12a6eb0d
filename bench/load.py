"""The load generator: posts JPEGs to a running service, in a process of its own.

Reads `{"jpeg": path, "calls": n, "threads": n, "repeat": bool, "transport": name}` per line and
answers `{"seconds": [...], "wall": s, "stages": [{...}]}`, stages in milliseconds as the service
tells them. Each thread has its own connection. Features come in the
body (`safetensors`) or are opened in place (`shm`), and their leases are released.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.media import distinct
from transport.client import Client


def post(client: Client, prompt: str, jpeg: bytes, transport: str) -> dict[str, float]:
    answer = client.preprocess(prompt=prompt, images=[jpeg], transport=transport)
    for item in answer.items:
        with client.open_item(item, copy=False) as tensors:
            if not tensors:
                raise RuntimeError("an item without tensors")
    client.release(answer)
    return dict(answer.response.timings_ms)


def main() -> None:
    base_url, prompt = sys.argv[1:]
    print(json.dumps({"ready": True}), flush=True)
    # Kept from round to round, so that no file comes twice.
    sources: dict[str, Iterator[bytes]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        jpeg = Path(order["jpeg"]).read_bytes()
        source = sources.setdefault(order["jpeg"], distinct(jpeg))
        threads, calls = order["threads"], order["calls"]
        jobs = [
            [jpeg] * calls if order["repeat"] else [next(source) for _ in range(calls)]
            for _ in range(threads)
        ]
        begin = threading.Barrier(threads + 1)

        stages: list[dict[str, float]] = []

        def run(
            jpegs: list[bytes],
            order: dict = order,
            begin: threading.Barrier = begin,
            stages: list = stages,
        ) -> list:
            times = []
            with Client(base_url) as client:
                client.models()  # connects
                begin.wait()
                for data in jpegs:
                    start = time.perf_counter()
                    told = post(client, prompt, data, order["transport"])
                    times.append(time.perf_counter() - start)
                    stages.append(told)
            return times

        with ThreadPoolExecutor(threads) as executor:
            futures = [executor.submit(run, jpegs) for jpegs in jobs]
            begin.wait()
            start = time.perf_counter()
            times = [t for future in futures for t in future.result()]
            wall = time.perf_counter() - start
        print(json.dumps({"seconds": times, "wall": wall, "stages": stages}), flush=True)


if __name__ == "__main__":
    main()
