"""G9: memory above the idle processes, in bytes for each source pixel and encoded byte."""

from bench.process import PeakWatch, private_bytes, workers
from bench.results import Found, Row, at_most
from bench.sides import Side, service
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import Spread

SIZES = ((4000, 3000), (8000, 6000))
SMALL = (512, 512)
CLIENTS = 32
WORKER_GOAL = at_most(3.5)
API_GOAL = at_most(2.0)


def measure(stand: Stand) -> Found:
    sizes = SIZES[:1] if stand.quick else SIZES
    found = Found()
    small = image_recipe(stand.jpeg(*SMALL), "shm")
    one_lane = {"MMPREP_WORKERS__THREADS": "1"}
    with service(processes=1, settings=one_lane) as running:
        load = Side("bench.load", running.base_url)
        require_good(load.run(**post_order(small, 16, clients=4)))
        (worker,) = workers(running.pid)
        idle = {pid: private_bytes(pid) for pid in (worker, running.pid)}
        for size in sizes:
            order = post_order(image_recipe(stand.jpeg(*size), "shm"), 1)
            grown = _peaks(load, order, worker)[worker] - idle[worker]
            found.rows.append(_worker_row(stand, size, grown))
        jpeg = stand.jpeg(*sizes[0])
        order = post_order(image_recipe(jpeg, "shm"), CLIENTS, clients=CLIENTS)
        grown = _peaks(load, order, running.pid)[running.pid] - idle[running.pid]
        found.rows.append(_api_row(sizes[0], grown, CLIENTS * jpeg.stat().st_size))
        load.close()
    return found


def _peaks(load: Side, order: dict, *pids: int) -> dict[int, int]:
    """Return the most private memory that each process had during an order."""
    load.begin(**order)
    watch = PeakWatch(*pids)
    watch.start()
    require_good(load.end())
    watch.finish()
    return watch.peaks


def _worker_row(stand: Stand, size: tuple[int, int], grown: int) -> Row:
    """Neither side's output counts: ours lies in the store, the baseline's is subtracted."""
    pixels = size[0] * size[1]
    side = Side("bench.baseline", stand.model)
    side.run(recipe=image_recipe(stand.jpeg(*SMALL), "none"), requests=2)
    plain = side.run(recipe=image_recipe(stand.jpeg(*size), "none"), requests=1)
    side.close()
    theirs = plain["grown"] - plain["nbytes"]
    ratio = grown / pixels
    return Row(
        f"{size[0]}x{size[1]}, worker above idle, output aside",
        Spread(ratio, ratio, ratio, 1),
        "bytes a source pixel",
        WORKER_GOAL,
        {"mmprep": f"{grown / 1e6:.0f} MB", "hf": f"{theirs / pixels:.1f} bytes a pixel"},
    )


def _api_row(size: tuple[int, int], grown: int, encoded: int) -> Row:
    ratio = grown / encoded
    return Row(
        f"{CLIENTS} clients with {size[0]}x{size[1]}, API process above idle",
        Spread(ratio, ratio, ratio, 1),
        "bytes an encoded byte in flight",
        API_GOAL,
        {"grown": f"{grown / 1e6:.0f} MB", "in flight": f"{encoded / 1e6:.0f} MB of JPEG"},
        "the requests' base64 is a third more than the JPEGs that are counted",
    )
