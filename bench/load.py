"""The load generator: posts to a running service, in a process of its own.

`python -m bench.load ADDRESS`. An order is

    recipe      what to post, see `bench.bodies`
    clients     connections, each waits for its answer before it posts again
    requests    how many in all; the clients take them from one list
    accept      "json" or "binary"
    batch       leases released by one call to POST /leases/release; its time is in `wall`
    seconds     instead of `requests`: post the same few bodies for so long

and its answer `{"seconds": [..], "wall": s, "cpu": s, "nbytes": n, "statuses": {..}, "codes": {..},
"stages": [{..}]}`: seconds of each good request from its first byte out to a value read, bytes of
all answers, statuses and problem codes told, stages in milliseconds as the service tells them. An
answer over shared memory is opened and a value of every item is read.
"""

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from bench.bodies import Kitchen
from bench.connection import BINARY, JSON, Connection, post
from bench.consumer import Reader
from bench.orders import serve_orders

ACCEPT = {"json": JSON, "binary": BINARY}


class Releaser:
    """Releases leases in batches, as a scheduler does, on a connection of its own."""

    def __init__(self, connection: Connection, batch: int) -> None:
        self._connection = connection
        self._batch = batch
        self._ids: list[str] = []
        self._lock = threading.Lock()

    def add(self, lease_id: str) -> None:
        with self._lock:
            self._ids.append(lease_id)
            if len(self._ids) >= self._batch:
                self._release()

    def finish(self) -> None:
        with self._lock:
            if self._ids:
                self._release()

    def _release(self) -> None:
        body = orjson.dumps({"ids": self._ids})
        status, answer = self._connection.exchange(post("/leases/release", body))
        if status != 200:
            raise RuntimeError(f"a release was answered {status}: {bytes(answer[:500])!r}")
        self._ids.clear()


class Round:
    """One order under way, on connections that are kept from order to order."""

    def __init__(
        self, connections: list[Connection], reader: Reader, order: dict[str, Any]
    ) -> None:
        spare, *self._connections = connections
        self._reader = reader
        self._is_json = order["accept"] == "json"
        self._releaser = Releaser(spare, order["batch"])
        self._start = threading.Barrier(order["clients"] + 1)
        self._lock = threading.Lock()
        self.seconds: list[float] = []
        self.stages: list[dict[str, float]] = []
        self.statuses: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.nbytes = 0

    def drive(self, requests: list[bytes], seconds: float | None) -> dict[str, Any]:
        if seconds is None:
            work: Iterator[bytes] = iter(requests)
            until = float("inf")
        else:
            work = itertools.cycle(requests)
            until = time.perf_counter() + seconds
        with ThreadPoolExecutor(len(self._connections)) as executor:
            futures = [executor.submit(self._client, c, work, until) for c in self._connections]
            self._start.wait()
            start, cpu = time.perf_counter(), time.process_time()
            for future in futures:
                future.result()
            self._releaser.finish()
            wall = time.perf_counter() - start
        return {
            "seconds": self.seconds,
            "wall": wall,
            "cpu": time.process_time() - cpu,
            "nbytes": self.nbytes,
            "statuses": self.statuses,
            "codes": self.codes,
            "stages": self.stages,
        }

    def _client(self, connection: Connection, work: Iterator[bytes], until: float) -> None:
        self._start.wait()
        while time.perf_counter() < until:
            with self._lock:
                request = next(work, None)
            if request is None:
                break
            start = time.perf_counter()
            status, body = connection.exchange(request)
            self._take(status, body, start)

    def _take(self, status: int, body: memoryview, start: float) -> None:
        answer: dict[str, Any] = {}
        if self._is_json or status != 200:
            answer = orjson.loads(body)
        if status == 200:
            for item in answer.get("items", ()):
                if (item["location"] or {}).get("kind") == "shm":
                    self._reader.read(item)
        elapsed = time.perf_counter() - start
        if answer.get("lease"):
            self._releaser.add(answer["lease"]["id"])
        with self._lock:
            self.statuses[str(status)] += 1
            self.nbytes += len(body)
            if status != 200:
                self.codes[answer["code"]] += 1
                return
            self.seconds.append(elapsed)
            if "timings_ms" in answer:
                self.stages.append(answer["timings_ms"])


def main() -> None:
    (address,) = sys.argv[1:]
    kitchen, reader = Kitchen(), Reader()
    connections: list[Connection] = []

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        accept = ACCEPT[order["accept"]]
        bodies = kitchen.make(order["recipe"], order["requests"])
        requests = [post("/preprocess", body, accept) for body in bodies]
        count = order["clients"] + 1
        connections.extend(Connection(address) for _ in range(count - len(connections)))
        for connection in connections[:count]:
            connection.reconnect()
        current = Round(connections[:count], reader, order)
        return current.drive(requests, order.get("seconds"))

    serve_orders(handle)


if __name__ == "__main__":
    main()
