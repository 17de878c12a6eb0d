"""Processors without the replacement protocol, and code that comes with a model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.errors import ModelLoadError
from processors.prompt import PromptEncoder
from processors.types import DecodeLimits, MediaOptions, Modality, ModelSpec, RenderedPrompt
from tests.helpers.remote_code import ACROSS_ITEMS, make_remote_model
from tests.helpers.zoo.media import noise_image
from tests.parity.served import allocate, image_item

ModelDir = Callable[[str], Path]


def _engine(path: Path, *, trust: bool = True) -> Engine:
    return Engine(ModelSpec("own", str(path), trust_remote_code=trust), DecodeLimits())


def test_code_of_a_model_does_not_run_unless_trusted(model_dir: ModelDir, tmp_path: Path):
    """The default refuses a directory that brings its own processor."""
    path = make_remote_model(model_dir("llava"), tmp_path / "own")
    with pytest.raises(ModelLoadError):
        _engine(path, trust=False)


def test_an_unknown_processor_is_called_one_image_at_a_time(model_dir: ModelDir, tmp_path: Path):
    """Ids and features are those of its own call with two images."""
    engine = _engine(make_remote_model(model_dir("llava"), tmp_path / "own"))
    assert "own call" in engine.info.warnings[0]
    assert engine.info.placeholders[Modality.IMAGE].text == "<image>"
    pictures = [noise_image(90, 60), noise_image(200, 300)]
    plans, features = [], []
    for picture in pictures:
        item = image_item(picture)
        plans.append(engine.plan(item))
        outputs = allocate(plans[-1].tensors)
        engine.process(item, plans[-1], outputs)
        features.append(outputs["pixel_values"])
    text = "See <image> and <image>."
    prompt = RenderedPrompt(((text, True),))
    ids = PromptEncoder(engine.info).expand_text(prompt, plans).input_ids.tolist()

    joint = engine._model.processor(images=pictures, text=text, return_tensors="pt")

    assert [plan.num_tokens for plan in plans] == [3, 3]
    assert ids == joint["input_ids"][0].tolist()
    assert torch.equal(torch.cat(features), joint["pixel_values"])


def test_transparency_that_is_kept_reaches_it(model_dir: ModelDir, tmp_path: Path):
    """A picture with alpha goes into the call as it was decoded."""
    engine = _engine(make_remote_model(model_dir("llava"), tmp_path / "own"))
    picture = noise_image(90, 60)
    picture.putalpha(99)
    item = replace(image_item(picture), options=MediaOptions(alpha="keep"))
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    engine.process(item, plan, outputs)
    own = engine._model.processor(images=[picture], text="<image>", return_tensors="pt")
    assert torch.equal(outputs["pixel_values"], own["pixel_values"])


def test_one_whose_images_depend_on_each_other_is_refused(model_dir: ModelDir, tmp_path: Path):
    """It cannot be split, so it is not served."""
    path = make_remote_model(model_dir("llava"), tmp_path / "own", ACROSS_ITEMS)
    with pytest.raises(ModelLoadError, match="depends on"):
        _engine(path)
