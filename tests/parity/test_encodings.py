"""Codes and raw pixels of every family that has them: they hold the plain features exactly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from app.describe import describe_tensor
from app.encodings import encode
from processors.engine import Engine
from processors.errors import FramesMissing, InvalidRequestError
from processors.fast import AVAILABLE
from processors.types import (
    DecodeLimits,
    ItemInput,
    ItemPlan,
    MediaOptions,
    Modality,
    ModelSpec,
    TensorSpec,
)
from tests.helpers.model_zoo import FAMILIES, available_families, make_sample
from tests.helpers.zoo.media import noise_image
from tests.parity.served import Outputs, Served, allocate, frames_item, png, serve
from tests.parity.test_images import NO_PROTOCOL
from transport.tensors import expand_codes_torch
from transport.wire import LutEncoding

IMAGES = [
    n
    for n in available_families()
    if Modality.IMAGE in FAMILIES[n].prompts and n not in NO_PROTOCOL
]
VIDEOS = [n for n in available_families() if Modality.VIDEO in FAMILIES[n].prompts]
pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")
STILL_PATCHES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni", "qwen3_omni_moe", "glm4v")
"""Families whose stills repeat every patch, so that codes are an eighth of the floats."""
MUST = (*STILL_PATCHES, "gemma3", "llava", "llava_next", "llava_onevision", "internvl", "pixtral")


def run_encoded(
    served: Served, item: ItemInput, plan: ItemPlan, encoding: str, dtype: str = "float32"
) -> tuple[dict[str, TensorSpec], Outputs]:
    specs = encode(plan.tensors, encoding, dtype)
    outputs = allocate(specs)
    served.engine.process(item, plan, outputs)
    return {spec.name: spec for spec in specs}, outputs


def expanded(spec: TensorSpec, outputs: Outputs) -> torch.Tensor:
    told = msgspec.convert(describe_tensor(spec, None)["encoding"], LutEncoding)
    return expand_codes_torch(outputs[spec.name], outputs[told.table], told)


def check(served: Served, item: ItemInput) -> tuple[int, int]:
    """Compare every encoding with the plain features; return the bytes of codes and of floats."""
    plan = served.engine.plan(item)
    plain = allocate(plan.tensors)
    try:
        served.engine.process(item, plan, plain)
    except FramesMissing as replanned:
        plan = replanned.plan
        plain = allocate(plan.tensors)
        served.engine.process(item, plan, plain)
    coded = floats = 0
    for dtype in ("float32", "bfloat16"):
        specs, codes = run_encoded(served, item, plan, "compact", dtype)
        _, raw = run_encoded(served, item, plan, "raw", dtype)
        for tensor in plan.tensors:
            wanted = plain[tensor.name]
            if tensor.compact is None:
                if tensor.role == "feature" and wanted.is_floating_point():
                    wanted = wanted.to(getattr(torch, dtype))
                assert torch.equal(codes[tensor.name], wanted)
                assert torch.equal(raw[tensor.name], wanted)
                continue
            spec = specs[tensor.name]
            found = expanded(spec, codes)
            assert torch.equal(found, wanted.to(getattr(torch, dtype)))
            pixels = raw[tensor.name]
            assert (pixels.dtype, pixels.shape) == (torch.uint8, wanted.shape)
            # Raw pixels looked up in the table are the plain feature as well.
            told = msgspec.convert(describe_tensor(spec, None)["encoding"], LutEncoding)
            flat = msgspec.structs.replace(
                told,
                repeat=None,
                channel_stride=told.channel_stride * (told.repeat.times if told.repeat else 1),
            )
            assert torch.equal(
                expand_codes_torch(pixels, codes[told.table], flat), wanted.to(found.dtype)
            )
            repeats = told.repeat.times if told.repeat else 1
            assert tensor.nbytes == spec.nbytes * repeats * wanted.element_size()
            if dtype == "float32":
                coded += spec.nbytes
                floats += tensor.nbytes
    return coded, floats


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, model_dir: Callable[[str], Path]) -> None:
    """Two sizes of every family; where codes cannot be had, `/models` does not say so."""
    served = serve(name, model_dir(name))
    has_compact = Modality.IMAGE in served.engine.info.compact
    assert has_compact or name not in MUST
    for size in [(224, 168), (131, 300)]:
        item = ItemInput(Modality.IMAGE, (png(noise_image(*size)),), index=0)
        coded, floats = check(served, item)
        assert (coded > 0) == has_compact
        if name in STILL_PATCHES:
            assert floats == 8 * coded


@pytest.mark.parametrize("name", VIDEOS)
def test_videos(name: str, model_dir: Callable[[str], Path]) -> None:
    """A video's frames, an odd number of them."""
    served = serve(name, model_dir(name))
    (clip,) = make_sample(FAMILIES[name], videos=[(5, 168, 140)]).videos
    item = frames_item(clip)
    coded, floats = check(served, item)
    assert (coded > 0) == (Modality.VIDEO in served.engine.info.compact)
    if name in STILL_PATCHES:
        assert floats == 4 * coded


