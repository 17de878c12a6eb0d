"""G2: many clients, every picture new, beside a pool of Hugging Face processes; and the cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bench.results import Found, Row, at_least
from bench.sides import Side, service
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import ratio_of, spread

GOALS = {(512, 512): 4.4, (1920, 1080): 3.4, (4000, 3000): 2.3}
REQUESTS = {(512, 512): 160, (1920, 1080): 64, (4000, 3000): 32}
CLIENTS = (8, 32)
LINEAR_GOAL = at_least(0.9)
LINEAR_SIZE = (1920, 1080)


def measure(stand: Stand) -> Found:
    found = Found()
    for size in list(GOALS)[:1] if stand.quick else GOALS:
        for clients in CLIENTS:
            found.rows.append(compare(stand, size, clients))
    found.rows.append(linear(stand))
    return found


def compare(stand: Stand, size: tuple[int, int], clients: int) -> Row:
    """The pool and the service take turns."""
    recipe = image_recipe(stand.jpeg(*size), "shm")
    count = max(clients, stand.count(REQUESTS[size]))
    rates: dict[str, list[float]] = {"pool": [], "shm": []}
    for turn in range(stand.rounds(3) + 1):
        few = count if turn else max(2, count // 4)
        pool = stand.pool.run(recipe=recipe, requests=few, clients=clients)
        ours = require_good(stand.load.run(**post_order(recipe, few, clients=clients)))
        if turn:
            rates["pool"].append(few / pool["wall"])
            rates["shm"].append(few / ours["wall"])
    floor = stand.floor.run(file=str(stand.jpeg(*size)), requests=stand.count(16))["seconds"]
    rates["floor on all cores"] = [stand.cores / spread(floor).median]
    value = ratio_of([[r] for r in rates["shm"]], [[r] for r in rates["pool"]])
    return Row(
        f"{size[0]}x{size[1]}, {clients} clients, shared memory",
        value,
        "x the pool's throughput",
        at_least(GOALS[size]),
        {side: f"{spread(values).median:.1f} a second" for side, values in rates.items()},
    )


def linear(stand: Stand) -> Row:
    """Throughput on all cores over that on one, for each core; load and service share them."""
    recipe = image_recipe(stand.jpeg(*LINEAR_SIZE), "shm")
    count = stand.count(64)
    wide_load = stand.load  # with its service, started on all cores
    rates: dict[str, list[float]] = {"one core": [], "all cores": []}
    with on_one_core(), service(processes=1) as alone:
        narrow_load = Side("bench.load", alone.base_url)
        for turn in range(stand.rounds(3) + 1):
            for cores, load in (("all cores", wide_load), ("one core", narrow_load)):
                result = require_good(load.run(**post_order(recipe, count, clients=8)))
                if turn:
                    rates[cores].append(count / result["wall"])
        narrow_load.close()
    pairs = zip(rates["all cores"], rates["one core"], strict=True)
    width, height = LINEAR_SIZE
    return Row(
        f"{width}x{height}, {stand.cores} cores over one, the load's share included",
        spread([many / one / stand.cores for many, one in pairs]),
        "of linear",
        LINEAR_GOAL,
        {side: f"{spread(values).median:.1f} a second" for side, values in rates.items()},
    )


@contextmanager
def on_one_core() -> Iterator[None]:
    """What is started meanwhile stays on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
