"""Sound beside the plain extractors: `python -m bench.audio [FAMILY ...]`.

Two stages: features from a decoded waveform (the extractor's whole call, then its mel alone), and
samples from a file (soundfile and soxr as transformers' `load_audio` uses them, then ours). The
results of both sides are compared before they are measured.
"""

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

from bench.turns import restart_with_environment, row, take_turns, write

FAMILIES = ("whisper", "qwen2_audio", "qwen2_5_omni", "voxtral", "audioflamingo3")
SECONDS = (1.0, 5.0, 12.0, 29.0)
REPEATS = 8
FILE_SECONDS = (5.0, 30.0)


def features(family: str, directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure one family's extractor and its stand-in at every length."""
    import numpy as np
    import torch
    from transformers import AutoProcessor

    from processors.fast import find_mel
    from tests.helpers.model_zoo import build_model

    processor = AutoProcessor.from_pretrained(build_model(family, directory / family))
    plain = processor._audio_processor
    fast = find_mel(plain)
    rows = []
    for seconds in SECONDS:
        noise = np.random.default_rng(0).standard_normal(int(seconds * plain.sampling_rate))
        waveform = (noise * 0.1).astype(np.float32)
        padded = np.zeros((1, plain.n_samples), np.float32)
        padded[0, : len(waveform)] = waveform
        call = {
            "sampling_rate": plain.sampling_rate, "padding": "max_length",
            "return_attention_mask": True, "return_tensors": "pt",
        }  # fmt: skip
        sides = {
            "hf": lambda clip=waveform, call=call: plain([clip], **call),
            "ours": lambda clip=waveform, call=call: fast([clip], **call),
            "hf_mel": lambda padded=padded: plain._torch_extract_fbank_features(padded),
            "our_mel": lambda padded=padded: fast._torch_extract_fbank_features(padded),
        }
        if not torch.equal(sides["hf"]()["input_features"], sides["ours"]()["input_features"]):
            raise SystemExit(f"{family}: features differ")
        times = take_turns(sides, rounds, REPEATS)
        rows.append(row(f"{family} {seconds:g} s, call", times, "hf", "ours"))
        rows.append(row(f"{family} {seconds:g} s, mel", times, "hf_mel", "our_mel"))
    return rows


def samples(rounds: int) -> list[dict[str, Any]]:
    """Measure decoding of stereo files of 44.1 kHz to mono of 16 kHz."""
    import soxr

    from processors.decode import decode_audio
    from processors.types import DecodeLimits, MediaOptions

    rows = []
    for codec, container in (("pcm_s16le", "wav"), ("flac", "flac"), ("libmp3lame", "mp3")):
        for seconds in FILE_SECONDS:
            data = encode(codec, container, seconds)

            def stereo_first(data: bytes = data) -> object:
                return soxr.resample(read(data), 44_100, 16_000, quality="HQ").mean(axis=1)

            def ours(data: bytes = data) -> object:
                return decode_audio(
                    data, sample_rate_hz=16_000, options=MediaOptions(), limits=DecodeLimits()
                )

            times = take_turns({"stereo_first": stereo_first, "ours": ours}, rounds)
            rows.append(row(f"{container} {seconds:g} s, samples", times, "stereo_first", "ours"))
    return rows


def encode(codec: str, container: str, seconds: float) -> bytes:
    """Return stereo noise over a tone as a file."""
    import av
    import numpy as np

    count = int(seconds * 44_100)
    tone = np.sin(np.arange(count) * (2 * np.pi * 440 / 44_100)) * 0.3
    noise = np.random.default_rng(0).standard_normal((2, count)) * 0.05
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=44_100, layout="stereo")
        kind = "s16p" if codec == "libmp3lame" else "s16"
        pcm = ((tone + noise) * 32767).clip(-32768, 32767).astype(np.int16)
        packed = pcm if kind == "s16p" else pcm.T.reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(packed), kind, "stereo")
        frame.sample_rate = 44_100
        for piece in (frame, None):
            out.mux(stream.encode(piece))
    return file.getvalue()


def read(data: bytes) -> Any:
    """Return a file's samples, float32 of shape (S, 2), by the plainest use of the decoder."""
    import av
    import numpy as np

    resampler = av.AudioResampler(format="fltp")
    with av.open(io.BytesIO(data)) as container:
        pieces = [
            planar.to_ndarray()
            for frame in container.decode(audio=0)
            for planar in resampler.resample(frame)
        ]
    return np.ascontiguousarray(np.concatenate(pieces, axis=1).T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("bench/results/audio.json"))
    options = parser.parse_args()
    restart_with_environment()
    import torch

    torch.set_num_threads(1)
    rows = samples(options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        for family in options.families:
            rows += features(family, Path(directory), options.rounds)
    write(options.out, rows, options.rounds)


if __name__ == "__main__":
    main()
