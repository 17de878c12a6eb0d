"""As many plain Hugging Face processes as there are cores, which return bytes.

`python -m bench.baseline_pool MODEL_DIRECTORY`. An order is `{"recipe": .., "requests": n,
"clients": n}`: so many requests are under way at once. The answer is that of `bench.baseline`.
"""

import multiprocessing
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import orjson

from bench.bodies import Kitchen
from bench.facts import num_cores
from bench.orders import serve_orders

_processor: Any = None


def start(directory: str) -> None:
    global _processor
    from bench.baseline import load_processor

    _processor = load_processor(directory)


def work(request: dict[str, Any]) -> bytes:
    from bench.baseline import call

    return call(_processor, request)


def drive(
    pool: ProcessPoolExecutor, requests: list[dict[str, Any]], clients: int
) -> dict[str, Any]:
    """Keep `clients` requests under way until all are answered."""
    slots = threading.Semaphore(clients)
    times: list[float] = []

    def submit(request: dict[str, Any]) -> Future[bytes]:
        slots.acquire()
        begin = time.perf_counter()
        future = pool.submit(work, request)

        def done(_: Future[bytes]) -> None:
            times.append(time.perf_counter() - begin)
            slots.release()

        future.add_done_callback(done)
        return future

    start = time.perf_counter()
    nbytes = 0
    waiting: list[Future[bytes]] = []
    for request in requests:
        waiting.append(submit(request))
        if len(waiting) > 2 * clients:  # answers are not kept
            nbytes += len(waiting.pop(0).result())
    nbytes += sum(len(future.result()) for future in waiting)
    return {"seconds": times, "wall": time.perf_counter() - start, "nbytes": nbytes}


def main() -> None:
    (directory,) = sys.argv[1:]
    kitchen = Kitchen()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_cores(), context, start, (directory,)) as pool:

        def handle(order: dict[str, Any]) -> dict[str, Any]:
            bodies = kitchen.make(order["recipe"], order["requests"])
            requests = [orjson.loads(body) for body in bodies]
            return drive(pool, requests, order["clients"])

        serve_orders(handle)


if __name__ == "__main__":
    main()
