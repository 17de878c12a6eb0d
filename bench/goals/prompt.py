"""G7: a prompt of a hundred thousand placeholder tokens, planned and expanded; pixels aside.

The pictures are known to both sides: the baseline's image processor answers with their grids at
once, the service gets their hashes.
"""

import orjson

from bench.bodies import Kitchen
from bench.connection import Connection, post
from bench.results import Found, Row, at_least
from bench.stand import PROMPT, QUESTION, Stand, post_order, recipe, require_good
from bench.stats import ratio_of, spread

SIZE = (1120, 896)
GRID = (1, 64, 80)
"""Of a picture of this size: 1280 tokens."""
IMAGES = 79
GOAL = at_least(40)


def measure(stand: Stand) -> Found:
    name = known_picture(stand)
    request = recipe(
        {"images": [{"value": {"hash": name}}] * IMAGES}, "none", PROMPT * IMAGES + QUESTION
    )
    baseline = stand.side("bench.baseline_text", stand.model)
    times: dict[str, list[list[float]]] = {"hf": [], "mmprep": []}
    tokens = 0
    for turn in range(stand.rounds(5) + 1):
        plain = baseline.run(
            prompt=PROMPT * IMAGES + QUESTION, grid=GRID, images=IMAGES, requests=stand.count(8)
        )
        ours = require_good(stand.load.run(**post_order(request, stand.count(24))))
        if turn:
            times["hf"].append(plain["seconds"])
            times["mmprep"].append(ours["seconds"])
            tokens = plain["tokens"]
    sides = {
        side: f"{1e3 * spread([s for r in rounds for s in r]).median:.2f} ms"
        for side, rounds in times.items()
    }
    what = f"{tokens} tokens of {IMAGES} known pictures, ids as JSON over HTTP"
    row = Row(
        what, ratio_of(times["hf"], times["mmprep"]), "x faster than HF's text path", GOAL, sides
    )
    return Found(rows=[row])


def known_picture(stand: Stand) -> str:
    """Have the service process a picture; return its hash."""
    request = recipe(
        {"images": [{"file": str(stand.jpeg(*SIZE)), "distinct": False}]}, "safetensors", PROMPT
    )
    (body,) = Kitchen().make(request, 1)
    connection = Connection(stand.service.base_url)
    status, answer = connection.exchange(post("/preprocess", body))
    item = orjson.loads(answer)["items"][0]
    grid = tuple(item["tensors"]["image_grid_thw"]["values"][0])
    connection.close()
    if status != 200 or grid != GRID:
        raise RuntimeError(f"answered {status} with the grid {grid}")
    return item["hash"]
