"""One engine for every model family: plan, process and render, in a worker process.

A plan needs headers only. Processing takes one item alone through the transformers protocol and
writes its features where it is told. Each modality has a stage; a family file is asked only for
what the protocol cannot say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from processors import hf
from processors.audio_stage import AudioStage
from processors.chat import ChatRenderer
from processors.context import StageContext
from processors.errors import ModelLoadError, UnsupportedMediaTypeError
from processors.families import family_of
from processors.given import plan_given
from processors.image_stage import ImageStage
from processors.info import build_info
from processors.media_tokens import find_media_tokens, find_special_tokens
from processors.stage import Stage
from processors.types import (
    ChatInput,
    DecodeLimits,
    GivenEntry,
    GivenItem,
    ItemInput,
    ItemPlan,
    Modality,
    ModelInfo,
    ModelSpec,
    ProcessReport,
    RenderedPrompt,
    StageTraits,
)
from processors.video_stage import VideoStage


class Engine:
    """A loaded model that plans and processes items; threads may share it.

    Raises:
        ModelLoadError: If the model cannot be served, with the reason.
    """

    def __init__(self, spec: ModelSpec, limits: DecodeLimits) -> None:
        started = time.perf_counter()
        torch.set_num_threads(1)
        self._model = hf.load(spec)
        family = family_of(self._model.model_type)
        special_tokens = find_special_tokens(self._model, family)
        media_tokens = find_media_tokens(self._model, family, special_tokens)
        context = StageContext(self._model, family, spec, limits, media_tokens)
        self._stages, warnings = _make_stages(context)
        self.info: ModelInfo = build_info(
            context, self._stages, special_tokens, warnings, time.perf_counter() - started
        )
        self._renderer = ChatRenderer(self._model, self.info)

    @property
    def traits(self) -> dict[Modality, StageTraits]:
        """How each modality is planned and processed."""
        return {modality: stage.traits for modality, stage in self._stages.items()}

    def plan(self, item: ItemInput) -> ItemPlan:
        """Plan an item from its header, with its keyword arguments checked and bounded first.

        Raises:
            UnsupportedMediaTypeError: If the model does not take the modality.
            MmprepError: Any other refusal of the medium, its options or its size.
        """
        return self._stage(item.modality).plan(item)

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode and process an item alone and write its tensors.

        Args:
            item: The item, as it was planned.
            plan: Its plan.
            outputs: Preallocated CPU tensors by name, of the planned shapes and dtypes; floating
                features may be of another floating dtype and are rounded from the exact values.

        Raises:
            PlanMismatchError: If the result has other shapes than planned.
            FramesMissing: If fewer frames decode than were planned; it holds the new plan.
            MmprepError: If the medium does not decode.
        """
        return self._stage(item.modality).process(item, plan, outputs)

    def plan_frames(self, item: ItemInput) -> tuple[ItemPlan, ...]:
        """Plan a video that is shown as images, one for each of its frames.

        Raises:
            UnsupportedMediaTypeError: If the model does not take images.
            MmprepError: Any other refusal of the medium, its options or its size.
        """
        stage = self._stage(item.modality)
        if not isinstance(stage, ImageStage):
            raise UnsupportedMediaTypeError("Only an image placeholder shows a video's frames.")
        return stage.plan_frames(item)

    def plan_given(self, entry: GivenEntry) -> tuple[GivenItem, ...]:
        """Tell the items apart that a caller has preprocessed, and plan each.

        Raises:
            UnsupportedMediaTypeError: If the model does not take the modality.
            MmprepError: As `processors.given.plan_given`.
        """
        return plan_given(self._stage(entry.modality), entry)

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """Render chat messages with the model's template, sandboxed.

        Raises:
            InvalidRequestError: If the model has no template, or it refuses the messages.
        """
        return self._renderer.render(chat)

    def encode(self, prompt: RenderedPrompt) -> list[int]:
        """Tokenize a prompt of a model with a slow tokenizer, specials of trusted pieces included.

        Raises:
            InvalidRequestError: If the model has no tokenizer.
        """
        return self._renderer.encode(prompt)

    def warm_up(self) -> None:
        """Plan and process one small item of each modality, so that the first request is fast."""
        for stage in self._stages.values():
            stage.warm_up()

    def _stage(self, modality: Modality) -> Stage:
        stage = self._stages.get(modality)
        if stage is None:
            raise UnsupportedMediaTypeError(f"Model '{self.info.name}' takes no {modality.value}.")
        return stage


def _make_stages(context: StageContext) -> tuple[dict[Modality, Stage], tuple[str, ...]]:
    """Return the stages that can be, and a warning for each modality that cannot.

    Raises:
        ModelLoadError: If none can be.
    """
    makers: dict[Modality, Callable[[StageContext], Stage]] = {
        Modality.AUDIO: AudioStage,
        Modality.IMAGE: ImageStage,
        Modality.VIDEO: lambda ctx: VideoStage(ctx, stages.get(Modality.AUDIO)),
    }
    stages: dict[Modality, Stage] = {}
    warnings: list[str] = []
    for modality, make in makers.items():
        if modality in context.model.sub_processors:
            try:
                stages[modality] = make(context)
                warnings.extend(stages[modality].warnings)
            except ModelLoadError as exc:
                warnings.append(exc.message)
    if not stages:
        reason = warnings[0] if warnings else "its processor takes no media."
        raise ModelLoadError(reason)
    return dict(sorted(stages.items())), tuple(warnings)
