"""G10: a clip of ten seconds; and how cost grows with its length."""

from collections.abc import Iterable
from pathlib import Path

from bench.clips import make_clip, repeat_clip
from bench.results import Found, Row, Target, at_least
from bench.stand import Stand, post_order, recipe, require_good
from bench.stats import ratio_of, spread

SIZE, SECONDS, FRAMES, FEW_FRAMES = (1280, 720), 10, 20, 4
LENGTHS_S, LONG_SIZE, LONG_FRAMES = (10, 60, 600), (480, 270), 16
PROMPT = "<|vision_start|><|video_pad|><|vision_end|>What happens?"
WHOLE_GOAL, STAGE_GOAL, DECODE_GOAL = at_least(2.0), at_least(3.5), at_least(1.1)
Times = dict[str, list[list[float]]]


def measure(stand: Stand) -> Found:
    path = stand.folder / "clip.mp4"
    make_clip(path, *SIZE, SECONDS)
    found = Found(rows=[whole(stand, path), *stages(stand, path)])
    by_length(stand, found)
    return found


def clip_recipe(path: Path, num_frames: int) -> dict:
    options = {"num_frames": num_frames}
    source = {"file": str(path), "distinct": True, "options": options}
    return recipe({"videos": [source]}, "shm", PROMPT)


def both(stand: Stand, path: Path, num_frames: int, rounds: int, requests: int) -> Times:
    """Return seconds a request by side and round, the warm-up aside."""
    request = clip_recipe(path, num_frames)
    times: Times = {"hf": [], "shm": []}
    for turn in range(rounds + 1):
        plain = stand.hf.run(recipe=request, requests=requests)
        ours = require_good(stand.load.run(**post_order(request, requests, batch=1)))
        if turn:
            times["hf"].append(plain["seconds"])
            times["shm"].append(ours["seconds"])
    return times


def whole(stand: Stand, path: Path) -> Row:
    times = both(stand, path, FRAMES, stand.rounds(4), stand.count(3))
    what = f"{SECONDS} s of {SIZE[0]}x{SIZE[1]} H.264, {FRAMES} frames, shared memory"
    return Row(
        what, ratio_of(times["hf"], times["shm"]), "x faster than HF", WHOLE_GOAL, _ms(times)
    )


def stages(stand: Stand, path: Path) -> list[Row]:
    decoding = ("decode", "x faster than PyAV as transformers uses it", DECODE_GOAL)
    processing = ("process", "x faster than HF's video processor", STAGE_GOAL)
    rows = stages_of(stand, path, FRAMES, (processing, decoding))
    return rows + stages_of(stand, path, FEW_FRAMES, ((*decoding[:2], None),))


def stages_of(
    stand: Stand, path: Path, num_frames: int, stages: Iterable[tuple[str, str, Target | None]]
) -> list[Row]:
    """Return a row for each stage: its name, the unit and the goal."""
    side = stand.side("bench.stages", stand.model, "video")
    order = {"file": str(path), "kwargs": {"num_frames": num_frames}}
    side.run(**order, requests=1)
    results = [side.run(**order, requests=2) for _ in range(stand.rounds(4))]
    if not all(result["is_equal"] for result in results):
        raise RuntimeError("the service's video features differ from Hugging Face's")
    rows = []
    name = f"{SECONDS} s of {SIZE[0]}x{SIZE[1]}, {num_frames} frames"
    for stage, unit, target in stages:
        times: Times = {
            side: [result[stage][side] for result in results] for side in ("plain", "mmprep")
        }
        value = ratio_of(times["plain"], times["mmprep"])
        note = "features equal to the last bit"
        rows.append(Row(f"{name}, {stage} alone", value, unit, target, _ms(times), note))
    return rows


def by_length(stand: Stand, found: Found) -> None:
    short = stand.folder / "short.mp4"
    make_clip(short, *LONG_SIZE, LENGTHS_S[0], quality=32)
    curve = []
    for seconds in LENGTHS_S[:1] if stand.quick else LENGTHS_S:
        path = stand.folder / f"{seconds}s.mp4"
        repeat_clip(short, path, seconds // LENGTHS_S[0])
        times = both(stand, path, LONG_FRAMES, 1, 1)
        ms = {side: 1e3 * spread(rounds[0]).median for side, rounds in times.items()}
        curve.append({"seconds": seconds, "ms": ms})
    width, height = LONG_SIZE
    found.series["length"] = {
        "what": f"{width}x{height}, {LONG_FRAMES} frames",
        "points": curve,
    }


def _ms(times: Times) -> dict[str, str]:
    return {
        side: f"{1e3 * spread([s for r in rounds for s in r]).median:.0f} ms"
        for side, rounds in times.items()
    }