KWARGS: tuple[dict[str, Any], ...] = (
    {"do_resize": False},
    {"do_center_crop": True, "crop_size": {"height": 600, "width": 700}},
    {"image_mean": 0.5},
    {"image_std": [0.2, 0.7, 1.3]},
    {"resample": 2},
)
CHANGED = (
    *((name, Modality.IMAGE) for name in ("qwen2_5_vl", "gemma3", "llava_next", "gemma4")),
    *((name, Modality.VIDEO) for name in ("qwen3_vl", "gemma4")),
)


@pytest.mark.parametrize(("name", "modality"), CHANGED)
def test_keyword_arguments_change_codes_as_they_change_floats(
    name: str, modality: Modality, model_dir: Callable[[str], Path]
) -> None:
    """Beside the plain processor: equal, or there are no codes."""
    served = serve(name, model_dir(name))
    plainly = Engine(ModelSpec(name, str(model_dir(name)), allow_fast=False), DecodeLimits())
    accepted = served.engine.info.accepted_kwargs[modality]
    taken = [kwargs for kwargs in KWARGS if kwargs.keys() <= set(accepted)]
    assert len(taken) > 1
    num_coded = sum(check_changed(served, plainly, modality, kwargs) for kwargs in taken)
    assert num_coded > 0


def check_changed(
    served: Served, plainly: Engine, modality: Modality, kwargs: dict[str, Any]
) -> bool:
    """Compare features under keyword arguments; return whether there are codes of them."""
    if modality is Modality.IMAGE:
        item = ItemInput(modality, (png(noise_image(131, 300)),), kwargs=kwargs)
    else:
        (clip,) = make_sample(served.family, videos=[(5, 168, 140)]).videos
        item = frames_item(clip, **kwargs)
    try:
        plan = plainly.plan(item)
    except InvalidRequestError:
        with pytest.raises(InvalidRequestError):
            served.engine.plan(item)
        return False
    wanted = allocate(plan.tensors)
    plainly.process(item, plan, wanted)
    plan = served.engine.plan(item)
    outputs = allocate(plan.tensors)
    served.engine.process(item, plan, outputs)
    for tensor, value in wanted.items():
        assert torch.equal(outputs[tensor], value), (kwargs, tensor)
    assert any(spec.compact is not None for spec in plan.tensors)
    try:
        specs, codes = run_encoded(served, item, plan, "compact")
    except FramesMissing as replanned:
        new_plan = replanned.plan
    else:
        new_plan = None
    if new_plan is not None:
        assert all(spec.compact is None for spec in new_plan.tensors)
        assert not new_plan.warnings
        return False
    for spec in specs.values():
        if spec.encoding is not None:
            assert torch.equal(expanded(spec, codes), wanted[spec.name]), (kwargs, spec.name)
    return True


def test_a_kept_alpha_channel_has_no_codes(model_dir: Callable[[str], Path]) -> None:
    """A fourth channel is no row of any table."""
    served = serve("qwen2_5_vl", model_dir("qwen2_5_vl"))
    picture = np.full((56, 56, 4), 200, np.uint8)
    item = ItemInput(Modality.IMAGE, (png(picture),), options=MediaOptions(alpha="keep"))
    assert all(spec.compact is None for spec in served.engine.plan(item).tensors)
