"""G11: short sounds for Whisper, whose extractor pads every clip to thirty seconds."""

from bench.clips import SAMPLE_RATE_HZ, make_sound
from bench.results import Found, Row, at_least, at_most
from bench.stand import Stand
from bench.stats import Spread, ratio_of, spread
from tests.helpers.model_zoo import build_model

SECONDS = (1, 3, 5)
TRIM_SECONDS, TRIM_FAMILY = 3, "qwen2_audio"
HOP = 160
"""Samples a mel frame, of Whisper's extractor."""
MEL_GOAL, TRIM_GOAL = at_least(5), at_most(1)


def measure(stand: Stand) -> Found:
    model = build_model("whisper", stand.folder / "whisper")
    side = stand.side("bench.stages", str(model), "audio")
    found = Found()
    for seconds in SECONDS[:1] if stand.quick else SECONDS:
        path = stand.folder / f"{seconds}s.wav"
        path.write_bytes(make_sound(seconds))
        side.run(file=str(path), requests=2)
        results = [side.run(file=str(path), requests=5) for _ in range(stand.rounds(5))]
        if not all(result["is_equal"] for result in results):
            raise RuntimeError("the service's audio features differ from Hugging Face's")
        times = {
            name: [result["process"][name] for result in results] for name in ("plain", "mmprep")
        }
        sides = {
            name: f"{1e3 * spread([s for r in rounds for s in r]).median:.2f} ms"
            for name, rounds in times.items()
        }
        found.rows.append(
            Row(
                f"{seconds} s, mel features",
                ratio_of(times["plain"], times["mmprep"]),
                "x faster than HF's extractor",
                MEL_GOAL,
                sides,
                "features equal to the last bit",
            )
        )
    found.rows.append(trimmed(stand))
    return found


def trimmed(stand: Stand) -> Row:
    """Whisper's extractor in a family whose mask tells which frames are padding."""
    model = build_model(TRIM_FAMILY, stand.folder / TRIM_FAMILY)
    path = stand.folder / "trimmed.wav"
    path.write_bytes(make_sound(TRIM_SECONDS))
    length = stand.side("bench.stages", str(model), "audio").run(file=str(path), trim=True)
    ratio = length["length"] * HOP / (TRIM_SECONDS * SAMPLE_RATE_HZ)
    return Row(
        f"{TRIM_SECONDS} s with trim_padding, {TRIM_FAMILY}",
        Spread(ratio, ratio, ratio, 1),
        "frames sent for each frame of sound",
        TRIM_GOAL,
    )
