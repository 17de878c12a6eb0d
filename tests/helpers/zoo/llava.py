"""The LLaVA families and InternVL: tiles of CLIP and SigLIP encoders."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer, wrap_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.qwen import chatml_with
from tests.helpers.zoo.unigram import build_unigram

VICUNA = SpecialTokens(
    first=("<unk>", "<s>", "</s>"),
    last=("<image>", "<video>", "<pad>"),
    bos="<s>",
    eos="</s>",
    unk="<unk>",
    pad="<pad>",
    adds_bos=True,
)
IDS = {"image_token_id": "<image>", "image_token_index": "<image>"}
VIDEO_IDS = {"video_token_id": "<video>", "video_token_index": "<video>"}
CLIP_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
CLIP_PATCHES = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}


def llava_processor(tokenizer: Any) -> Any:
    return hf.LlavaProcessor(
        hf.CLIPImageProcessor(**CLIP_336),
        tokenizer,
        chat_template=templates.plain(image="<image>\n", start="{{ bos_token }}"),
        **CLIP_PATCHES,
    )


@family("LlavaForConditionalGeneration", image="<image>")
def llava():
    tokenizer = build_tokenizer(VICUNA)
    return llava_processor(tokenizer), small_config("llava", tokenizer, **IDS)


@family("LlavaForConditionalGeneration", image="<image>")
def llava_unigram():
    tokenizer = wrap_tokenizer(build_unigram(VICUNA.first), VICUNA)
    return llava_processor(tokenizer), small_config("llava", tokenizer, **IDS)


@family("LlavaNextForConditionalGeneration", image="<image>")
def llava_next():
    tokenizer = build_tokenizer(VICUNA)
    processor = hf.LlavaNextProcessor(
        hf.LlavaNextImageProcessor(image_grid_pinpoints=PINPOINTS, **CLIP_336),
        tokenizer,
        chat_template=templates.plain(image="<image>\n"),
        **CLIP_PATCHES,
    )
    config = small_config("llava_next", tokenizer, **IDS)
    config.image_grid_pinpoints = PINPOINTS
    return processor, config


@family("LlavaNextVideoForConditionalGeneration", image="<image>", video="<video>")
def llava_next_video():
    tokenizer = build_tokenizer(VICUNA)
    processor = hf.LlavaNextVideoProcessor(
        hf.LlavaNextVideoVideoProcessor(**CLIP_336),
        hf.LlavaNextImageProcessor(image_grid_pinpoints=PINPOINTS, **CLIP_336),
        tokenizer,
        chat_template=templates.plain(image="<image>\n", video="<video>\n"),
        **CLIP_PATCHES,
    )
    config = small_config("llava_next_video", tokenizer, **IDS, **VIDEO_IDS)
    config.image_grid_pinpoints = PINPOINTS
    return processor, config


@family("LlavaOnevisionForConditionalGeneration", image="<image>", video="<video>")
def llava_onevision():
    tokenizer = chatml_with({}, "<image>", "<video>")
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(),
        tokenizer,
        hf.LlavaOnevisionVideoProcessor(),
        num_image_tokens=729,
        vision_feature_select_strategy="full",
        chat_template=templates.turns(image="<image>\n", video="<video>\n"),
    )
    return processor, small_config("llava_onevision", tokenizer, **IDS, **VIDEO_IDS)


INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SQUARE_448 = {"height": 448, "width": 448}


@family("InternVLForConditionalGeneration", image="<IMG_CONTEXT>", video="<video>")
def internvl():
    tokenizer = chatml_with(INTERNVL_TOKENS, "<box>", "</box>", "<ref>", "</ref>")
    processor = hf.InternVLProcessor(
        hf.GotOcr2ImageProcessor(
            size=SQUARE_448, crop_to_patches=True, min_patches=1, max_patches=12, **IMAGENET
        ),
        tokenizer,
        hf.InternVLVideoProcessor(size=SQUARE_448),
        image_seq_length=256,
        chat_template=templates.turns(image="<IMG_CONTEXT>\n", video="<video>\n"),
    )
    return processor, small_config("internvl", tokenizer, image_token_id="<IMG_CONTEXT>")
