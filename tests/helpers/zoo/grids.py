"""Families of native-resolution patches that are not Qwen's or GLM's own."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.qwen import IDS, IMAGE, VIDEO, chatml_tokenizer, chatml_with

METADATA = {"video_call": {"return_metadata": True}}
"""These keep a video's metadata only when told to, and fail without it."""

ERNIE = {
    "image_token": "<|IMAGE_PLACEHOLDER|>", "video_token": "<|VIDEO_PLACEHOLDER|>",
    "image_start_token": "<|IMAGE_START|>", "image_end_token": "<|IMAGE_END|>",
    "video_start_token": "<|VIDEO_START|>", "video_end_token": "<|VIDEO_END|>",
}  # fmt: skip
ERNIE_IMAGE = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
ERNIE_VIDEO = "<|VIDEO_START|><|VIDEO_PLACEHOLDER|><|VIDEO_END|>"


@family("Ernie4_5_VLMoeForConditionalGeneration", image=ERNIE_IMAGE, video=ERNIE_VIDEO)
def ernie4_5_vl_moe():
    specials = SpecialTokens(
        first=("<unk>", "<s>", "</s>"), named=ERNIE, bos="<s>", eos="</s>", pad="<unk>"
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Ernie4_5_VLMoeProcessor(
        hf.Ernie4_5_VLMoeImageProcessor(),
        tokenizer,
        hf.Ernie4_5_VLMoeVideoProcessor(draw_on_frames=False),
        chat_template=templates.plain(
            image=ERNIE_IMAGE, video=ERNIE_VIDEO, start="{{ bos_token }}"
        ),
    )
    ids = {f"{key}_id": token for key, token in ERNIE.items()}
    return processor, small_config("ernie4_5_vl_moe", tokenizer, **ids)


PADDLE_IMAGE = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"


@family("PaddleOCRVLForConditionalGeneration", image=PADDLE_IMAGE)
def paddleocr_vl():
    specials = SpecialTokens(
        first=("<unk>", "<s>", "</s>"),
        last=("<|IMAGE_START|>", "<|IMAGE_END|>"),
        named={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        bos="<s>",
        eos="</s>",
        pad="<unk>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.PaddleOCRVLProcessor(
        hf.PaddleOCRVLImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image=PADDLE_IMAGE, start="{{ bos_token }}"),
    )
    ids = {
        "image_token_id": "<|IMAGE_PLACEHOLDER|>",
        "vision_start_token_id": "<|IMAGE_START|>",
        "vision_end_token_id": "<|IMAGE_END|>",
    }
    return processor, small_config("paddleocr_vl", tokenizer, **ids)


LIGHTON = {
    "image_token": "<|image_pad|>",
    "image_break_token": "<|vision_pad|>",
    "image_end_token": "<|vision_end|>",
}


@family("LightOnOcrForConditionalGeneration", image="<|image_pad|>")
def lighton_ocr():
    tokenizer = chatml_with(LIGHTON)
    processor = hf.LightOnOcrProcessor(
        hf.PixtralImageProcessor(
            patch_size={"height": 14, "width": 14}, size={"longest_edge": 1540}
        ),
        tokenizer,
        patch_size=14,
        spatial_merge_size=2,
        chat_template=templates.turns(image="<|image_pad|>"),
    )
    return processor, small_config("lighton_ocr", tokenizer, image_token_id="<|image_pad|>")


@family("VideoLlama3ForConditionalGeneration", image="<|image_pad|>", video="<|video_pad|>")
def video_llama_3():
    tokenizer = chatml_tokenizer()
    processor = hf.VideoLlama3Processor(
        hf.VideoLlama3ImageProcessor(),
        tokenizer,
        hf.VideoLlama3VideoProcessor(),
        chat_template=templates.turns(image="<|image_pad|>", video="<|video_pad|>"),
    )
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    return processor, small_config("video_llama_3", tokenizer, **ids)


@family("Exaone4_5_ForConditionalGeneration", image=IMAGE, video=VIDEO)
def exaone4_5():
    tokenizer = chatml_tokenizer()
    processor = hf.Exaone4_5_Processor(
        hf.Qwen2VLImageProcessor(),
        tokenizer,
        hf.Qwen2VLVideoProcessor(),
        chat_template=templates.turns(image=IMAGE, video=VIDEO),
    )
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    return processor, full_config("exaone4_5", tokenizer, **ids)


def _qwen3_like(
    model_type: str, processor_class: type, image_class: type, video_class: type
) -> Any:
    tokenizer = chatml_tokenizer()
    processor = processor_class(
        image_class(),
        tokenizer,
        video_class(),
        chat_template=templates.turns(image=IMAGE, video=VIDEO),
    )
    return processor, full_config(model_type, tokenizer, **IDS)


@family("Cosmos3EdgeForConditionalGeneration", image=IMAGE, video=VIDEO, **METADATA)
def cosmos3_edge():
    return _qwen3_like(
        "cosmos3_edge",
        hf.Cosmos3EdgeProcessor,
        hf.Cosmos3EdgeImageProcessor,
        hf.Cosmos3EdgeVideoProcessor,
    )


@family("Lfm3VlForConditionalGeneration", image=IMAGE, video=VIDEO)
def lfm3_vl():
    return _qwen3_like(
        "lfm3_vl", hf.Lfm3VlProcessor, hf.Qwen2VLImageProcessor, hf.Qwen3VLVideoProcessor
    )


MINIMAX_IMAGE = "]<]image[>["
MINIMAX_VIDEO = "]<]video[>["


@family("MiniMaxM3SparseForConditionalGeneration", image=MINIMAX_IMAGE, video=MINIMAX_VIDEO)
def minimax_m3_vl():
    kind = hf.MiniMaxM3VLProcessor
    tokenizer = chatml_with(
        {}, kind.IMAGE_TOKEN, kind.VIDEO_TOKEN, kind.VISION_START_TOKEN, kind.VISION_END_TOKEN
    )
    processor = kind(
        hf.MiniMaxM3VLImageProcessor(),
        tokenizer,
        hf.MiniMaxM3VLVideoProcessor(),
        chat_template=templates.turns(image=kind.IMAGE_TOKEN, video=kind.VIDEO_TOKEN),
    )
    ids = {"image_token_id": kind.IMAGE_TOKEN, "video_token_id": kind.VIDEO_TOKEN}
    return processor, full_config("minimax_m3_vl", tokenizer, **ids)


@family("HunYuanVLForConditionalGeneration", image="<img><|image_pad|></img>")
def hunyuan_vl():
    named = {
        "image_token": "<|image_pad|>", "image_start_token": "<img>", "image_end_token": "</img>",
    }  # fmt: skip
    tokenizer = chatml_with(named)
    processor = hf.HunYuanVLProcessor(
        hf.HunYuanVLImageProcessor(),
        tokenizer,
        chat_template=templates.turns(image="<img><|image_pad|></img>"),
    )
    ids = {f"{key}_id": token for key, token in named.items()}
    return processor, full_config("hunyuan_vl", tokenizer, **ids)


MUSE_IMAGE, MUSE_VIDEO = "<|patch|>", "<|video|>"


@family("MuseGlimmerForConditionalGeneration", image=MUSE_IMAGE, video=MUSE_VIDEO, **METADATA)
def muse_glimmer():
    tokenizer = chatml_with(
        {}, "<|patch|>", "<|image_start|>", "<|image_end|>", "<|video|>",
        "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>",
    )  # fmt: skip
    processor = hf.MuseGlimmerProcessor(
        hf.MuseGlimmerImageProcessor(),
        hf.MuseGlimmerVideoProcessor(),
        tokenizer,
        chat_template=templates.turns(image=MUSE_IMAGE, video=MUSE_VIDEO),
    )
    ids = {"image_token_id": MUSE_IMAGE, "video_token_id": MUSE_VIDEO}
    return processor, full_config("muse_glimmer", tokenizer, **ids)


@family("HyperCLOVAXVisionV2ForConditionalGeneration", image=IMAGE, video=VIDEO)
def hyperclovax_vision_v2():
    return _qwen3_like(
        "hyperclovax_vision_v2",
        hf.HyperCLOVAXVisionV2Processor,
        hf.Qwen2VLImageProcessor,
        hf.Qwen2VLVideoProcessor,
    )


HY_IMAGE, HY_VIDEO = "<|image_pad|>", "<|video_pad|>"


@family("HYV4VLForConditionalGeneration", image=HY_IMAGE, video=HY_VIDEO)
def hy_v4_vl():
    named = {"image_token": HY_IMAGE, "video_token": HY_VIDEO}
    tokenizer = chatml_with(named)
    processor = hf.HYV4VLProcessor(
        hf.HYV4VLImageProcessor(),
        tokenizer,
        hf.HYV4VLVideoProcessor(),
        chat_template=templates.turns(image=HY_IMAGE, video=HY_VIDEO),
    )
    ids = {"image_token_id": HY_IMAGE, "video_token_id": HY_VIDEO}
    return processor, full_config("hy_v4_vl", tokenizer, **ids)


COMPASS_IMAGE = "<|VISION_START|><|IMAGE_PAD|><|VISION_END|>"
COMPASS_VIDEO = "<|VISION_START|><|VIDEO_PAD|><|VISION_END|>"


@family("CohereCompassForConditionalGeneration", image=COMPASS_IMAGE, video=COMPASS_VIDEO)
def cohere_compass():
    tokenizer = chatml_with(
        {}, "<|VISION_START|>", "<|VISION_END|>", "<|IMAGE_PAD|>", "<|VIDEO_PAD|>"
    )
    processor = hf.CohereCompassProcessor(
        hf.CohereCompassImageProcessor(),
        tokenizer,
        hf.CohereCompassVideoProcessor(),
        chat_template=templates.turns(image=COMPASS_IMAGE, video=COMPASS_VIDEO),
    )
    ids = {"image_token_id": "<|IMAGE_PAD|>", "video_token_id": "<|VIDEO_PAD|>"}
    return processor, full_config("cohere_compass", tokenizer, **ids)
