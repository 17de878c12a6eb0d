"""The Qwen families and those that share their image processor."""

from typing import Any

import transformers as hf
from transformers import AutoConfig

from processors.demo import make
from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, set_ids, shrink, small_config
from tests.helpers.zoo.family import family

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PATCH_16 = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, **HALF}


def chatml_tokenizer() -> Any:
    return build_tokenizer(make.QWEN_SPECIALS, nfc=True)


def chatml_with(named: dict[str, str], *more: str) -> Any:
    """A Qwen tokenizer with named tokens and others of a relative."""
    qwen = make.QWEN_SPECIALS
    specials = SpecialTokens(
        last=(*qwen.last, *more), plain=qwen.plain, named=named, eos=qwen.eos, pad=qwen.pad
    )
    return build_tokenizer(specials, nfc=True)


@family("Qwen2VLForConditionalGeneration", image=IMAGE, video=VIDEO)
def qwen2_vl():
    tokenizer = chatml_tokenizer()
    processor = hf.Qwen2VLProcessor(
        hf.Qwen2VLImageProcessor(),
        tokenizer,
        hf.Qwen2VLVideoProcessor(),
        chat_template=templates.turns(image=IMAGE, video=VIDEO),
    )
    return processor, small_config("qwen2_vl", tokenizer, **IDS)


@family("Qwen2_5_VLForConditionalGeneration", image=IMAGE, video=VIDEO)
def qwen2_5_vl():
    processor = make.build_processor()
    return processor, make.build_config(processor.tokenizer)


def _qwen3(model_type: str):
    tokenizer = chatml_tokenizer()
    size = {"shortest_edge": 65536, "longest_edge": 16777216}
    processor = hf.Qwen3VLProcessor(
        hf.Qwen2VLImageProcessor(size=size, **PATCH_16),
        tokenizer,
        hf.Qwen3VLVideoProcessor(**PATCH_16),
        chat_template=templates.turns(image=IMAGE, video=VIDEO),
    )
    return processor, small_config(model_type, tokenizer, **IDS)


@family("Qwen3VLForConditionalGeneration", image=IMAGE, video=VIDEO)
def qwen3_vl():
    return _qwen3("qwen3_vl")


@family("Qwen3VLMoeForConditionalGeneration", image=IMAGE, video=VIDEO)
def qwen3_vl_moe():
    return _qwen3("qwen3_vl_moe")


@family("Qwen3_5ForConditionalGeneration", image=IMAGE, video=VIDEO)
def qwen3_5():
    return _qwen3("qwen3_5")


AUDIO = "<|audio_bos|><|AUDIO|><|audio_eos|>"


@family("Qwen2AudioForConditionalGeneration", audio=AUDIO)
def qwen2_audio():
    tokenizer = chatml_with({}, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
    processor = hf.Qwen2AudioProcessor(
        hf.WhisperFeatureExtractor(feature_size=128),
        tokenizer,
        chat_template=templates.turns(audio=f"{AUDIO}\n"),
    )
    ids = {"audio_token_id": "<|AUDIO|>", "audio_token_index": "<|AUDIO|>"}
    return processor, small_config("qwen2_audio", tokenizer, **ids)


@family("Qwen3ASRForConditionalGeneration", audio="<|audio_start|><|audio_pad|><|audio_end|>")
def qwen3_asr():
    named = {
        "audio_token": "<|audio_pad|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    tokenizer = chatml_with(named, "<asr_text>")
    audio = "<|audio_start|><|audio_pad|><|audio_end|>"
    processor = hf.Qwen3ASRProcessor(
        hf.Qwen3ASRFeatureExtractor(), tokenizer, chat_template=templates.turns(audio=audio)
    )
    return processor, small_config("qwen3_asr", tokenizer, audio_token_id="<|audio_pad|>")


OMNI_2_5 = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
OMNI_3 = {
    "image_token": "<|image_pad|>", "audio_token": "<|audio_pad|>", "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip


def _omni_prompts(named: dict[str, str]) -> dict[str, str]:
    return {
        kind: named[f"{frame}_bos_token"] + named[f"{kind}_token"] + named[f"{frame}_eos_token"]
        for kind, frame in (("image", "vision"), ("video", "vision"), ("audio", "audio"))
    }


def _omni(model_type: str, processor_class: type, named: dict[str, str], **geometry: Any):
    tokenizer = chatml_with(named)
    processor = processor_class(
        hf.Qwen2VLImageProcessor(**geometry),
        hf.Qwen2VLVideoProcessor(**geometry),
        hf.WhisperFeatureExtractor(feature_size=128, n_samples=4_800_000, chunk_length=300),
        tokenizer,
        chat_template=templates.turns(**_omni_prompts(named)),
    )
    config = shrink(AutoConfig.for_model(model_type))
    set_ids(config.thinker_config, tokenizer)
    for kind in ("image", "video", "audio"):
        for key in (f"{kind}_token_id", f"{kind}_token_index"):
            if hasattr(config.thinker_config, key):
                token_id = tokenizer.convert_tokens_to_ids(named[f"{kind}_token"])
                setattr(config.thinker_config, key, token_id)
    frames = {
        "vision_start_token_id": "vision_bos_token", "vision_end_token_id": "vision_eos_token",
        "audio_start_token_id": "audio_bos_token", "audio_end_token_id": "audio_eos_token",
    }  # fmt: skip
    for key, token in frames.items():
        if hasattr(config.thinker_config, key):
            token_id = tokenizer.convert_tokens_to_ids(named[token])
            setattr(config.thinker_config, key, token_id)
    return processor, config


@family("Qwen2_5OmniForConditionalGeneration", **_omni_prompts(OMNI_2_5))
def qwen2_5_omni():
    return _omni("qwen2_5_omni", hf.Qwen2_5OmniProcessor, OMNI_2_5)


@family("Qwen3OmniMoeForConditionalGeneration", **_omni_prompts(OMNI_3))
def qwen3_omni_moe():
    return _omni("qwen3_omni_moe", hf.Qwen3OmniMoeProcessor, OMNI_3, **PATCH_16)


@family("ColQwen2ForRetrieval", image="", joint_call=False)
def colqwen2():
    tokenizer = chatml_tokenizer()
    processor = hf.ColQwen2Processor(hf.Qwen2VLImageProcessor(), tokenizer)
    return processor, full_config("colqwen2", tokenizer)
