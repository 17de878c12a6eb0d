"""G6: the compact encoding: bytes sent, and the service's CPU time for each item."""

import orjson

from bench.bodies import Kitchen
from bench.clips import make_clip
from bench.connection import Connection, post
from bench.process import cpu_seconds
from bench.results import Found, Row, Target, at_least, at_most
from bench.sides import service
from bench.stand import Stand, image_recipe, post_order, recipe, require_good
from bench.stats import Spread, spread
from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES, build_model

SIZE = (1024, 768)
TILE_FAMILIES = ("llava_next", "internvl", "gemma3")
STILL_GOAL, OTHER_GOAL = at_least(7.9), at_least(3.9)
CPU_GOAL = at_most(0.75)
CLIP_PROMPT = "<|vision_start|><|video_pad|><|vision_end|>"


def measure(stand: Stand) -> Found:
    found = Found()
    jpeg = stand.jpeg(*SIZE)
    name = f"{SIZE[0]}x{SIZE[1]}"
    plain, compact = (image_recipe(jpeg, "shm", encoding=e) for e in ("plain", "compact"))
    probe = stand.load.run(**post_order(compact, 1))
    if probe["codes"]:
        why = f"the service answers {next(iter(probe['codes']))}"
        return Found(missing=[("compact features", why)])
    found.rows += [
        _bytes(stand.service.base_url, f"Qwen2.5-VL, {name}", plain, compact, STILL_GOAL)
    ]
    clip = stand.folder / "compact.mp4"
    make_clip(clip, 640, 360, 4)
    video = {"videos": [{"file": str(clip), "distinct": True}]}
    pair = [recipe(video, "shm", CLIP_PROMPT, encoding=e) for e in ("plain", "compact")]
    found.rows.append(_bytes(stand.service.base_url, "Qwen2.5-VL, video", *pair, OTHER_GOAL))
    found.rows += tiles(stand)
    found.rows.append(cpu(stand, name, plain, compact))
    return found


def tiles(stand: Stand) -> list[Row]:
    models = [f"{name}={build_model(name, stand.folder / name)}" for name in TILE_FAMILIES]
    rows = []
    with service(models, processes=1) as running:
        for name in TILE_FAMILIES:
            prompt = f"{FAMILIES[name].prompts[Modality.IMAGE]}What is this?"
            media = {"images": [{"file": str(stand.jpeg(*SIZE)), "distinct": True}]}
            pair = [
                recipe(media, "shm", prompt, model=name, encoding=e) for e in ("plain", "compact")
            ]
            what = f"{name}, {SIZE[0]}x{SIZE[1]}"
            rows.append(_bytes(running.base_url, what, *pair, OTHER_GOAL))
    return rows


def _bytes(address: str, what: str, plain: dict, compact: dict, target: Target) -> Row:
    """Return how many times smaller an item's document is, its table included."""
    connection, kitchen = Connection(address), Kitchen()
    nbytes = []
    for request in (plain, compact):
        status, answer = connection.exchange(post("/preprocess", kitchen.make(request, 1)[0]))
        if status != 200:
            raise RuntimeError(f"answered {status}: {bytes(answer[:500])!r}")
        tensors = orjson.loads(answer)["items"][0]["tensors"].values()
        nbytes.append(sum(t["nbytes"] for t in tensors if t["role"] != "metadata"))
    connection.close()
    ratio = nbytes[0] / nbytes[1]
    sides = {"plain": f"{nbytes[0] / 1e6:.2f} MB", "compact": f"{nbytes[1] / 1e6:.2f} MB"}
    return Row(what, Spread(ratio, ratio, ratio, 1), "x fewer bytes than float32", target, sides)


def cpu(stand: Stand, name: str, plain: dict, compact: dict) -> Row:
    """Both encodings take turns; CPU time of all processes of the service."""
    count = stand.count(32)
    used: dict[str, list[float]] = {"plain": [], "compact": []}
    for turn in range(stand.rounds(5) + 1):
        for encoding, request in (("plain", plain), ("compact", compact)):
            before = cpu_seconds(stand.service.pid)
            require_good(stand.load.run(**post_order(request, count)))
            if turn:
                used[encoding].append((cpu_seconds(stand.service.pid) - before) / count)
    ratios = [a / b for a, b in zip(used["compact"], used["plain"], strict=True)]
    sides = {side: f"{1e3 * spread(values).median:.1f} ms" for side, values in used.items()}
    return Row(f"{name}, service CPU an item", spread(ratios), "of plain", CPU_GOAL, sides)
