"""The model directories that other tests stand on, and the embedded demo model."""

import filecmp

import pytest
import transformers
from transformers import AutoConfig, AutoProcessor

from processors.demo import demo_model_path
from processors.demo.make import write_demo_model
from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES, available_families, build_model, make_sample

NEEDED = {
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_next", "llava_onevision",
    "internvl", "idefics3", "pixtral", "mistral3", "glm4v", "llava_unigram",
}  # fmt: skip
MAX_TOKENIZER_BYTES = 400_000


def test_demo_model_is_what_the_script_writes(tmp_path):
    """The packaged directory is the script's output, byte for byte."""
    write_demo_model(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in demo_model_path().iterdir())
    _, mismatch, errors = filecmp.cmpfiles(tmp_path, demo_model_path(), names, shallow=False)
    assert not mismatch
    assert not errors


def test_demo_model_loads_with_the_family_s_tokens():
    """Ids of config and tokenizer agree, and the vision geometry is the real one."""
    processor = AutoProcessor.from_pretrained(demo_model_path())
    config = AutoConfig.from_pretrained(demo_model_path())
    tokenizer = processor.tokenizer
    assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == config.image_token_id
    assert tokenizer.convert_tokens_to_ids("<|video_pad|>") == config.video_token_id
    images = processor.image_processor
    assert (images.patch_size, images.merge_size, images.temporal_patch_size) == (14, 2, 2)
    assert config.vision_config.tokens_per_second == 2


def test_demo_template_frames_every_part():
    """Images and videos become one framed placeholder each, in order, after a system turn."""
    processor = AutoProcessor.from_pretrained(demo_model_path())
    content = [{"type": "image"}, {"type": "text", "text": "And?"}, {"type": "video"}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>And?"
        "<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_zoo_holds_the_promised_families():
    """The families that every parity run needs are there, and many more."""
    assert set(FAMILIES) >= NEEDED
    assert len(available_families()) >= 60


@pytest.mark.parametrize("name", FAMILIES)
def test_family_loads_and_is_consistent(model_dir, name):
    """A directory loads by the auto classes, is small, and its config knows the tokenizer's ids."""
    directory = model_dir(name)
    assert hasattr(transformers, FAMILIES[name].architecture)
    assert (directory / "tokenizer.json").stat().st_size <= MAX_TOKENIZER_BYTES
    processor = AutoProcessor.from_pretrained(directory)
    config = AutoConfig.from_pretrained(directory)
    assert config.architectures == [FAMILIES[name].architecture]
    holder = getattr(config, "thinker_config", config)
    for modality in FAMILIES[name].modalities:
        token_id = getattr(holder, f"{modality}_token_id", None)
        if token_id is not None:
            assert 0 <= token_id < len(processor.tokenizer)


CALLS = [
    (name, modality)
    for name, family in FAMILIES.items()
    if family.joint_call
    for modality in family.modalities
]


@pytest.mark.parametrize(("name", "modality"), CALLS)
def test_joint_call_runs(model_dir, name, modality):
    """The call that a sample makes is one the processor accepts."""
    family = FAMILIES[name]
    processor = AutoProcessor.from_pretrained(model_dir(name))
    media = {
        Modality.IMAGE: {"images": [(140, 112)]},
        Modality.VIDEO: {"videos": [(4, 112, 84)]},
        Modality.AUDIO: {"audios": [1.0]},
    }[modality]
    sample = make_sample(family, **media)
    assert len(family.run(processor, sample)) > 0


def test_building_twice_gives_the_same_files(tmp_path):
    """Builders are deterministic, the Unigram vocabulary included."""
    for name in ("llava_unigram", "gemma3"):
        first = build_model(name, tmp_path / f"{name}-1")
        second = build_model(name, tmp_path / f"{name}-2")
        names = [path.name for path in first.iterdir()]
        assert filecmp.cmpfiles(first, second, names, shallow=False)[0] == names
