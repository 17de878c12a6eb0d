"""Position ids equal those of the models' own rope index, on meta-device models."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from processors.families import family_of
from processors.positions import compute_positions
from processors.types import Modality, RenderedPrompt
from tests.helpers.model_zoo import FAMILIES, Sample, available_families, make_sample
from tests.parity.served import Served, frames_item, image_item, serve

OTHER_SCHEME = {
    "minicpmv4_7": "positions of slices on the canvas of their picture",
}
"""Families whose models have a rope index that no scheme of ours mirrors."""


OMNI_MARKERS = {
    "vision_start_token_id": ("<|vision_bos|>", "<|vision_start|>"),
    "audio_start_token_id": ("<|audio_bos|>", "<|audio_start|>"),
}
"""What the thinker's config holds only in checkpoints."""

FPS = 2.0


def rope_model(path: Path) -> Any:
    """Return a family's model that has the rope index, without its layers; None without one."""
    config = AutoConfig.from_pretrained(path)
    architecture = getattr(transformers, config.architectures[0])
    module = inspect.getmodule(architecture)
    owners = [
        owner
        for name, owner in vars(module).items()
        if hasattr(owner, "get_rope_index")
        and name.endswith(("Model", "ThinkerForConditionalGeneration"))
        and "PreTrained" not in name
    ]
    if not owners:
        return None
    model = owners[0].__new__(owners[0])
    torch.nn.Module.__init__(model)
    model.config = getattr(config, "thinker_config", config)
    if hasattr(config, "thinker_config"):
        vocabulary = AutoTokenizer.from_pretrained(path).get_vocab()
        for name, tokens in OMNI_MARKERS.items():
            setattr(model.config, name, next(vocabulary[t] for t in tokens if t in vocabulary))
    if config.model_type == "hunyuan_vl":
        model.config.text_config.rope_parameters = {"mrope_section": [16, 24, 24]}
    model.spatial_merge_size = getattr(model.config.vision_config, "spatial_merge_size", None)
    return model


def joint_call(served: Served, sample: Sample) -> dict[str, Any]:
    """Return the joint call of a sample with the frame rate that lists of frames have here."""
    call = served.family.call(sample)
    for metadata in call.get("video_metadata", ()):
        metadata |= {"fps": FPS, "duration": metadata["total_num_frames"] / FPS}
    return dict(served.processor(**call))


def rope_index(model: Any, joint: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Return position ids (axes, L) and delta of one prompt's joint call."""
    takes = inspect.signature(model.get_rope_index).parameters
    ids, delta = model.get_rope_index(**{k: v for k, v in joint.items() if k in takes})
    return ids[:, 0].numpy(), delta[0].item()


@pytest.mark.parametrize("name", available_families())
def test_positions_equal_the_rope_index(name: str, model_dir: Callable[[str], Path]):
    """Images and videos of several sizes, with text before, between and after."""
    path = model_dir(name)
    model = rope_model(path)
    if model is None or name in OTHER_SCHEME:
        assert family_of(AutoConfig.from_pretrained(path).model_type).positions is None
        return
    family, served = FAMILIES[name], serve(name, path)
    has_video = Modality.VIDEO in family.prompts
    sample = make_sample(
        family,
        images=[(168, 140), (112, 252)],
        videos=[(4, 168, 140), (6, 140, 196)] if has_video else [],
    )
    plans = [served.engine.plan(image_item(p, i)) for i, p in enumerate(sample.images)]
    plans += [served.engine.plan(frames_item(v, i)) for i, v in enumerate(sample.videos)]
    joint = joint_call(served, sample)
    prompt = served.encoder.expand_text(RenderedPrompt(((sample.text, True),)), plans)
    assert prompt.input_ids.tolist() == joint["input_ids"][0].tolist()

    ours = compute_positions(served.engine.info, prompt, plans)

    assert ours is not None
    if "mm_token_type_ids" in joint:
        assert ours.mm_token_type_ids.tolist() == joint["mm_token_type_ids"][0].tolist()
    joint["mm_token_type_ids"] = torch.from_numpy(ours.mm_token_type_ids)[None]
    joint["second_per_grids"] = torch.as_tensor(joint.get("video_second_per_grid", ()))
    theirs, delta = rope_index(model, joint)
    assert np.array_equal(ours.position_ids, theirs)
    assert ours.delta == delta
