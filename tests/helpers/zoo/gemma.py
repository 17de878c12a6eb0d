"""The Gemma families and PaliGemma."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family

BOI_EOI = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
BOA_EOA = {"boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>"}
SOFT_IMAGE = {"image_token": "<image_soft_token>", **BOI_EOI}
GEMMA_4 = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
GEMMA_4_IDS = {
    "image_token_id": "<|image|>", "audio_token_id": "<|audio|>", "video_token_id": "<|video|>",
    "boi_token_id": "<|image>", "eoi_token_id": "<image|>",
    "boa_token_id": "<|audio>", "eoa_token_id": "<audio|>",
}  # fmt: skip


def gemma_tokenizer(named: dict[str, str], *more: str) -> Any:
    specials = SpecialTokens(
        first=("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
        last=("<start_of_turn>", "<end_of_turn>", *more),
        named=named,
        bos="<bos>",
        eos="<eos>",
        pad="<pad>",
        unk="<unk>",
        adds_bos=True,
    )
    return build_tokenizer(specials)


def _turns(**prompts: str) -> str:
    return templates.turns(
        "<start_of_turn>",
        "<end_of_turn>",
        assistant="model",
        before="{{ bos_token }}",
        **prompts,
    )


@family("Gemma3ForConditionalGeneration", image="<start_of_image>")
def gemma3():
    tokenizer = gemma_tokenizer(SOFT_IMAGE)
    processor = hf.Gemma3Processor(
        hf.Gemma3ImageProcessor(size={"height": 896, "width": 896}),
        tokenizer,
        chat_template=_turns(image="<start_of_image>"),
        image_seq_length=256,
    )
    config = small_config(
        "gemma3",
        tokenizer,
        image_token_id="<image_soft_token>",
        image_token_index="<image_soft_token>",
        boi_token_index="<start_of_image>",
        eoi_token_index="<end_of_image>",
    )
    config.vision_config.image_size, config.vision_config.patch_size = 896, 14
    return processor, config


@family("Gemma3nForConditionalGeneration", image="<image_soft_token>", audio="<audio_soft_token>")
def gemma3n():
    tokenizer = gemma_tokenizer({**SOFT_IMAGE, "audio_token": "<audio_soft_token>", **BOA_EOA})
    processor = hf.Gemma3nProcessor(
        hf.Gemma3nAudioFeatureExtractor(),
        hf.SiglipImageProcessor(
            size={"height": 768, "width": 768},
            image_mean=[0.0] * 3,
            image_std=[1.0] * 3,
            do_normalize=False,
        ),
        tokenizer,
        chat_template=_turns(image="<image_soft_token>", audio="<audio_soft_token>"),
    )
    config = full_config(
        "gemma3n",
        tokenizer,
        image_token_id="<image_soft_token>",
        audio_token_id="<audio_soft_token>",
        boi_token_id="<start_of_image>",
        eoi_token_id="<end_of_image>",
        boa_token_id="<start_of_audio>",
        eoa_token_id="<end_of_audio>",
    )
    return processor, config


@family("Gemma4ForConditionalGeneration", image="<|image|>", video="<|video|>", audio="<|audio|>")
def gemma4():
    tokenizer = gemma_tokenizer(GEMMA_4, "<|video|>", "<|turn>", "<turn|>")
    processor = hf.Gemma4Processor(
        hf.Gemma4AudioFeatureExtractor(),
        hf.Gemma4ImageProcessor(),
        tokenizer,
        hf.Gemma4VideoProcessor(),
        chat_template=_turns(image="<|image|>", audio="<|audio|>", video="<|video|>"),
    )
    return processor, full_config("gemma4", tokenizer, **GEMMA_4_IDS)


@family(
    "Gemma4UnifiedForConditionalGeneration",
    image="<|image|>",
    video="<|video|>",
    audio="<|audio|>",
)
def gemma4_unified():
    tokenizer = gemma_tokenizer(GEMMA_4, "<|video|>", "<|turn>", "<turn|>")
    processor = hf.Gemma4UnifiedProcessor(
        hf.Gemma4UnifiedAudioFeatureExtractor(),
        hf.Gemma4UnifiedImageProcessor(),
        tokenizer,
        hf.Gemma4UnifiedVideoProcessor(),
        chat_template=_turns(image="<|image|>", audio="<|audio|>", video="<|video|>"),
    )
    return processor, full_config("gemma4_unified", tokenizer, **GEMMA_4_IDS)


@family("PaliGemmaForConditionalGeneration", image="<image>")
def paligemma():
    tokenizer = gemma_tokenizer({"image_token": "<image>"}, "<loc0000>", "<seg000>")
    images = hf.SiglipImageProcessor(size={"height": 224, "width": 224})
    images.image_seq_length = 256
    processor = hf.PaliGemmaProcessor(
        images, tokenizer, chat_template=templates.plain(image="<image>")
    )
    ids = {"image_token_id": "<image>", "image_token_index": "<image>"}
    return processor, small_config("paligemma", tokenizer, **ids)


@family("EmbeddingGemma2Model", image="<|image|>", video="<|video|>", audio="<|audio|>")
def embedding_gemma2():
    tokenizer = gemma_tokenizer(GEMMA_4, "<|video|>", "<|turn>", "<turn|>")
    processor = hf.EmbeddingGemma2Processor(
        hf.Gemma4AudioFeatureExtractor(),
        hf.Gemma4ImageProcessor(),
        tokenizer,
        hf.EmbeddingGemma2VideoProcessor(),
    )
    return processor, full_config("embedding_gemma2", tokenizer, **GEMMA_4_IDS)
