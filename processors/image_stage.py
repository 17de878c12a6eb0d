"""Images: planned on meta tensors of their size, processed one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from processors import hf
from processors.decode import check_modality, decode_image, probe
from processors.errors import MediaDecodeError, PlanMismatchError
from processors.features import Joins, find_joins, float_names, write_tensors
from processors.stage import Outcome, Stage, StageContext
from processors.types import ItemInput, ItemPlan, MediaInfo, Modality, ProcessReport

_PROBE_SIZES = ((336, 224), (500, 900))
"""(height, width) of the two images whose joint call shows how tensors join."""

META = torch.device("meta")


class ImageStage(Stage):
    """Images of any size, one item each."""

    modality: ClassVar[Modality] = Modality.IMAGE

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.plans_on_meta = self._can_plan_on_meta()
        self.joins, self.feature_names = self._probe_joins()

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
        if info.width is None or info.height is None:
            raise MediaDecodeError("The image's header tells no size.")
        size = (info.height, info.width)
        key = (size, json.dumps(kwargs, sort_keys=True))
        shape = self.shape_of(key, lambda: self._run_empty(size, kwargs))
        base = ItemPlan(self.modality, info, None, 0, None, (), exact=info.exact)
        return self.item_plan(item, shape, base, kwargs)

    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """Decode and process one image into preallocated tensors.

        Raises:
            MediaDecodeError, MediaTooLargeError: From decoding.
            PlanMismatchError: If the result is not what was planned.
        """
        start = time.perf_counter()
        pixels = decode_image(item.data[0], options=item.options, limits=self.limits)
        decoded = time.perf_counter()
        outcome = self._run_pixels(pixels, self.merged(self.effective(item)))
        write_tensors(outcome.tensors, plan.tensors, outputs)
        done = time.perf_counter()
        return ProcessReport((decoded - start) * 1e3, (done - decoded) * 1e3)

    def _run_pixels(self, pixels: np.ndarray, merged: Mapping[str, Any]) -> Outcome:
        image: hf.HfObject
        if self.context.spec.image_backend == "pil" or pixels.shape[-1] == 4:
            image = Image.fromarray(pixels)
        else:
            image = torch.from_numpy(pixels).permute(2, 0, 1)
        try:
            return self.run(self.model.processor, [image], merged)
        except hf.HF_ERRORS as exc:
            raise PlanMismatchError("The processor failed on an image that it planned.") from exc

    def _run_empty(self, size: tuple[int, int], kwargs: Mapping[str, Any]) -> tuple[Outcome, bool]:
        merged = self.merged(kwargs)
        if self.plans_on_meta:
            try:
                return self.run(self.model.planner, [_empty(size)], merged), True
            except hf.HF_ERRORS:
                # Some paths need data (a crop wider than the image); zeros tell whether it is that.
                return self._run_zeros(size, merged, kwargs), False
        return self._run_zeros(size, merged, kwargs), False

    def _run_zeros(
        self, size: tuple[int, int], merged: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> Outcome:
        try:
            return self.run(self.model.planner, [_zeros(size)], merged)
        except hf.HF_ERRORS as exc:
            raise self.refuse(kwargs, f"an image of {size[1]} x {size[0]} pixels") from exc

    def run(
        self, processor: hf.HfObject, images: list[hf.HfObject], merged: Mapping[str, Any]
    ) -> Outcome:
        """Run images through the protocol together; the replacement is the first one's."""
        run = self.context.family.run
        if run is None:
            return self.finish(*hf.process_images(processor, images, merged))
        features, replacements = run(processor, self.modality, images, merged)
        return self.finish(dict(features), list(replacements))

    def _can_plan_on_meta(self) -> bool:
        try:
            self.run(self.model.planner, [_empty(_PROBE_SIZES[0])], self.merged({}))
        except hf.HF_ERRORS:
            return False
        return True

    def warm_up(self) -> None:
        """Process one small picture."""
        pixels = np.zeros((*_PROBE_SIZES[0], 3), np.uint8)
        self._run_pixels(pixels, self.merged(self.server_kwargs))

    def _probe_joins(self) -> tuple[Joins, tuple[str, ...]]:
        merged = self.merged({})
        make = _empty if self.plans_on_meta else _zeros
        images = [make(size) for size in _PROBE_SIZES]
        alone = [self.run(self.model.planner, [image], merged).tensors for image in images]
        try:
            joint = self.run(self.model.planner, images, merged).tensors
        except hf.HF_ERRORS:
            joint = None  # the processor takes no two images of different size together
        joins = find_joins(alone[0], alone[1], joint).override(self.context.family.layouts)
        return joins, float_names(*alone)


def _empty(size: tuple[int, int]) -> torch.Tensor:
    return torch.empty((3, *size), dtype=torch.uint8, device=META)


def _zeros(size: tuple[int, int]) -> torch.Tensor:
    return torch.zeros((1, 1, 1), dtype=torch.uint8).expand(3, *size)
