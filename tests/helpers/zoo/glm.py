"""The GLM families."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family

IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
AUDIO = "<|begin_of_audio|><|pad|><|end_of_audio|>"
TOKENS = SpecialTokens(
    last=(
        "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
        "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>",
        "<|end_of_video|>", "<|image|>", "<|video|>",
    ),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
)  # fmt: skip
IDS = {
    "image_token_id": "<|image|>", "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>",
}  # fmt: skip


def _glm(model_type: str, processor_class: type, image_class: type, video_class: type) -> Any:
    tokenizer = build_tokenizer(TOKENS)
    processor = processor_class(
        image_class(),
        tokenizer,
        video_class(),
        chat_template=templates.roles(image=IMAGE, video=VIDEO, start="[gMASK]<sop>"),
    )
    return processor, small_config(model_type, tokenizer, **IDS)


GLM_4V = (hf.Glm4vProcessor, hf.Glm4vImageProcessor, hf.Glm4vVideoProcessor)
GLM_46V = (hf.Glm46VProcessor, hf.Glm46VImageProcessor, hf.Glm46VVideoProcessor)


@family("Glm4vForConditionalGeneration", image=IMAGE, video=VIDEO)
def glm4v():
    return _glm("glm4v", *GLM_4V)


@family("Glm4vMoeForConditionalGeneration", image=IMAGE, video=VIDEO)
def glm4v_moe():
    return _glm("glm4v_moe", *GLM_4V)


@family("Glm46VForConditionalGeneration", image=IMAGE, video=VIDEO)
def glm46v():
    return _glm("glm46v", *GLM_46V)


@family("Glm5NextForConditionalGeneration", image=IMAGE, video=VIDEO)
def glm5_next():
    tokenizer = build_tokenizer(TOKENS)
    processor = hf.Glm5NextProcessor(
        hf.Glm5NextImageProcessor(),
        tokenizer,
        hf.Glm5NextVideoProcessor(),
        chat_template=templates.roles(image=IMAGE, video=VIDEO, start="[gMASK]<sop>"),
    )
    return processor, full_config("glm5_next", tokenizer, **IDS)


@family("GlmOcrForConditionalGeneration", image=IMAGE, video=VIDEO)
def glm_ocr():
    return _glm("glm_ocr", *GLM_46V)


@family("GlmAsrForConditionalGeneration", audio=AUDIO, listed_text=True)
def glmasr():
    specials = SpecialTokens(
        last=(
            "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|begin_of_audio|>",
            "<|end_of_audio|>", "<|pad|>",
        ),
        eos="<|endoftext|>",
        pad="<|endoftext|>",
    )  # fmt: skip
    tokenizer = build_tokenizer(specials)
    processor = hf.GlmAsrProcessor(
        hf.WhisperFeatureExtractor(feature_size=128),
        tokenizer,
        chat_template=templates.roles(audio=AUDIO),
    )
    return processor, small_config("glmasr", tokenizer, audio_token_id="<|pad|>")
