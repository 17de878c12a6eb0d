"""G11: short sounds for Whisper, whose extractor pads every clip to thirty seconds."""

from bench.clips import SAMPLE_RATE_HZ, make_sound, make_stereo
from bench.results import Found, Row, Target, at_least, at_most
from bench.sides import Side
from bench.stand import Stand
from bench.stats import Spread, ratio_of, spread
from tests.helpers.model_zoo import build_model

SECONDS = (1, 3, 5)
LONG_SECONDS = 29
FILE = "30 s of 44.1 kHz stereo MP3"
TRIM_SECONDS, TRIM_FAMILY = 3, "qwen2_audio"
HOP = 160
"""Samples a mel frame, of Whisper's extractor."""
MEL_GOAL, TRIM_GOAL = at_least(5), at_most(1)
Times = dict[str, list[list[float]]]


def measure(stand: Stand) -> Found:
    model = build_model("whisper", stand.folder / "whisper")
    side = stand.side("bench.stages", str(model), "audio")
    found = Found()
    for seconds in SECONDS[:1] if stand.quick else (*SECONDS, LONG_SECONDS):
        times = take(stand, side, f"{seconds}s.wav", make_sound(seconds))["process"]
        goal = None if seconds == LONG_SECONDS else MEL_GOAL
        found.rows += rows_of(f"{seconds} s, mel features", times, goal)
    decoding = take(stand, side, "stereo.mp3", make_stereo(30, 44_100))["decode"]
    value, unit = ratio_of(decoding["plain"], decoding["mmprep"]), "x faster than stereo first"
    found.rows.append(Row(f"{FILE}, decode alone", value, unit, sides=_ms(decoding)))
    found.rows.append(trimmed(stand))
    return found


def take(stand: Stand, side: Side, name: str, sound: bytes) -> dict[str, Times]:
    """Return the seconds a request by stage, side and round."""
    path = stand.folder / name
    path.write_bytes(sound)
    side.run(file=str(path), requests=2)
    results = [side.run(file=str(path), requests=5) for _ in range(stand.rounds(5))]
    if not all(result["is_equal"] for result in results):
        raise RuntimeError("the service's audio features differ from Hugging Face's")
    return {
        stage: {name: [result[stage][name] for result in results] for name in results[0][stage]}
        for stage in ("decode", "process")
    }


def rows_of(what: str, times: Times, goal: Target | None) -> list[Row]:
    """Return how much faster than Hugging Face's extractor that is, and how near to the floor."""
    note = "features equal to the last bit"
    faster = ratio_of(times["plain"], times["mmprep"])
    above = ratio_of(times["mmprep"], times["floor"])
    return [
        Row(what, faster, "x faster than HF's extractor", goal, _ms(times), note),
        Row(what, above, "x the floor", None, {}, "the floor is a spectrum and a matrix product"),
    ]


def _ms(times: Times) -> dict[str, str]:
    return {
        side: f"{1e3 * spread([s for r in rounds for s in r]).median:.2f} ms"
        for side, rounds in times.items()
        if rounds[0]
    }


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
