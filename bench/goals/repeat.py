"""G3: an item seen before, with everything that a hit is asked for: its bytes are sent again."""

import time

import orjson
import pybase64
from blake3 import blake3

from bench.connection import Connection, get
from bench.results import Found, Row, at_least, at_most
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import Spread, ratio_of, spread

SIZE = (1024, 768)
CLIENTS = 8
P50_GOAL = at_most(1.8)
SPEEDUP_GOAL = at_least(20)
RATE_GOAL = at_least(700)
BINARY_GOAL = at_least(380)


def measure(stand: Stand) -> Found:
    found = Found()
    jpeg = stand.jpeg(*SIZE)
    name = f"{SIZE[0]}x{SIZE[1]}"
    cold = image_recipe(jpeg, "shm")
    seen = image_recipe(jpeg, "shm", distinct=False)
    times: dict[str, list[list[float]]] = {"cold": [], "seen": []}
    rates: list[float] = []
    for turn in range(stand.rounds(5) + 1):
        results = {
            "cold": stand.load.run(**post_order(cold, stand.count(16))),
            "seen": stand.load.run(**post_order(seen, stand.count(80))),
        }
        many = require_good(stand.load.run(**post_order(seen, stand.count(800), clients=CLIENTS)))
        if turn:
            for side, result in results.items():
                times[side].append(require_good(result)["seconds"])
            rates.append(len(many["seconds"]) / many["wall"])
    all_ms = {side: [1e3 * s for r in rounds for s in r] for side, rounds in times.items()}
    ms = {side: spread(values) for side, values in all_ms.items()}
    sides = {side: f"{each.median:.2f} ms" for side, each in ms.items()}
    found.rows += [
        Row(f"{name}, shared memory, one client", ms["seen"], "ms", P50_GOAL),
        Row(
            f"{name}, shared memory, one client",
            ratio_of(times["cold"], times["seen"]),
            "x faster than cold",
            SPEEDUP_GOAL,
            sides,
        ),
        Row(f"{name}, shared memory, {CLIENTS} clients", spread(rates), "a second", RATE_GOAL),
    ]
    found.series["ms"] = all_ms
    _binary(stand, found, name)
    found.rows += _floors(stand, jpeg.read_bytes(), ms["cold"].median)
    return found


def _floors(stand: Stand, data: bytes, cold_ms: float) -> list[Row]:
    """What a hit cannot do without, and how much faster than cold that would be."""
    exchange = _smallest_exchange(stand)
    body = orjson.dumps({"images": [pybase64.b64encode(data).decode()]})
    times = []
    for _ in range(stand.count(200)):
        start = time.perf_counter()
        blake3(pybase64.b64decode(orjson.loads(body)["images"][0], validate=True)).digest()
        times.append(1e3 * (time.perf_counter() - start))
    read = spread(times)
    least = exchange.value.median + read.median
    bound = cold_ms / least
    return [
        exchange,
        Row("its body read, its bytes decoded and hashed: the rest of a hit's floor", read, "ms"),
        Row(
            "the floor of a hit, all of it",
            Spread(bound, bound, bound, 1),
            "x faster than cold",
            sides={"cold": f"{cold_ms:.2f} ms", "floor": f"{least:.2f} ms"},
        ),
    ]


def _smallest_exchange(stand: Stand) -> Row:
    """What the server takes for the least that can be asked, beside which a hit is to be seen."""
    connection = Connection(stand.service.base_url)
    times = []
    for _ in range(stand.count(200)):
        start = time.perf_counter()
        connection.exchange(get("/livez"))
        times.append(1e3 * (time.perf_counter() - start))
    connection.close()
    return Row("GET /livez, one client: the floor of any answer", spread(times), "ms")


def _binary(stand: Stand, found: Found, name: str) -> None:
    what = f"{name}, binary compact, {CLIENTS} clients"
    recipe = image_recipe(stand.jpeg(*SIZE), "safetensors", distinct=False, encoding="compact")
    first = stand.load.run(**post_order(recipe, 2, accept="binary"))
    if "unsupported_option" in first["codes"]:
        found.missing.append((what, "the service does not offer the compact encoding"))
        return
    order = post_order(recipe, stand.count(400), clients=CLIENTS, accept="binary")
    results = [require_good(stand.load.run(**order)) for _ in range(stand.rounds(3))]
    rates = [len(result["seconds"]) / result["wall"] for result in results]
    nbytes = results[0]["nbytes"] / len(results[0]["seconds"])
    sides = {"an answer": f"{nbytes / 1e6:.2f} MB"}
    found.rows.append(Row(what, spread(rates), "a second", BINARY_GOAL, sides))
