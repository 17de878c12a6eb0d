"""More families that see an image as one square or as several square tiles."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from processors.types import Modality
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.qwen import chatml_with

IMAGE_ID = {"image_token_id": "<image>"}


@family("Step3p7ForConditionalGeneration", image="<im_patch>")
def step3p7():
    tokenizer = chatml_with(
        {},
        "<im_patch>",
        "<im_start>",
        "<im_end>",
        "<patch_start>",
        "<patch_end>",
        "<patch_newline>",
    )
    processor = hf.Step3p7Processor(
        hf.Step3p7ImageProcessor(), tokenizer, chat_template=templates.turns(image="<im_patch>")
    )
    return processor, full_config("step3p7", tokenizer, image_token_id="<im_patch>")


@family("Lfm2VlForConditionalGeneration", image="<image>", nested_images=True)
def lfm2_vl():
    named = {
        "image_token": "<image>",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail_token": "<|img_thumbnail|>",
    }
    cells = [f"<|img_row_{r}_col_{c}|>" for r in range(1, 11) for c in range(1, 11)]
    tokenizer = chatml_with(named, *cells)
    processor = hf.Lfm2VlProcessor(
        hf.Lfm2VlImageProcessor(), tokenizer, chat_template=templates.turns(image="<image>")
    )
    return processor, full_config("lfm2_vl", tokenizer, **IMAGE_ID)


COHERE = {
    "image_token": "<|IMG_PATCH|>",
    "boi_token": "<|START_OF_IMG|>",
    "eoi_token": "<|END_OF_IMG|>",
    "img_line_break_token": "<|IMG_LINE_BREAK|>",
}


def _cohere_tokenizer(named: dict[str, str], *more: str) -> Any:
    specials = SpecialTokens(
        first=("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>"),
        last=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", *more),
        named=named,
        bos="<BOS_TOKEN>",
        eos="<EOS_TOKEN>",
        pad="<PAD>",
        unk="<UNK>",
        adds_bos=True,
    )
    return build_tokenizer(specials)


@family("Cohere2VisionForConditionalGeneration", image="<|IMG_PATCH|>")
def cohere2_vision():
    tokenizer = _cohere_tokenizer(COHERE)
    processor = hf.Cohere2VisionProcessor(
        hf.Cohere2VisionImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<|IMG_PATCH|>", start="{{ bos_token }}"),
    )
    return processor, full_config("cohere2_vision", tokenizer, image_token_id="<|IMG_PATCH|>")


@family("AyaVisionForConditionalGeneration", image="<image>")
def aya_vision():
    tokenizer = _cohere_tokenizer(
        {}, "<image>", *COHERE.values(), "TILE_GLOBAL", *(f"TILE_{i}" for i in range(1, 13))
    )
    processor = hf.AyaVisionProcessor(
        hf.GotOcr2ImageProcessor(
            size={"height": 364, "width": 364}, crop_to_patches=True, min_patches=1, max_patches=12
        ),
        tokenizer,
        patch_size=14,
        img_size=364,
        downsample_factor=2,
        chat_template=templates.plain(image="<image>", start="{{ bos_token }}"),
    )
    return processor, full_config("aya_vision", tokenizer, image_token_id="<|IMG_PATCH|>")


@family("Granite4VisionForConditionalGeneration", image="<image>")
def granite4_vision():
    specials = SpecialTokens(
        last=("<image>", "<|start_of_role|>", "<|end_of_role|>"),
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
        pad="<|pad|>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Granite4VisionProcessor(
        hf.LlavaNextImageProcessor(
            size={"shortest_edge": 384},
            crop_size={"height": 384, "width": 384},
            image_grid_pinpoints=[[384, 384], [384, 768], [768, 384], [768, 768]],
        ),
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        chat_template=templates.plain(image="<image>\n"),
    )
    return processor, full_config("granite4_vision", tokenizer, **IMAGE_ID)


@family("JanusForConditionalGeneration", image="<image_placeholder>")
def janus():
    named = {
        "image_token": "<image_placeholder>",
        "boi_token": "<begin_of_image>",
        "eoi_token": "<end_of_image>",
    }
    specials = SpecialTokens(
        named=named, bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>", eos="<eos>", pad="<pad>"
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.JanusProcessor(
        hf.JanusImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image_placeholder>\n"),
    )
    return processor, full_config("janus", tokenizer, image_token_id="<image_placeholder>")


@family("AriaForConditionalGeneration", image="<|img|>")
def aria():
    specials = SpecialTokens(
        first=("<unk>", "<s>", "</s>"),
        last=("<fim_prefix>", "<fim_suffix>"),
        named={"image_token": "<|img|>"},
        bos="<s>",
        eos="</s>",
        pad="<unk>",
        unk="<unk>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.AriaProcessor(
        hf.AriaImageProcessor(),
        tokenizer,
        size_conversion={490: 128, 980: 256},
        chat_template=templates.plain(image="<fim_prefix><|img|><fim_suffix>"),
    )
    ids = {"image_token_id": "<|img|>", "image_token_index": "<|img|>"}
    return processor, full_config("aria", tokenizer, **ids)


@family("Ovis2ForConditionalGeneration", image="<image>")
def ovis2():
    tokenizer = chatml_with(
        {}, "<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>",
        "<IMG_END>",
    )  # fmt: skip
    processor = hf.Ovis2Processor(
        hf.Ovis2ImageProcessor(size={"height": 448, "width": 448}, crop_to_patches=True),
        tokenizer,
        chat_template=templates.turns(image="<image>\n"),
    )
    return processor, full_config("ovis2", tokenizer, **IMAGE_ID)


@family("PerceptionLMForConditionalGeneration", image="<|image|>", video="<|video|>")
def perception_lm():
    named = {"image_token": "<|image|>", "video_token": "<|video|>"}
    specials = SpecialTokens(
        named=named, bos="<|begin_of_text|>", eos="<|end_of_text|>", pad="<|pad|>", adds_bos=True
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.PerceptionLMProcessor(
        hf.PerceptionLMVideoProcessor(),
        hf.PerceptionLMImageProcessor(),
        tokenizer,
        patch_size=14,
        chat_template=templates.plain(
            image="<|image|>", video="<|video|>", start="{{ bos_token }}"
        ),
    )
    ids = {"image_token_id": "<|image|>", "video_token_id": "<|video|>"}
    return processor, full_config("perception_lm", tokenizer, **ids)


@family("GotOcr2ForConditionalGeneration", image="<imgpad>")
def got_ocr2():
    tokenizer = chatml_with({}, "<img>", "</img>", "<imgpad>")
    processor = hf.GotOcr2Processor(
        hf.GotOcr2ImageProcessor(size={"height": 1024, "width": 1024}),
        tokenizer,
        chat_template=templates.turns(image="<img><imgpad></img>"),
    )
    return processor, full_config("got_ocr2", tokenizer, image_token_id="<imgpad>")


@family("Idefics2ForConditionalGeneration", image="<image>", nested_images=True)
def idefics2():
    specials = SpecialTokens(
        first=("<unk>", "<s>", "</s>"),
        last=("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
        bos="<s>",
        eos="</s>",
        pad="<unk>",
        adds_bos=True,
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Idefics2Processor(
        hf.Idefics2ImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image>"),
    )
    return processor, small_config("idefics2", tokenizer, **IMAGE_ID)


@family("VideoLlavaForConditionalGeneration", image="<image>", video="<video>")
def video_llava():
    specials = SpecialTokens(
        first=("<unk>", "<s>", "</s>"),
        named={"image_token": "<image>", "video_token": "<video>"},
        bos="<s>",
        eos="</s>",
        pad="<unk>",
        adds_bos=True,
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.VideoLlavaProcessor(
        hf.VideoLlavaImageProcessor(),
        hf.VideoLlavaVideoProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image>\n", video="<video>\n"),
    )
    ids = {"image_token_id": "<image>", "video_token_id": "<video>"}
    return processor, small_config("video_llava", tokenizer, **ids)


@family("DeepseekVLHybridForConditionalGeneration", image="<image_placeholder>")
def deepseek_vl_hybrid():
    specials = SpecialTokens(
        named={"image_token": "<image_placeholder>"}, bos="<bos>", eos="<eos>", pad="<pad>"
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.DeepseekVLHybridProcessor(
        hf.DeepseekVLHybridImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image_placeholder>"),
    )
    config = full_config("deepseek_vl_hybrid", tokenizer, image_token_id="<image_placeholder>")
    return processor, config


@family(
    "Florence2ForConditionalGeneration",
    image="",
    written="<image>",
    max_items={Modality.IMAGE: 1},
)
def florence2():
    specials = SpecialTokens(
        first=("<s>", "<pad>", "</s>", "<unk>"),
        named={"image_token": "<image>"},
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        unk="<unk>",
        adds_bos=True,
    )
    tokenizer = build_tokenizer(specials)
    images = hf.CLIPImageProcessor(
        size={"height": 768, "width": 768}, crop_size={"height": 768, "width": 768}
    )
    images.image_seq_length = 577
    processor = hf.Florence2Processor(images, tokenizer)
    return processor, full_config("florence2", tokenizer, **IMAGE_ID)


@family("UnlimitedOcrForConditionalGeneration", image="<image>")
def unlimited_ocr():
    specials = SpecialTokens(last=("<image>",), bos="<bos>", eos="<eos>", pad="<pad>")
    tokenizer = build_tokenizer(specials)
    processor = hf.UnlimitedOcrProcessor(
        hf.UnlimitedOcrImageProcessor(), tokenizer, chat_template=templates.plain(image="<image>")
    )
    return processor, full_config("unlimited_ocr", tokenizer, **IMAGE_ID)


@family("QianfanOCRForConditionalGeneration", image="<image>")
def qianfan_ocr():
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
    }
    tokenizer = chatml_with(named, "<image>")
    processor = hf.QianfanOCRProcessor(
        hf.GotOcr2ImageProcessor(
            size={"height": 448, "width": 448}, crop_to_patches=True, min_patches=1, max_patches=12
        ),
        tokenizer,
        chat_template=templates.turns(image="<image>\n"),
    )
    return processor, full_config("qianfan_ocr", tokenizer, image_token_id="<IMG_CONTEXT>")


@family("Molmo2ForConditionalGeneration", image="<|image|>", video="<|video|>")
def molmo2():
    tokenizer = chatml_with(
        {}, "<|image|>", "<|video|>", "<im_patch>", "<im_col>", "<im_start>",
        "<low_res_im_start>", "<frame_start>", "<im_end>", "<frame_end>", "<im_low>",
    )  # fmt: skip
    processor = hf.Molmo2Processor(
        hf.Molmo2ImageProcessor(),
        hf.Molmo2VideoProcessor(),
        tokenizer,
        chat_template=templates.turns(image="<|image|>", video="<|video|>"),
    )
    return processor, full_config("molmo2", tokenizer, image_patch_id="<im_patch>")


@family("ChameleonForConditionalGeneration", image="<image>")
def chameleon():
    specials = SpecialTokens(
        first=("<s>", "<pad>", "</s>", "<unk>"),
        last=("<racm3:break>", "<eoss>", "<image>", "<reserved08706>"),
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        unk="<unk>",
        adds_bos=True,
    )
    tokenizer = build_tokenizer(specials, sep_token="<reserved08706>")
    processor = hf.ChameleonProcessor(hf.ChameleonImageProcessor(), tokenizer)
    return processor, full_config("chameleon", tokenizer, image_token_id="<image>")
