"""One family served by our engine beside Hugging Face's own processor."""

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor

from processors.engine import Engine
from processors.prompt import ExpandedPrompt, PromptEncoder
from processors.types import (
    DecodeLimits,
    ItemInput,
    ItemPlan,
    MediaOptions,
    Modality,
    ModelSpec,
    RenderedPrompt,
    TensorSpec,
)
from tests.helpers.model_zoo import FAMILIES, Family
from tests.parity.tolerances import FEATURES, OF_THE_PROMPT, ONLY_JOINT

Outputs = dict[str, torch.Tensor]


class Served:
    """A family's engine, prompt encoder and processor."""

    def __init__(self, family: Family, path: Path) -> None:
        self.family = family
        self.engine = Engine(ModelSpec(family.name, str(path)), DecodeLimits())
        self.encoder = PromptEncoder(self.engine.info)
        self.processor = AutoProcessor.from_pretrained(path)

    def run(self, item: ItemInput) -> tuple[ItemPlan, Outputs]:
        """Plan and process one item."""
        plan = self.engine.plan(item)
        outputs = allocate(plan.tensors)
        self.engine.process(item, plan, outputs)
        return plan, outputs

    def expand(self, text: str, plans: Sequence[ItemPlan]) -> ExpandedPrompt:
        """Return a prompt expanded."""
        return self.encoder.expand_text(RenderedPrompt(((text, True),)), plans)

    def ids(self, text: str, plans: Sequence[ItemPlan]) -> list[int]:
        """Return the expanded ids of a prompt."""
        return self.expand(text, plans).input_ids.tolist()


@lru_cache(maxsize=2)
def serve(name: str, path: Path) -> Served:
    """Return a served family; the last ones are kept."""
    return Served(FAMILIES[name], path)


def allocate(specs: Sequence[TensorSpec]) -> Outputs:
    """Return output tensors filled with what no processor writes."""
    outputs = {}
    for spec in specs:
        dtype = getattr(torch, spec.dtype)
        fill = float("nan") if dtype.is_floating_point else 1
        outputs[spec.name] = torch.full(spec.shape, fill, dtype=dtype)
    return outputs


def png(picture: Image.Image | np.ndarray) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def image_item(picture: Image.Image, index: int = 0, **kwargs: Any) -> ItemInput:
    """Return one image as an item."""
    return ItemInput(Modality.IMAGE, (png(picture),), MediaOptions(), kwargs, index)


def frames_item(frames: np.ndarray, index: int = 0, **kwargs: Any) -> ItemInput:
    """Return a video as an item that is given as a list of frames."""
    return ItemInput(Modality.VIDEO, tuple(map(png, frames)), MediaOptions(), kwargs, index)


def assert_joint(
    family: str, results: Sequence[tuple[ItemPlan, Outputs]], joint: dict[str, Any]
) -> None:
    """Compare items processed alone, joined as their specs say, with a joint call's outputs."""
    specs = {spec.name: spec for plan, _ in results for spec in plan.tensors}
    for name, spec in specs.items():
        ours = [outputs[name] for _, outputs in results if name in outputs]
        _assert_tensor(family, spec, ours, torch.as_tensor(joint[name]))
    alone = {name for (of, name) in ONLY_JOINT if of == family}
    assert set(joint) - set(specs) - OF_THE_PROMPT - alone == set()


def _assert_tensor(
    family: str, spec: TensorSpec, ours: list[torch.Tensor], theirs: torch.Tensor
) -> None:
    tolerance = FEATURES.get((family, spec.name))
    if spec.pad is None:
        _assert_equal(spec, torch.cat(ours, spec.layout.dim), theirs, tolerance)
        return
    assert spec.layout.kind == "batched"
    assert len(ours) == len(theirs)
    for mine, joined in zip(ours, theirs, strict=True):
        valid = tuple(slice(0, size) for size in mine.shape[1:])
        _assert_equal(spec, mine[0], joined[valid], tolerance)


def _assert_equal(spec, ours, theirs, tolerance) -> None:
    assert ours.dtype == theirs.dtype, spec.name
    assert ours.shape == theirs.shape, spec.name
    if tolerance is None:
        assert torch.equal(ours, theirs), spec.name
    else:
        difference = (ours.double() - theirs.double()).abs().max().item()
        assert difference <= tolerance.atol, spec.name
