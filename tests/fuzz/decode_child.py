"""Decodes mutated media until its cases or its time are over; told apart from the test, it may die.

Usage: python -m tests.fuzz.decode_child STATE_FILE NUM_CASES SECONDS FIRST_SEED FILE...

Before each case it writes `file seed` to STATE_FILE, so that whoever started it knows what killed
it. On standard output it writes one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from processors import decode
from processors.decode import batches
from processors.errors import MmprepError
from processors.types import DecodeLimits, MediaOptions, Modality
from tests.helpers.mutate import mutate

MEMORY_BYTES = 6 << 30
FAST_S = 1.0
SLOW_S = 5.0
LIMITS = DecodeLimits(max_pixels=20_000_000, max_frames=64, max_audio_s=120.0, max_decode_s=4.0)
CODES = {"media_decode_failed", "media_too_large", "unsupported_media_type"}


def decode_as(data: bytes, modality: Modality) -> None:
    info = decode.probe(data, limits=LIMITS, prefer=modality)
    decode.check_modality(info, modality)
    if modality is Modality.IMAGE:
        pixels = decode.decode_image(data, options=MediaOptions(), limits=LIMITS)
        if pixels.shape != (info.height, info.width, 3):
            raise AssertionError(f"probed {info.height, info.width}, decoded {pixels.shape}")
    elif modality is Modality.VIDEO:
        count = min(info.num_frames or 1, 500)
        wanted = sorted({0, count // 3, count // 2, count - 1})
        begin = time.perf_counter()
        video = decode.decode_frames(data, wanted, options=MediaOptions(), limits=LIMITS)
        if len(video.frames) + video.missing != len(wanted):
            raise AssertionError("frames do not add up")
        if time.perf_counter() - begin < FAST_S:
            compare_in_threads(data, wanted, video)
    else:
        decode.decode_audio(data, sample_rate_hz=16_000, options=MediaOptions(), limits=LIMITS)


def compare_in_threads(data: bytes, wanted: list[int], alone: decode.DecodedVideo) -> None:
    video = decode.decode_frames(data, wanted, options=MediaOptions(), limits=LIMITS, num_threads=3)
    if video.indices != alone.indices or not np.array_equal(video.frames, alone.frames):
        raise AssertionError("frames depend on threads")


def run_case(data: bytes) -> str | None:
    """Return what is wrong with how a case went, if anything."""
    for modality in Modality:
        begin = time.perf_counter()
        try:
            decode_as(data, modality)
        except MmprepError as error:
            if error.code not in CODES:
                return f"{modality}: code {error.code}"
        except Exception as error:  # noqa: BLE001 - what escapes is the finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return f"{modality}: {type(error).__name__} at {place} {error}"
        seconds = time.perf_counter() - begin
        if seconds > SLOW_S:
            return f"{modality}: took {seconds:.1f} s"
    return None


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def main(state: str, num_cases: str, seconds: str, first_seed: str, *files: str) -> None:
    # Threads decode small videos, too.
    batches._LEAST_PIXELS = 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    media = {name: Path(name).read_bytes() for name in files}
    for data in media.values():
        run_case(data)
    baseline = resident_bytes()
    findings: list[dict[str, object]] = []
    end = time.monotonic() + float(seconds)
    done = 0
    with open(state, "w") as progress:
        for case in range(int(num_cases)):
            name, seed = files[case % len(files)], int(first_seed) + case
            progress.seek(0)
            progress.write(f"{name} {seed}\n")
            progress.flush()
            wrong = run_case(mutate(media[name], seed))
            done += 1
            if wrong is not None:
                findings.append({"file": name, "seed": seed, "wrong": wrong})
            if time.monotonic() > end:
                break
    grown = resident_bytes() - baseline
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"cases": done, "findings": findings, "grown": grown, "peak": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
