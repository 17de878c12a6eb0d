"""Decoding and processing of one clip in one process: the engine, and the plain way.

`python -m bench.stages MODEL_DIRECTORY video|audio`. An order is `{"file": path, "requests": n}`,
its answer `{"decode": {"mmprep": [..], "plain": [..]}, "process": {"mmprep": [..], "plain": [..]},
"is_equal": bool}`: seconds, and whether all features are equal to the last bit. Plain decoding is
what transformers does: all frames up to the last wanted one by PyAV. Sounds are decoded once, by
the engine's decoder. An order with `"trim": true` is answered with the length of a sound's feature
with `trim_padding`, `{"length": n}`.
"""

import io
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

    def item(self, data: bytes, **options: Any) -> tuple[ItemInput, ItemPlan]:
        item = ItemInput(self._modality, (data,), MediaOptions(**options))
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
        return clocked(
            times["process"]["plain"],
            lambda: extractor(sound, sampling_rate=rate, return_tensors="pt"),
        )

    def trimmed_length(self, data: bytes) -> int:
        """Return the frames of a sound's feature with `trim_padding`."""
        _, plan = self.item(data, trim_padding=True)
        return max(t.shape[-1] for t in plan.tensors if t.role == "feature")


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
        item, plan = stages.item(data)
        times: dict[str, Any] = {
            stage: {"mmprep": [], "plain": []} for stage in ("decode", "process")
        }
        is_equal = [stages.run(item, plan, times) for _ in range(order["requests"])]
        return {**times, "is_equal": all(is_equal)}

    serve_orders(handle)


if __name__ == "__main__":
    main()
