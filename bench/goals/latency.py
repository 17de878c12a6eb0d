"""G1: one client, every picture new, beside the plain call on the same request and the floor."""

from pathlib import Path

from bench.results import Found, Row, Target, at_least, at_most
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import ratio_of, spread

GOALS = {(1024, 768): 2.5, (1920, 1080): 2.3, (4000, 3000): 2.1}
BINARY_GOAL = at_least(1.5)
FLOOR_GOAL = at_most(1.3)
Times = dict[str, list[list[float]]]


def measure(stand: Stand) -> Found:
    found = Found()
    sizes = list(GOALS)[:1] if stand.quick else list(GOALS)
    for size in sizes:
        times, stages = run(stand, stand.jpeg(*size))
        name = f"{size[0]}x{size[1]}"
        sides = {side: f"{_ms(rounds):.1f} ms" for side, rounds in times.items()}
        rows: list[tuple[str, str, str, str, Target]] = [
            ("shared memory", "hf", "shm", "x faster than HF", at_least(GOALS[size])),
            ("binary float32", "hf", "binary", "x faster than HF", BINARY_GOAL),
            ("shared memory", "shm", "floor", "x the floor", FLOOR_GOAL),
        ]
        for answer, over, under, unit, target in rows:
            kept = {side: sides[side] for side in (over, under)}
            value = ratio_of(times[over], times[under])
            found.rows.append(Row(f"{name}, {answer}", value, unit, target, kept))
        found.series[name] = {
            "ms": {side: [1e3 * s for r in rounds for s in r] for side, rounds in times.items()},
            "stages_ms": stages,
        }
    return found


def run(stand: Stand, jpeg: Path) -> tuple[Times, dict[str, float]]:
    """Return seconds by side and round, and the medians of the stages that the service tells."""
    times: Times = {"hf": [], "shm": [], "binary": [], "floor": []}
    told: list[dict[str, float]] = []
    count = stand.count(6)
    shm, binary = image_recipe(jpeg, "shm"), image_recipe(jpeg, "safetensors")
    for turn in range(stand.rounds(7) + 1):
        results = {
            "hf": stand.hf.run(recipe=shm, requests=count),
            "shm": require_good(stand.load.run(**post_order(shm, count))),
            "binary": require_good(stand.load.run(**post_order(binary, count, accept="binary"))),
            "floor": stand.floor.run(file=str(jpeg), requests=count),
        }
        if turn:  # the first round only warms up
            for side, result in results.items():
                times[side].append(result["seconds"])
            told += results["shm"]["stages"]
    names = sorted({name for stages in told for name in stages})
    return times, {n: spread([s.get(n, 0.0) for s in told]).median for n in names}


def _ms(rounds: list[list[float]]) -> float:
    return 1e3 * spread([s for times in rounds for s in times]).median
