"""Images: planned on meta tensors of their size, processed one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from processors import hf
from processors.context import Fill, Maker, StageContext
from processors.decode import check_modality, decode_frames, decode_image, probe
from processors.errors import (
    InvalidRequestError,
    MediaDecodeError,
    ModelLoadError,
    PlanMismatchError,
)
from processors.features import without_compact
from processors.sampling import thin
from processors.stage import Stage
from processors.types import ItemInput, ItemPlan, MediaInfo, Modality, ProcessReport
from processors.whole_call import WARNING, WholeCall

_LEARN_SIZES = ((336, 224), (500, 900))
"""(height, width) of the two images whose joint call shows how tensors join."""


class ImageStage(Stage):
    """Images of any size, one item each."""

    modality: ClassVar[Modality] = Modality.IMAGE

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        pair = [partial(make_empty, (3, *size)) for size in _LEARN_SIZES]
        self._whole_call: WholeCall | None = None
        if not hf.has_image_protocol(self.model.processor) and not context.family.runs:
            self._whole_call = self._check_whole_call(pair)
            self.warnings = (f"Model '{context.spec.name}': {WARNING}.",)
        self.learn(pair)
        if context.spec.image_backend == "torchvision":
            self.find_kernel()
            self.find_tapes(pair[0])
            if self._whole_call is None:
                self.find_batcher(pair[0])

    def plan(self, item: ItemInput) -> ItemPlan:
        """Plan an image from its header.

        Raises:
            MediaDecodeError, UnsupportedMediaTypeError, MediaTooLargeError: From the header, or if
                the features would be too large.
            InvalidRequestError: If the processor does not take the size or a keyword argument.
            PromptTooLongError: If the image would become too many tokens.
        """
        kwargs = self.effective(item)
        info = probe(item.data[0], limits=self.limits, prefer=Modality.IMAGE)
        check_modality(info, Modality.IMAGE)
        return self.plan_size(item, info, kwargs)

    def plan_size(self, item: ItemInput, info: MediaInfo, kwargs: Mapping[str, Any]) -> ItemPlan:
        """Plan an image whose size is known."""
        height, width = size_of(info)
        make = partial(make_empty, (3, height, width))
        what = f"an image of {width} x {height} pixels"
        key = (height, width, json.dumps(kwargs, sort_keys=True))
        shape = self.shape_of(key, lambda: self.run_empty(make, kwargs, what))
        base = ItemPlan(self.modality, info, None, 0, None, (), exact=info.exact)
        plan = self.item_plan(item, shape, base, kwargs)
        # A kept alpha channel is a fourth one, which no table has.
        return without_compact(plan) if item.options.alpha == "keep" else plan

    def plan_frames(self, item: ItemInput) -> tuple[ItemPlan, ...]:
        """Plan a video that is shown as images: one plan per frame.

        As many frames as `frame_scaling` says of those there are, at least one, and at most
        `max_frames`, evenly spread.

        Raises:
            MediaDecodeError, UnsupportedMediaTypeError, MediaTooLargeError: From the header.
            InvalidRequestError: If the processor does not take the size or a keyword argument.
            PromptTooLongError: If a frame would become too many tokens.
        """
        kwargs = self.effective(item)
        info = probe(item.data[0], limits=self.limits, prefer=Modality.VIDEO)
        check_modality(info, Modality.VIDEO)
        if not info.num_frames:
            raise MediaDecodeError("The video's header tells no frames.")
        options = item.options
        scaled = max(1, int(info.num_frames * (options.frame_scaling or 1.0)))
        most = min(scaled, options.max_frames or scaled, self.limits.max_frames)
        plan = self.plan_size(item, info, kwargs)
        return tuple(
            replace(plan, state={**plan.state, "frame_index": index})
            for index in thin(list(range(info.num_frames)), most)
        )

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode and process one image into preallocated tensors.

        Raises:
            MediaDecodeError, MediaTooLargeError: From decoding.
            InvalidRequestError: If an alpha channel is kept that the processor does not take.
            PlanMismatchError: If the result is not what was planned.
        """
        start = time.perf_counter()
        pixels = self._decode(item, plan)
        decoded = time.perf_counter()
        kwargs = self.effective(item)
        media = self._as_media(pixels)
        try:
            ran = self.execute(
                media,
                self.merged(kwargs),
                plan,
                outputs,
                item.num_threads,
                _likeness_of(media, kwargs),
            )
        except PlanMismatchError as exc:
            if pixels.shape[-1] == 3:
                raise
            message = "The model's processor takes no alpha channel; do not ask to keep it."
            raise InvalidRequestError(message, "options") from exc
        done = time.perf_counter()
        return ProcessReport(
            (decoded - start) * 1e3, (done - decoded) * 1e3, kernel=ran.kernel, batch=ran.batch
        )

    def call(self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged) -> hf.Processed:
        """See `Stage.call`; media are tensors (3, H, W) or PIL images."""
        if self._whole_call is not None:
            return self._whole_call(processor, media, merged)
        return hf.process_images(processor, media, merged)

    def warm_up(self) -> None:
        """Process one small picture."""
        pixels = np.zeros((*_LEARN_SIZES[0], 3), np.uint8)
        self.run_real(self._as_media(pixels), self.merged(self.server_kwargs))

    def _decode(self, item: ItemInput, plan: ItemPlan) -> np.ndarray:
        """Return the pixels of an image, or of the frame that a plan names."""
        index = plan.state.get("frame_index")
        if index is None:
            return decode_image(item.data[0], options=item.options, limits=self.limits)
        clip = decode_frames(item.data[0], (index,), options=item.options, limits=self.limits)
        frame: np.ndarray = clip.frames[0]
        return frame

    def _check_whole_call(self, pair: Sequence[Maker]) -> WholeCall:
        """Return the processor's own call as a way to run images, if it tells them apart."""
        placeholder = getattr(self.model.processor, "image_token", None)
        name = self.context.spec.name
        if not isinstance(placeholder, str):
            raise ModelLoadError(f"Model '{name}': its processor has no placeholder for images.")
        call = WholeCall(placeholder)
        try:
            call.check(self.model.planner, [make("zeros") for make in pair])
        except ModelLoadError as exc:
            raise ModelLoadError(f"Model '{name}': {exc.message}") from exc
        except hf.HF_ERRORS as exc:
            message = f"Model '{name}': its processor takes no two images with a text."
            raise ModelLoadError(message) from exc
        return call

    def _as_media(self, pixels: np.ndarray) -> torch.Tensor | Image.Image:
        """Hand pixels over without a copy; PIL where its backend or an alpha channel wants it."""
        if self.context.spec.image_backend == "pil" or pixels.shape[-1] == 4:
            return Image.fromarray(pixels)
        return torch.from_numpy(pixels).permute(2, 0, 1).to(self.context.spec.device)


def _likeness_of(media: torch.Tensor | Image.Image, kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return what a picture's features depend on besides the values of its pixels."""
    if not isinstance(media, torch.Tensor):
        return None
    return media.shape, media.stride(), json.dumps(kwargs, sort_keys=True)


def size_of(info: MediaInfo) -> tuple[int, int]:
    """Return (height, width) of a probed picture or video.

    Raises:
        MediaDecodeError: If the header tells none.
    """
    if not info.height or not info.width:
        raise MediaDecodeError("The header tells no picture size.")
    return info.height, info.width


def make_empty(shape: tuple[int, ...], fill: Fill) -> torch.Tensor:
    """Return uint8 pixels without data: on meta, zeros that take no memory, or noise."""
    if fill == "meta":
        return torch.empty(shape, dtype=torch.uint8, device="meta")
    if fill == "noise":
        noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        return torch.from_numpy(noise)
    return torch.zeros((1,) * len(shape), dtype=torch.uint8).expand(shape)
