"""Position ids equal those of the models' own rope index, on meta-device models."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from processors import decode
from processors.families import family_of
from processors.positions import compute_positions
from processors.types import DecodeLimits, ItemInput, MediaOptions, Modality, RenderedPrompt
from tests.helpers.model_zoo import FAMILIES, Sample, available_families, make_sample
from tests.helpers.zoo.media import noise_image, noise_video, tone
from tests.parity.served import Served, frames_item, image_item, serve
from tests.parity.test_audio import audio_item
from tests.parity.test_containers import FPS as FRAMES_A_SECOND
from tests.parity.test_containers import RATE_HZ, mkv

OTHER_SCHEME = {
    "minicpmv4_7": "positions of slices on the canvas of their picture",
}
"""Families whose models have a rope index that no scheme of ours mirrors."""


OMNI_MARKERS = {
    "vision_start_token_id": ("<|vision_bos|>", "<|vision_start|>"),
    "audio_start_token_id": ("<|audio_bos|>", "<|audio_start|>"),
}
"""What the thinker's config holds only in checkpoints."""

POSITIONS_A_SECOND = {"qwen2_5_omni": 25, "qwen3_omni_moe": 13}

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


def omni_index(model: Any, joint: dict[str, Any], **more: Any) -> tuple[np.ndarray, float]:
    """Return the rope index of a joint call, by the names that omni models know."""
    if "feature_attention_mask" in joint:
        joint["audio_seqlens"] = joint["feature_attention_mask"].sum(-1)
    joint["second_per_grids"] = torch.as_tensor(joint.get("video_second_per_grid", ()))
    return rope_index(model, joint | more)


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
    theirs, delta = omni_index(model, joint)
    assert np.array_equal(ours.position_ids, theirs)
    assert ours.delta == delta


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_sound_counts_on_as_text_does(name: str, model_dir: Callable[[str], Path]):
    """Clips beside images and videos, and alone."""
    family, served = FAMILIES[name], serve(name, model_dir(name))
    model = rope_model(model_dir(name))
    for images in ([(84, 140)], []):
        sample = make_sample(family, images=images, audios=[1.3, 0.4])
        plans = [served.engine.plan(image_item(p, i)) for i, p in enumerate(sample.images)]
        plans += [served.engine.plan(audio_item(sound, RATE_HZ)) for sound in sample.audios]
        joint = joint_call(served, sample)
        prompt = served.encoder.expand_text(RenderedPrompt(((sample.text, True),)), plans)
        assert prompt.input_ids.tolist() == joint["input_ids"][0].tolist()
        ours = compute_positions(served.engine.info, prompt, plans)
        theirs, delta = omni_index(model, joint)
        assert ours is not None
        assert np.array_equal(ours.position_ids, theirs)
        assert ours.delta == delta
        assert set(ours.mm_token_type_ids.tolist()) == {0, 3} | ({1} if images else set())


@pytest.mark.parametrize("num_frames", [8, 24, 40])
@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_a_video_s_own_sound_counts_beside_it(
    name: str, num_frames: int, model_dir: Callable[[str], Path]
):
    """A video with its sound, behind an image and before a clip."""
    family, served = FAMILIES[name], serve(name, model_dir(name))
    model = rope_model(model_dir(name))
    # As in checkpoints: what the processor interleaves by is what the model counts by.
    rate = POSITIONS_A_SECOND[name]
    model.config.position_id_per_seconds = rate
    config = {**served.engine.info.position_config, "position_id_per_seconds": rate}
    info = replace(served.engine.info, position_config=config)
    image, clip = noise_image(84, 140), tone(0.7)
    data = mkv(noise_video(num_frames, 56, 84), tone(num_frames / FRAMES_A_SECOND))
    switch = {"use_audio_in_video": True}
    items = [
        image_item(image),
        ItemInput(Modality.VIDEO, (data,), settings=switch),
        ItemInput(Modality.AUDIO, (data,), settings=switch),
        audio_item(clip, RATE_HZ),
    ]
    plans = [served.engine.plan(item) for item in items]
    text = "See {image} and {video} then {audio}.".format(
        **{kind.value: placeholder for kind, placeholder in family.prompts.items()}
    )
    indices = list(plans[1].state["frame_indices"])
    pictures = decode.decode_frames(
        data, indices, options=MediaOptions(), limits=DecodeLimits()
    ).frames
    sound = decode.decode_audio(
        data, sample_rate_hz=RATE_HZ, options=MediaOptions(), limits=DecodeLimits()
    )
    joint = dict(
        served.processor(
            text=text,
            images=[image],
            videos=[pictures],
            do_sample_frames=False,
            audio=[sound, clip],
            load_audio_from_video=True,
            audio_from_video_indices=[0, None],
            return_tensors="pt",
        )
    )
    prompt = served.encoder.expand_text(RenderedPrompt(((text, True),)), plans)
    assert prompt.input_ids.tolist() == joint["input_ids"][0].tolist()

    ours = compute_positions(info, prompt, plans)

    theirs, delta = omni_index(model, joint, use_audio_in_video=True)
    assert ours is not None
    assert np.array_equal(ours.position_ids, theirs)
    assert ours.delta == delta
