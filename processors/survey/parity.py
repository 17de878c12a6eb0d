"""One modality of one model through our engine, beside Hugging Face's own calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from processors import decode, hf
from processors.engine import Engine
from processors.errors import FramesMissing, InvalidRequestError, MmprepError
from processors.prompt import PromptEncoder
from processors.survey import media
from processors.types import (
    ChatInput,
    DecodeLimits,
    ItemInput,
    ItemPlan,
    MediaOptions,
    Modality,
    RenderedPrompt,
)

EXACT = "exact"
LIMITS = DecodeLimits()
IMAGE_SIZES = ((224, 168), (131, 300))
CLIPS = ((8, 160, 112), (8, 168, 112))
"""Frames, width and height; the later ones for processors that refuse the first."""
CLIP_FPS = 4
AUDIO_SECONDS = (1.2, 2.5)
_ARGUMENT = {Modality.IMAGE: "images", Modality.VIDEO: "videos", Modality.AUDIO: "audio"}
_RATE_HZ = 16_000


@dataclass(frozen=True)
class Item:
    """One medium, planned and processed by us, and as Hugging Face takes it."""

    plan: ItemPlan
    outputs: Mapping[str, torch.Tensor]
    decoded: Any
    extra: Mapping[str, Any]
    """Call arguments that go with it (a clip's metadata)."""


class Subject:
    """A model under survey, loaded both ways.

    Raises:
        ModelLoadError: If the engine refuses the model.
    """

    def __init__(self, engine: Engine, model: hf.LoadedModel) -> None:
        self._engine = engine
        self._processor = model.processor
        self._model = model
        self._encoder = PromptEncoder(engine.info)

    def verdict(self, modality: Modality) -> str:
        """Return `exact`, or why features or ids are not Hugging Face's."""
        refused = None
        for data, what in self._media(modality):
            try:
                items = [self._run(modality, medium, i) for i, medium in enumerate(data)]
            except MmprepError as exc:
                refused = refused or f"not served: {exc.message}"
                continue
            problem = next((p for i in items if (p := self._compare_features(modality, i))), None)
            verdict = problem or self._compare_ids(modality, items)
            return verdict if refused is None else f"{verdict} ({what}; others are refused)"
        return str(refused)

    def _media(self, modality: Modality) -> Iterator[tuple[list[bytes], str]]:
        """Yield media to compare, with a name; later ones for processors that refuse the first."""
        if modality is Modality.IMAGE:
            yield [media.png(*size, seed=i) for i, size in enumerate(IMAGE_SIZES)], "two images"
        elif modality is Modality.VIDEO:
            for clip in CLIPS:
                yield [media.mp4(*clip, CLIP_FPS, seed=0)], f"frames of {clip[1]} x {clip[2]}"
        else:
            rate = self._sample_rate_hz()
            yield [media.wav(s, rate, seed=i) for i, s in enumerate(AUDIO_SECONDS)], "two clips"

    def _sample_rate_hz(self) -> int:
        part = self._model.sub_processors[Modality.AUDIO]
        return int(getattr(part, "sampling_rate", None) or _RATE_HZ)

    def _run(self, modality: Modality, data: bytes, index: int) -> Item:
        item = ItemInput(modality, (data,), index=index)
        plan = self._engine.plan(item)
        try:
            outputs = self._process(item, plan)
        except FramesMissing as exc:  # what decodes decides; the service plans once more, too
            plan = exc.plan
            outputs = self._process(item, plan)
        decoded, extra = self._decode(modality, data, plan)
        return Item(plan, outputs, decoded, extra)

    def _process(self, item: ItemInput, plan: ItemPlan) -> Mapping[str, torch.Tensor]:
        outputs = {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            for spec in plan.tensors
        }
        self._engine.process(item, plan, outputs)
        return outputs

    def _decode(
        self, modality: Modality, data: bytes, plan: ItemPlan
    ) -> tuple[Any, Mapping[str, Any]]:
        options = MediaOptions()
        if modality is Modality.IMAGE:
            return decode.decode_image(data, options=options, limits=LIMITS), {}
        if modality is Modality.AUDIO:
            rate = self._sample_rate_hz()
            samples = decode.decode_audio(data, sample_rate_hz=rate, options=options, limits=LIMITS)
            return samples, {}
        indices = list(plan.state["frame_indices"])
        wanted = sorted(set(indices))
        video = decode.decode_frames(data, wanted, options=options, limits=LIMITS)
        metadata = {
            "total_num_frames": plan.state["num_frames"],
            "fps": plan.state["fps"],
            "duration": plan.state["duration_s"],
            "width": plan.source.width,
            "height": plan.source.height,
            "frames_indices": indices,
        }
        frames = video.frames[[wanted.index(index) for index in indices]]
        extra = {
            "video_metadata": [metadata],
            "do_sample_frames": False,
            "return_metadata": True,  # some processors need it themselves
        }
        return frames, extra

    def _prompts(self, modality: Modality, count: int) -> Iterator[RenderedPrompt]:
        """Yield prompts with that many placeholders: plain, then as the chat template frames."""
        spec = self._engine.info.placeholders.get(modality)
        placeholder = "" if spec is None else spec.text
        text = " And ".join(f"{placeholder} What is it?" for _ in range(count))
        yield RenderedPrompt(((text, True),))
        if self._engine.info.has_chat_template:
            parts = [{"type": modality.value}, {"type": "text", "text": "What is it?"}] * count
            with suppress(InvalidRequestError):  # a template for other messages than these
                yield self._engine.render(ChatInput(({"role": "user", "content": parts},)))

    def _compare_features(self, modality: Modality, item: Item) -> str | None:
        expected = next(
            (
                result
                for prompt in (*self._prompts(modality, 1), None)
                if (result := self._call(modality, prompt, [item])) is not None
            ),
            None,
        )
        if expected is None:
            return "Hugging Face's own call fails"
        compared = 0
        for name, ours in item.outputs.items():
            theirs = expected.get(name)
            if not isinstance(theirs, torch.Tensor):
                continue
            compared += 1
            if ours.shape != theirs.shape:
                return f"{name}: shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
            if not torch.equal(ours, theirs):
                return f"{name}: differs by {(ours.float() - theirs.float()).abs().max():.2g}"
        return None if compared else "no output in common"

    def _compare_ids(self, modality: Modality, items: Sequence[Item]) -> str:
        if self._model.tokenizer is None or modality not in self._engine.info.placeholders:
            return EXACT
        for together in (items, items[:1]):
            for prompt in self._prompts(modality, len(together)):
                expected = self._call(modality, prompt, together)
                if expected is not None and "input_ids" in expected:
                    verdict = self._same_ids(prompt, together, expected["input_ids"])
                    alone = len(together) < len(items)
                    return f"{verdict} (alone; no joint call)" if alone else verdict
        return "features exact; no ids to compare"

    def _same_ids(self, prompt: RenderedPrompt, items: Sequence[Item], expected: Any) -> str:  # noqa: ANN401
        try:
            ours = self._encoder.expand_text(prompt, [item.plan for item in items]).input_ids
        except MmprepError as exc:
            return f"features exact; ids: {exc.message}"
        same = ours.tolist() == torch.as_tensor(expected).flatten().tolist()
        return EXACT if same else "features exact; ids differ"

    def _call(
        self, modality: Modality, prompt: RenderedPrompt | None, items: Sequence[Item]
    ) -> Mapping[str, Any] | None:
        """Call the processor in the first of the shapes that it takes; None if it takes none."""
        decoded = [item.decoded for item in items]
        extra: dict[str, Any] = {}
        for item in items:
            for name, value in item.extra.items():
                extra[name] = extra.get(name, []) + value if isinstance(value, list) else value
        if modality is Modality.IMAGE:
            extra["input_data_format"] = "channels_last"
        for text, media_value in _shapes(prompt, decoded):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    kwargs = {_ARGUMENT[modality]: media_value, **text, **extra}
                    result: Mapping[str, Any] = self._processor(**kwargs, return_tensors="pt")
            except (*hf.HF_ERRORS, AssertionError):
                continue
            return result
        return None


def _shapes(
    prompt: RenderedPrompt | None, decoded: list[Any]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (text arguments, media) in the ways that processors want them."""
    if prompt is None:
        yield {}, decoded
        yield {}, decoded[0]
        return
    specials = {} if prompt.add_special_tokens else {"add_special_tokens": False}
    yield {"text": prompt.text, **specials}, decoded
    yield {"text": [prompt.text], **specials}, decoded
    yield {"text": [prompt.text], **specials}, [decoded]
