"""G1: is the service slower than the plain call for any family, at any size? One client."""

from pathlib import Path
from typing import Any

from bench.results import Found, Row, at_least
from bench.sides import Side, service
from bench.stand import Stand, post_order, recipe, require_good
from bench.stats import Spread, ratio_of
from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES, available_families, build_model

SIZES = ((64, 64), (512, 512), (1024, 768))
UNSERVED = {"blip_2", "idefics2"}
"""Their processors cannot tell items apart; see docs/models.md."""
GOAL = at_least(1.0)


def measure(stand: Stand) -> Found:
    names = [
        name
        for name in available_families()
        if Modality.IMAGE in FAMILIES[name].modalities
        and FAMILIES[name].joint_call
        and name not in UNSERVED
    ]
    if stand.quick:
        names = names[:4]
    root = stand.folder / "zoo"
    root.mkdir()
    models = [f"{name}={build_model(name, root / name)}" for name in names]
    sizes = SIZES[:2] if stand.quick else SIZES
    found = Found()
    ratios: dict[tuple[int, int], dict[str, Spread]] = {size: {} for size in sizes}
    with service(models, processes=1) as running:
        load = Side("bench.load", running.base_url)
        hf = Side("bench.baseline_zoo", str(root))
        for name in names:
            code = refusal(stand, load, name)
            if code is not None:
                found.missing.append((f"family {name}", f"the service answers {code}"))
                continue
            for size in sizes:
                ratios[size][name] = compare(stand, load, hf, name, stand.jpeg(*size))
        load.close()
        hf.close()
    for size, by_name in ratios.items():
        slowest = min(by_name, key=lambda name: by_name[name].median)
        met = sum(each.median >= GOAL.bound for each in by_name.values())
        sides = {"not slower": f"{met} of {len(by_name)}"}
        what = f"{size[0]}x{size[1]}, slowest of {len(by_name)} families ({slowest})"
        found.rows.append(Row(what, by_name[slowest], "x faster than HF", GOAL, sides))
    found.series["ratios"] = {
        f"{size[0]}x{size[1]}": {name: each.median for name, each in by_name.items()}
        for size, by_name in ratios.items()
    }
    return found


def refusal(stand: Stand, load: Side, name: str) -> str | None:
    """Return the code with which the service refuses a family's picture, None if it does not."""
    result = load.run(**post_order(request_of(name, stand.jpeg(*SIZES[0])), 1))
    return next(iter(result["codes"]), None)


def request_of(name: str, jpeg: Path) -> dict[str, Any]:
    family = FAMILIES[name]
    prompt = f"{family.prompts[Modality.IMAGE]}What is this?"
    source = {"file": str(jpeg), "distinct": True}
    request = recipe({"images": [source]}, "shm", f"{family.written}{prompt}", model=name)
    if not family.has_text:
        del request["fields"]["prompt"]
    return request


def compare(stand: Stand, load: Side, hf: Side, name: str, jpeg: Path) -> Spread:
    """Both sides take turns; the first round warms up."""
    request = request_of(name, jpeg)
    times: dict[str, list[list[float]]] = {"hf": [], "shm": []}
    for turn in range(stand.rounds(2) + 1):
        plain = hf.run(family=name, recipe=request, requests=3)
        ours = require_good(load.run(**post_order(request, 3)))
        if turn:
            times["hf"].append(plain["seconds"])
            times["shm"].append(ours["seconds"])
    return ratio_of(times["hf"], times["shm"])
