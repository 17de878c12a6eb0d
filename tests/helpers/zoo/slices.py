"""Families that cut an image into slices or tiles with their own framing tokens."""

from typing import Any

import transformers as hf
from transformers import AutoConfig

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from processors.types import Modality
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import set_ids, shrink, small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.qwen import chatml_with

IDEFICS = (
    "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip


@family("Idefics3ForConditionalGeneration", image="<image>", nested_images=True)
def idefics3():
    specials = SpecialTokens(
        last=(*IDEFICS, "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|pad|>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Idefics3Processor(
        hf.Idefics3ImageProcessor(),
        tokenizer,
        image_seq_len=169,
        chat_template=templates.plain(image="<image>"),
    )
    return processor, small_config("idefics3", tokenizer, image_token_id="<image>")


@family(
    "SmolVLMForConditionalGeneration",
    image="<image>",
    video="<video>",
    nested_images=True,
    alone=(Modality.VIDEO,),
)
def smolvlm():
    named = {
        "fake_image_token": "<fake_token_around_image>", "image_token": "<image>",
        "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
        "video_token": "<video>",
    }  # fmt: skip
    specials = SpecialTokens(
        last=(*IDEFICS, "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        named=named,
        bos="<|im_start|>",
        eos="<end_of_utterance>",
        pad="<|im_end|>",
    )
    tokenizer = build_tokenizer(specials)
    tile = {"max_image_size": {"longest_edge": 512}}
    processor = hf.SmolVLMProcessor(
        hf.SmolVLMImageProcessor(size={"longest_edge": 2048}, **tile),
        tokenizer,
        hf.SmolVLMVideoProcessor(size={"longest_edge": 512}, **tile),
        image_seq_len=64,
        chat_template=templates.plain(image="<image>", video="<video>"),
    )
    return processor, small_config("smolvlm", tokenizer, image_token_id="<image>")


def _llama(*tokens: str, eos: str, pad: str) -> Any:
    specials = SpecialTokens(
        last=("<|begin_of_text|>", "<|end_of_text|>", eos, pad, *tokens),
        bos="<|begin_of_text|>",
        eos=eos,
        pad=pad,
        adds_bos=True,
    )
    return build_tokenizer(specials)


@family("Llama4ForConditionalGeneration", image="<|image|>")
def llama4():
    tokenizer = _llama(
        "<|header_start|>", "<|header_end|>", "<|image|>", "<|image_start|>", "<|image_end|>",
        "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
        eos="<|eot|>", pad="<|finetune_right_pad|>",
    )  # fmt: skip
    processor = hf.Llama4Processor(
        hf.Llama4ImageProcessor(size={"height": 336, "width": 336}),
        tokenizer,
        patch_size=14,
        chat_template=templates.plain(image="<|image|>", start="{{ bos_token }}"),
    )
    config = small_config(
        "llama4",
        tokenizer,
        image_token_index="<|patch|>",
        boi_token_index="<|image_start|>",
        eoi_token_index="<|image_end|>",
    )
    config.vision_config.image_size = 336
    return processor, config


@family("MllamaForConditionalGeneration", image="<|image|>")
def mllama():
    tokenizer = _llama(
        "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|image|>",
        eos="<|eot_id|>", pad="<|finetune_right_pad_id|>",
    )  # fmt: skip
    processor = hf.MllamaProcessor(
        hf.MllamaImageProcessor(size={"height": 560, "width": 560}, max_image_tiles=4),
        tokenizer,
        chat_template=templates.plain(image="<|image|>", start="{{ bos_token }}"),
    )
    config = set_ids(AutoConfig.for_model("mllama"), tokenizer, image_token_index="<|image|>")
    config.vision_config.image_size = 560
    return processor, config


KIMI_IMAGE = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
KIMI_VIDEO = "<|kimi_k25_video_placeholder|>"


@family("Kimi_K25ForConditionalGeneration", image=KIMI_IMAGE, video=KIMI_VIDEO)
def kimi_k25():
    specials = SpecialTokens(
        last=(
            "[BOS]", "[EOS]", "[PAD]", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>",
            "<|im_system|>", "<|im_end|>", "<|media_begin|>", "<|media_content|>",
            "<|media_end|>", "<|media_pad|>", KIMI_VIDEO,
        ),
        bos="[BOS]",
        eos="[EOS]",
        pad="[PAD]",
    )  # fmt: skip
    tokenizer = build_tokenizer(specials)
    processor = hf.Kimi_K25Processor(
        hf.Kimi_K25ImageProcessor(),
        tokenizer,
        hf.Kimi_K25VideoProcessor(),
        chat_template=templates.plain(image=f"{KIMI_IMAGE}\n", video=KIMI_VIDEO),
    )
    config = set_ids(
        shrink(AutoConfig.for_model("kimi_k25")),
        tokenizer,
        image_token_id="<|media_pad|>",
        media_placeholder_token_id="<|media_pad|>",
        video_token_id=KIMI_VIDEO,
    )
    return processor, config


MINICPM = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "image_start_token": "<image>", "image_end_token": "</image>",
    "slice_start_token": "<slice>", "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
}  # fmt: skip
MINICPM_FACTS = {"image": "<|image_pad|>", "video": "<|video_pad|>", "alone": (Modality.VIDEO,)}


def _minicpm(model_type: str, processor_class: type, image_class: type, video_class: type) -> Any:
    tokenizer = chatml_with(MINICPM, "<think>", "</think>")
    processor = processor_class(
        image_class(),
        video_class(),
        tokenizer,
        chat_template=templates.turns(image="<|image_pad|>", video="<|video_pad|>"),
    )
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    config = small_config(model_type, tokenizer, **ids)
    config.vision_config.patch_size = 14
    return processor, config


@family("MiniCPMV4_6ForConditionalGeneration", **MINICPM_FACTS)
def minicpmv4_6():
    return _minicpm(
        "minicpmv4_6",
        hf.MiniCPMV4_6Processor,
        hf.MiniCPMV4_6ImageProcessor,
        hf.MiniCPMV4_6VideoProcessor,
    )


@family("MiniCPMV4_7ForConditionalGeneration", **MINICPM_FACTS)
def minicpmv4_7():
    return _minicpm(
        "minicpmv4_7",
        hf.MiniCPMV4_7Processor,
        hf.MiniCPMV4_6ImageProcessor,
        hf.MiniCPMV4_6VideoProcessor,
    )


@family("MiniCPMOcrForConditionalGeneration", **MINICPM_FACTS)
def minicpm_ocr():
    return _minicpm(
        "minicpm_ocr",
        hf.MiniCPMOcrProcessor,
        hf.MiniCPMOcrImageProcessor,
        hf.MiniCPMOcrVideoProcessor,
    )


DEEPSEEK = {
    "bos": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "eos": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "pad": "<\uff5c\u2581pad\u2581\uff5c>",
}


@family("DeepseekVLForConditionalGeneration", image="<image_placeholder>")
def deepseek_vl():
    specials = SpecialTokens(
        last=("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
        named={"image_token": "<image_placeholder>"},
        **DEEPSEEK,
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.DeepseekVLProcessor(
        hf.DeepseekVLImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image_placeholder>"),
        num_image_tokens=576,
    )
    config = small_config("deepseek_vl", tokenizer, image_token_id="<image_placeholder>")
    config.vision_config.image_size, config.vision_config.patch_size = 384, 16
    return processor, config


@family("DeepseekOcr2ForConditionalGeneration", image="<image>")
def deepseek_ocr2():
    specials = SpecialTokens(last=("<image>", "<|User|>", "<|Assistant|>"), **DEEPSEEK)
    tokenizer = build_tokenizer(specials)
    processor = hf.DeepseekOcr2Processor(
        hf.DeepseekOcr2ImageProcessor(), tokenizer, chat_template=templates.plain(image="<image>")
    )
    config = small_config("deepseek_ocr2", tokenizer, image_token_id="<image>")
    return processor, config


PHI_IMAGE, PHI_AUDIO = "<|endoftext10|>", "<|endoftext11|>"


@family("Phi4MultimodalForCausalLM", image=PHI_IMAGE, audio=PHI_AUDIO)
def phi4_multimodal():
    specials = SpecialTokens(
        last=("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        named={"image_token": PHI_IMAGE, "audio_token": PHI_AUDIO},
        bos="<|endoftext|>",
        eos="<|endoftext|>",
        pad="<|endoftext|>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Phi4MultimodalProcessor(
        hf.Phi4MultimodalImageProcessor(),
        hf.Phi4MultimodalFeatureExtractor(),
        tokenizer,
        chat_template=templates.roles(image=PHI_IMAGE, audio=PHI_AUDIO),
    )
    config = small_config("phi4_multimodal", tokenizer)
    config.vision_config.image_token_id = tokenizer.convert_tokens_to_ids(PHI_IMAGE)
    config.audio_config.audio_token_id = tokenizer.convert_tokens_to_ids(PHI_AUDIO)
    return processor, config
