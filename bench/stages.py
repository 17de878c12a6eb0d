"""Decoding and processing of one clip in one process: the engine, and the plain way.

`python -m bench.stages MODEL_DIRECTORY video|audio`. An order is `{"file": path, "requests": n,
"kwargs": {..}}`, its answer `{"decode": {"mmprep": [..], "plain": [..]}, "process": {"mmprep":
[..], "plain": [..], "floor": [..]}, "is_equal": bool}`: seconds, and whether all features are equal
to the last bit. Plain decoding is what transformers does: all frames up to the last wanted one by
PyAV; of sounds all channels, resampled and then averaged. Both sides process the sound that the
engine's decoder gives. The floor of a sound's features is its spectrum and one product with the
filters. An order with `"trim": true` is answered with the length of a sound's feature with
`trim_padding`, `{"length": n}`.
"""

import io
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
import torch
from transformers.video_utils import read_video_pyav

from bench.baseline import load_processor
from bench.orders import serve_orders
from processors.decode import decode_audio
from processors.engine import Engine
from processors.types import (
    DecodeLimits,
    ItemInput,
    ItemPlan,
    MediaOptions,
    Modality,
    ModelSpec,
)

LIMITS = DecodeLimits(max_pixels=1_000_000_000)


class Stages:
    """A clip's two stages, done both ways."""

    def __init__(self, directory: str, modality: Modality) -> None:
        self._engine = Engine(ModelSpec("bench", directory), LIMITS)
        self._processor = load_processor(directory)
        self._modality = modality

    def item(
        self, data: bytes, options: MediaOptions | None = None, kwargs: Mapping | None = None
    ) -> tuple[ItemInput, ItemPlan]:
        item = ItemInput(self._modality, (data,), options or MediaOptions(), kwargs or {})
        return item, self._engine.plan(item)

    def run(self, item: ItemInput, plan: ItemPlan, times: dict) -> bool:
        """Do it both ways once; return whether the results are equal."""
        outputs = {
            t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in plan.tensors
        }
        report = self._engine.process(item, plan, outputs)
        times["decode"]["mmprep"].append(report.decode_ms / 1e3)
        times["process"]["mmprep"].append(report.process_ms / 1e3)
        plain = self._plain_video if self._modality is Modality.VIDEO else self._plain_audio
        result = plain(item, plan, times)
        features = (t.name for t in plan.tensors if t.role == "feature")
        return all(torch.equal(result[name], outputs[name]) for name in features)

    def _plain_video(self, item: ItemInput, plan: ItemPlan, times: dict) -> Mapping[str, Any]:
        def wanted(**_: Any) -> list[int]:
            return list(plan.state["frame_indices"])

        frames, metadata = clocked(
            times["decode"]["plain"], lambda: read_video_pyav(io.BytesIO(item.data[0]), wanted)
        )
        return clocked(
            times["process"]["plain"],
            lambda: self._processor.video_processor(
                videos=[frames],
                video_metadata=[metadata],
                do_sample_frames=False,
                return_tensors="pt",
            ),
        )

    def _plain_audio(self, item: ItemInput, plan: ItemPlan, times: dict) -> Mapping[str, Any]:
        extractor = self._processor.feature_extractor
        rate = extractor.sampling_rate
        sound = decode_audio(item.data[0], sample_rate_hz=rate, options=item.options, limits=LIMITS)
        clocked(times["decode"]["plain"], lambda: decode_stereo_first(item.data[0], rate))
        clocked(times["process"]["floor"], partial(self._floor, torch.from_numpy(sound)))
        return clocked(
            times["process"]["plain"],
            lambda: extractor(sound, sampling_rate=rate, return_tensors="pt"),
        )

    @torch.inference_mode()
    def _floor(self, sound: torch.Tensor) -> torch.Tensor:
        size, hop = len(self._window), self._processor.feature_extractor.hop_length
        spectrum = torch.stft(sound, size, hop, window=self._window, return_complex=True)
        return self._filters.T @ spectrum.real

    @cached_property
    def _window(self) -> torch.Tensor:
        return torch.hann_window(self._processor.feature_extractor.n_fft)

    @cached_property
    def _filters(self) -> torch.Tensor:
        return torch.from_numpy(self._processor.feature_extractor.mel_filters).float()

    def trimmed_length(self, data: bytes) -> int:
        """Return the frames of a sound's feature with `trim_padding`."""
        _, plan = self.item(data, MediaOptions(trim_padding=True))
        return max(t.shape[-1] for t in plan.tensors if t.role == "feature")


def decode_stereo_first(data: bytes, rate_hz: int) -> np.ndarray:
    """Return a file's sound, resampled before its channels are averaged."""
    resampler = av.AudioResampler(format="fltp")
    with av.open(io.BytesIO(data)) as container:
        native_hz = container.streams.audio[0].rate
        pieces = [
            planar.to_ndarray()
            for frame in container.decode(audio=0)
            for planar in resampler.resample(frame)
        ]
    sound = np.concatenate(pieces, axis=1).T
    if native_hz != rate_hz:
        sound = soxr.resample(sound, native_hz, rate_hz, quality="HQ")
    return sound.mean(axis=1)


def clocked(times: list[float], work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    times.append(time.perf_counter() - start)
    return result


def main() -> None:
    directory, name = sys.argv[1:]
    stages = Stages(directory, Modality(name))

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        data = Path(order["file"]).read_bytes()
        if order.get("trim"):
            return {"length": stages.trimmed_length(data)}
        item, plan = stages.item(data, kwargs=order.get("kwargs"))
        times: dict[str, Any] = {
            stage: {"mmprep": [], "plain": [], "floor": []} for stage in ("decode", "process")
        }
        is_equal = [stages.run(item, plan, times) for _ in range(order["requests"])]
        return {**times, "is_equal": all(is_equal)}

    serve_orders(handle)


if __name__ == "__main__":
    main()
