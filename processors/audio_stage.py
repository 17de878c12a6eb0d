"""Audio: planned on silence of the same length, decoded at the processor's rate."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from processors import decode, hf
from processors.context import Fill, Shape, StageContext
from processors.decode import check_modality, probe
from processors.errors import (
    InvalidRequestError,
    MediaDecodeError,
    MediaTooLargeError,
    UnsupportedOptionError,
)
from processors.fast import find_mel
from processors.features import write_tensors
from processors.stage import Stage
from processors.trimming import cut, find_padding
from processors.types import (
    FieldLayout,
    ItemInput,
    ItemPlan,
    MediaInfo,
    MediaOptions,
    Modality,
    PadSpec,
    ProcessReport,
    StageTraits,
)

_LEARN_SECONDS = (1.0, 2.5)
_LONG_SECONDS = 61.0
"""More than one window of every extractor that cuts sound into chunks."""


class AudioStage(Stage):
    """Clips of sound, or the sound of a video where a request asks for it."""

    modality: ClassVar[Modality] = Modality.AUDIO

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.sample_rate_hz = int(self.part.sampling_rate)
        self._kernel_name = "plain"
        self._find_mel()
        lengths = [int(seconds * self.sample_rate_hz) for seconds in _LEARN_SECONDS]
        self.learn([partial(_empty_sound, length) for length in lengths])
        if self._is_chunked():
            self._learn_chunks()

    def plan(self, item: ItemInput) -> ItemPlan:
        """Plan a clip by the length its header tells.

        Raises:
            MediaDecodeError, UnsupportedMediaTypeError: From the header.
            MediaTooLargeError: If the clip is longer than the encoder's fixed window (with both
                lengths) and truncation was not asked for, or its features would be too large.
            InvalidRequestError: If a keyword argument or the chosen part makes no sense.
            UnsupportedOptionError: If padding is to be trimmed that the processor does not mark.
            PromptTooLongError: If the clip would become too many tokens.
        """
        kwargs = self.effective(item)
        info = probe(item.data[0], limits=self.limits, prefer=Modality.AUDIO)
        check_modality(info, Modality.AUDIO)
        return self._plan_length(item, info, self.count_samples(item, info), kwargs)

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode a clip at the processor's rate and process it into preallocated tensors.

        Raises:
            MediaDecodeError, MediaTooLargeError: From decoding.
            FramesMissing: If it decodes to a length that makes other tensors than planned.
            PlanMismatchError: If the result is not what was planned.
        """
        start = time.perf_counter()
        kwargs = self.effective(item)
        waveform = decode.decode_audio(
            item.data[0],
            sample_rate_hz=self.sample_rate_hz,
            options=item.options,
            limits=self.limits,
        )
        if len(waveform) != plan.state["num_samples"]:
            self._check_length(item, plan, len(waveform), kwargs)
        decoded = time.perf_counter()
        with torch.inference_mode():
            outcome = self.run_real(waveform, self.merged(kwargs))
            if item.options.trim_padding:
                tensors = cut(outcome.tensors, find_padding(outcome.tensors))
                outcome = replace(outcome, tensors=tensors)
            self.check_executed(outcome, plan)
            write_tensors(outcome.tensors, plan.tensors, outputs)
        done = time.perf_counter()
        return ProcessReport(
            (decoded - start) * 1e3, (done - decoded) * 1e3, kernel=self._kernel_name
        )

    def call(self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged) -> hf.Processed:
        """See `Stage.call`; media are waveforms, float32 of shape (S,)."""
        return hf.process_audio(processor, media, merged)

    def features_of(self, waveform: np.ndarray) -> Mapping[str, Any]:
        """Return the extractor's own output for a waveform, for a video that carries it."""
        return self.run(self.model.processor, [waveform], self.merged(self.server_kwargs)).features

    def warm_up(self) -> None:
        """Process a second of silence."""
        self.run_real(_empty_sound(self.sample_rate_hz, "zeros"), self.merged(self.server_kwargs))

    def count_samples(self, item: ItemInput, info: MediaInfo) -> int:
        """Return how many samples a medium's sound has at the processor's rate, by its header.

        Raises:
            MediaDecodeError: If the header tells no length.
            MediaTooLargeError: If it is longer than the service decodes.
            InvalidRequestError: If `start_s` and `end_s` leave nothing.
        """
        if info.seconds is None:
            raise MediaDecodeError("The header tells no length of the sound.")
        seconds = _window_s(info.seconds, item.options)
        if seconds > self.limits.max_audio_s:
            raise MediaTooLargeError(
                f"The sound lasts {seconds:.1f} s; at most {self.limits.max_audio_s:g} s are taken."
            )
        return max(round(seconds * self.sample_rate_hz), 1)

    @property
    def traits(self) -> StageTraits:
        """See `Stage.traits`."""
        return replace(super().traits, has_kernel=self._kernel_name == "fast")

    def _is_chunked(self) -> bool:
        """Return whether a long clip may become several rows of one tensor."""
        is_own = self.modality in self.context.family.runs
        return is_own or getattr(self.model.processor, "max_audio_len", None) is not None

    def _learn_chunks(self) -> None:
        """Learn which tensors have a row per chunk; the clips learned from were of one chunk."""
        clip = _empty_sound(int(_LONG_SECONDS * self.sample_rate_hz), "zeros")
        tensors = self.run(self.model.planner, [clip], self.merged(self.server_kwargs)).tensors
        joined = {n: FieldLayout("flat") for n, t in tensors.items() if t.ndim and len(t) > 1}
        self.joins = self.joins.override(joined)

    def _find_mel(self) -> None:
        """Plan and process with an extractor that skips silence, where it is proven and allowed."""
        spec, family, model = self.context.spec, self.context.family, self.model
        faster = find_mel(self.part) if spec.allow_fast and family.allow_fast else None
        if faster is None:
            return
        self._kernel_name = "fast"
        self.model = replace(
            model,
            processor=hf.with_part(model.processor, self.modality, faster),
            planner=hf.with_part(model.planner, self.modality, faster),
        )

    def _plan_length(
        self, item: ItemInput, info: MediaInfo, num_samples: int, kwargs: Mapping[str, Any]
    ) -> ItemPlan:
        self._check_window(num_samples, kwargs)
        shape = self._shape(num_samples, kwargs, trim=bool(item.options.trim_padding))
        base = ItemPlan(
            self.modality,
            info,
            None,
            0,
            None,
            (),
            exact=info.exact,
            state={"num_samples": num_samples},
        )
        plan = self.item_plan(item, shape, base, kwargs)
        # The sound of a video has no placeholder of its own: it stands inside the video's.
        return replace(plan, replacement=()) if self._is_in_video(item) else plan

    def _shape(self, num_samples: int, kwargs: Mapping[str, Any], *, trim: bool) -> Shape:
        key = (num_samples, json.dumps(kwargs, sort_keys=True), trim)
        return self._shapes.get(key, lambda: self._run_silence(num_samples, kwargs, trim=trim))

    def _run_silence(self, num_samples: int, kwargs: Mapping[str, Any], *, trim: bool) -> Shape:
        what = f"audio of {num_samples / self.sample_rate_hz:.2f} s"
        outcome, on_meta = self.run_empty(partial(_empty_sound, num_samples), kwargs, what)
        if not trim:
            return self.describe(outcome, on_meta)
        padding = find_padding(outcome.tensors)
        if not padding and self._fills_window(kwargs):
            raise UnsupportedOptionError(
                "The model's processor pads sound to a fixed window and does not say which frames "
                "are padding; 'trim_padding' cannot be had.",
                "options.trim_padding",
            )
        shape = self.describe(replace(outcome, tensors=cut(outcome.tensors, padding)), on_meta)
        tensors = tuple(
            replace(spec, pad=PadSpec((padding[spec.name][0],), 0.0))
            if spec.name in padding
            else spec
            for spec in shape.tensors
        )
        return replace(shape, tensors=tensors)

    def _fills_window(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether clips of different length become features of one size."""
        sizes = {
            tuple(spec.shape for spec in shape.tensors if spec.role == "feature")
            for seconds in _LEARN_SECONDS
            for shape in [self._shape(int(seconds * self.sample_rate_hz), kwargs, trim=False)]
        }
        return len(sizes) == 1

    def _check_window(self, num_samples: int, kwargs: Mapping[str, Any]) -> None:
        """Refuse what the extractor would silently cut."""
        if kwargs.get("truncation"):
            return
        window = self._window_samples(self.merged(kwargs)["audio_kwargs"])
        if window is not None and num_samples > window:
            rate = self.sample_rate_hz
            raise MediaTooLargeError(
                f"The audio lasts {num_samples / rate:.1f} s; the model's encoder takes "
                f"{window / rate:.1f} s. Cut it with 'start_s' and 'end_s', or ask for "
                "'truncation'."
            )

    def _window_samples(self, merged: Mapping[str, Any]) -> int | None:
        """Return the samples after which the extractor truncates, None if it does not."""
        chunked_s = getattr(self.model.processor, "max_audio_len", None)
        if chunked_s is not None:
            return int(chunked_s * self.sample_rate_hz)
        truncates = merged.get("truncation")
        if truncates is None:
            truncates = hf.call_default(self.part, "truncation")
        if not truncates:
            return None
        most = merged.get("max_length") or hf.call_default(self.part, "max_length")
        most = most or getattr(self.part, "n_samples", None)
        return None if most is None else int(most)

    def _check_length(
        self, item: ItemInput, plan: ItemPlan, num_samples: int, kwargs: Mapping[str, Any]
    ) -> None:
        """Raise `FramesMissing` if samples that differ from the header's make another plan."""
        new_plan = self._plan_length(item, plan.source, num_samples, kwargs)
        same_text = new_plan.replacement == plan.replacement
        if new_plan.tensors != plan.tensors or not same_text:
            planned_s = plan.state["num_samples"] / self.sample_rate_hz
            decoded_s = num_samples / self.sample_rate_hz
            raise self.replanned(
                new_plan,
                (
                    "frames_missing",
                    f"The header promises {planned_s:.3f} s of sound; {decoded_s:.3f} s decode.",
                ),
            )

    def _is_in_video(self, item: ItemInput) -> bool:
        if not item.settings.get("use_audio_in_video"):
            return False
        info = probe(item.data[0], limits=self.limits, prefer=Modality.VIDEO)
        return info.kind is Modality.VIDEO


def _window_s(seconds: float, options: MediaOptions) -> float:
    start_s = options.start_s or 0.0
    end_s = seconds if options.end_s is None else min(options.end_s, seconds)
    if not 0 <= start_s < end_s:
        raise InvalidRequestError("'start_s' and 'end_s' leave nothing of the sound.", "options")
    return end_s - start_s


def _empty_sound(num_samples: int, fill: Fill) -> np.ndarray:
    if fill == "meta":
        raise NotImplementedError("feature extractors take no meta tensors")
    if fill == "noise":
        return np.random.default_rng(0).standard_normal(num_samples, np.float32) * np.float32(0.1)
    return np.zeros(num_samples, np.float32)
