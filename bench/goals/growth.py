"""G12 and the curves: how cost grows with images a request, size, and callers."""

from bench.process import cpu_seconds
from bench.results import Found, Row, at_most
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import spread

IMAGES = (1, 2, 4, 8, 16, 32, 64)
SMALL = (512, 512)
MEGAPIXELS = ((576, 432), (1152, 864), (2000, 1500), (2828, 2121), (4000, 3000), (5656, 4242))
CLIENTS = (1, 2, 4, 8, 16, 32)
CURVE_SIZE = (1024, 768)
FLAT_GOAL = at_most(1.1)


def measure(stand: Stand) -> Found:
    found = Found(rows=[])
    by_images(stand, found)
    by_size(stand, found)
    by_clients(stand, found)
    return found


def by_images(stand: Stand, found: Found) -> None:
    counts = IMAGES[::3] if stand.quick else IMAGES
    wall: dict[int, list[float]] = {count: [] for count in counts}
    cpu: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(stand.rounds(3) + 1):
        for count in counts:
            recipe = image_recipe(stand.jpeg(*SMALL), "shm", images=count)
            requests = max(1, stand.count(64) // count)
            used = cpu_seconds(stand.service.pid)
            result = require_good(stand.load.run(**post_order(recipe, requests, batch=1)))
            used = cpu_seconds(stand.service.pid) - used
            if turn:
                wall[count].append(1e3 * spread(result["seconds"]).median / count)
                cpu[count].append(1e3 * used / requests / count)
    name = f"{SMALL[0]}x{SMALL[1]}, 1 to {counts[-1]} images a request"
    for what, times in (("time", wall), ("CPU time", cpu)):
        worst = [
            max(times[count][turn] for count in counts[1:]) / times[1][turn]
            for turn in range(len(times[1]))
        ]
        sides = {f"{n} image(s)": f"{spread(times[n]).median:.2f} ms" for n in (1, counts[-1])}
        target = FLAT_GOAL if what == "time" else None
        unit = "x that of a single image, at its worst"
        note = "several images are shared by all workers, one is not" if what == "time" else ""
        found.rows.append(Row(f"{name}, {what} an image", spread(worst), unit, target, sides, note))
    found.series["images"] = [
        {"images": n, "wall_ms": spread(wall[n]).median, "cpu_ms": spread(cpu[n]).median}
        for n in counts
    ]


def by_size(stand: Stand, found: Found) -> None:
    curve = []
    for size in MEGAPIXELS[:2] if stand.quick else MEGAPIXELS:
        jpeg = stand.jpeg(*size)
        recipe = image_recipe(jpeg, "shm")
        times: dict[str, list[float]] = {"hf": [], "mmprep": [], "floor": []}
        count = stand.count(4)
        for turn in range(stand.rounds(3) + 1):
            results = {
                "hf": stand.hf.run(recipe=recipe, requests=count),
                "mmprep": require_good(stand.load.run(**post_order(recipe, count))),
                "floor": stand.floor.run(file=str(jpeg), requests=count),
            }
            if turn:
                for side, result in results.items():
                    times[side] += result["seconds"]
        medians = {side: 1e3 * spread(values).median for side, values in times.items()}
        curve.append({"megapixels": size[0] * size[1] / 1e6, "ms": medians})
    found.series["size"] = curve


def by_clients(stand: Stand, found: Found) -> None:
    jpeg = stand.jpeg(*CURVE_SIZE)
    cold = image_recipe(jpeg, "shm")
    seen = image_recipe(jpeg, "shm", distinct=False)
    curve = []
    for clients in CLIENTS[::3] if stand.quick else CLIENTS:
        count = max(clients, stand.count(64))
        rates: dict[str, list[float]] = {"hf pool": [], "cold": [], "seen": []}
        for turn in range(stand.rounds(2) + 1):
            pool = stand.pool.run(recipe=cold, requests=count, clients=clients)
            ours = require_good(stand.load.run(**post_order(cold, count, clients=clients)))
            many = stand.load.run(**post_order(seen, 4 * count, clients=clients))
            if turn:
                rates["hf pool"].append(count / pool["wall"])
                rates["cold"].append(count / ours["wall"])
                rates["seen"].append(4 * count / require_good(many)["wall"])
        medians = {side: spread(values).median for side, values in rates.items()}
        curve.append({"clients": clients, "per_second": medians})
    width, height = CURVE_SIZE
    found.series["clients"] = {"size": f"{width}x{height}", "points": curve}
