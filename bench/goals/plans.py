"""G4: plans without features: a large picture by URL, small ones in the request."""

from bench.process import read_bytes
from bench.results import Found, Row, at_least, at_most
from bench.stand import PROMPT, Stand, image_recipe, post_order, recipe, require_good
from bench.stats import ratio_of, spread

LARGE = (4000, 3000)
SMALL = (256, 256)
CLIENTS = 8
BYTES_GOAL = at_most(64)
SPEEDUP_GOAL = at_least(50)
RATE_GOAL = at_least(1000)


def measure(stand: Stand) -> Found:
    found = Found()
    found.rows += by_url(stand)
    order = post_order(image_recipe(stand.jpeg(*SMALL), "none"), stand.count(800), clients=CLIENTS)
    results = [require_good(stand.load.run(**order)) for _ in range(stand.rounds(4) + 1)][1:]
    rates = [len(result["seconds"]) / result["wall"] for result in results]
    what = f"{SMALL[0]}x{SMALL[1]} in the request, {CLIENTS} clients"
    found.rows.append(Row(what, spread(rates), "a second", RATE_GOAL))
    return found


def by_url(stand: Stand) -> list[Row]:
    """Every URL is new; the same ones planned, and fetched and processed."""
    origin = stand.side("bench.origin", str(stand.jpeg(*LARGE)))
    url = f"http://127.0.0.1:{origin.run()['port']}/{{n}}.jpg"
    media = {"images": [{"url": url}]}
    plan, cold = recipe(media, "none", PROMPT), recipe(media, "shm", PROMPT)
    times: dict[str, list[list[float]]] = {"cold": [], "plan": []}
    kib = []
    for turn in range(stand.rounds(6) + 1):
        count = stand.count(24)
        # Other tasks of the service read meanwhile too; what is counted is an upper bound.
        before = read_bytes(stand.service.pid)
        planned = require_good(stand.load.run(**post_order(plan, count)))
        read = read_bytes(stand.service.pid) - before
        full = require_good(stand.load.run(**post_order(cold, stand.count(6))))
        if turn:
            times["plan"].append(planned["seconds"])
            times["cold"].append(full["seconds"])
            kib.append(read / count / 1024)
    sides = {
        side: f"{1e3 * spread([s for r in rounds for s in r]).median:.2f} ms"
        for side, rounds in times.items()
    }
    name = f"{LARGE[0]}x{LARGE[1]} by URL"
    note = "all that the API process reads in that time, the request included"
    return [
        Row(f"{name}, read for a plan", spread(kib), "KiB", BYTES_GOAL, note=note),
        Row(
            f"{name}",
            ratio_of(times["cold"], times["plan"]),
            "x faster than cold",
            SPEEDUP_GOAL,
            sides,
        ),
    ]
