"""InternVL's original repositories: a tokenizer, a config, and no processor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.errors import ModelLoadError
from processors.prompt import PromptEncoder
from processors.types import DecodeLimits, Modality, ModelSpec, RenderedPrompt
from tests.helpers.model_zoo import FAMILIES, make_sample
from tests.parity.served import allocate, image_item, serve

ModelDir = Callable[[str], Path]

ORIGINAL = {
    "architectures": ["InternVLChatModel"],
    "model_type": "internvl_chat",
    "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
    "force_image_size": 448,
    "dynamic_image_size": True,
    "use_thumbnail": True,
    "min_dynamic_patch": 1,
    "max_dynamic_patch": 12,
    "downsample_ratio": 0.5,
    "vision_config": {"patch_size": 14, "image_size": 448},
}


def _original(source: Path, directory: Path) -> Path:
    """Make an original's directory of the converted one's tokenizer."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, directory / name)
    (directory / "config.json").write_text(json.dumps(ORIGINAL))
    return directory


def test_it_is_served_as_its_converted_form_is(model_dir: ModelDir, tmp_path: Path):
    """Features and ids equal those of the converted repository; no code of the model runs."""
    converted = serve("internvl", model_dir("internvl"))
    path = _original(model_dir("internvl"), tmp_path / "original")
    engine = Engine(ModelSpec("original", str(path)), DecodeLimits())
    assert engine.info.modalities == (Modality.IMAGE,)
    assert engine.info.placeholders[Modality.IMAGE].text == "<image>"
    sample = make_sample(FAMILIES["internvl"], images=[(900, 500), (300, 200)])
    plans = []
    for picture in sample.images:
        item = image_item(picture)
        plans.append(engine.plan(item))
        outputs = allocate(plans[-1].tensors)
        engine.process(item, plans[-1], outputs)
        assert torch.equal(outputs["pixel_values"], converted.run(item)[1]["pixel_values"])
    prompt = RenderedPrompt(((sample.text.replace("<IMG_CONTEXT>", "<image>"), True),))
    ids = PromptEncoder(engine.info).expand_text(prompt, plans).input_ids.tolist()
    assert ids == converted.ids(sample.text, plans)


def test_any_other_bare_tokenizer_is_refused(model_dir: ModelDir, tmp_path: Path):
    """Nobody says how such a model takes images."""
    path = _original(model_dir("internvl"), tmp_path / "other")
    text_only = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (path / "config.json").write_text(json.dumps(text_only))
    with pytest.raises(ModelLoadError, match=r"takes no media|cannot be loaded"):
        Engine(ModelSpec("other", str(path)), DecodeLimits())
