"""Encoders of images and text side by side: no placeholder stands in the text."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from processors.types import Modality
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.gemma import gemma_tokenizer


def _tokenizer() -> Any:
    specials = SpecialTokens(
        bos="<|startoftext|>", eos="<|endoftext|>", pad="<|endoftext|>", unk="<|endoftext|>"
    )
    return build_tokenizer(specials)


@family("CLIPModel", image="")
def clip():
    tokenizer = _tokenizer()
    return hf.CLIPProcessor(hf.CLIPImageProcessor(), tokenizer), small_config("clip", tokenizer)


@family("SiglipModel", image="")
def siglip():
    tokenizer = _tokenizer()
    processor = hf.SiglipProcessor(hf.SiglipImageProcessor(), tokenizer)
    return processor, small_config("siglip", tokenizer)


@family("Siglip2Model", image="")
def siglip2():
    tokenizer = gemma_tokenizer({})
    processor = hf.Siglip2Processor(hf.Siglip2ImageProcessor(), tokenizer)
    return processor, small_config("siglip2", tokenizer)


@family("Blip2ForConditionalGeneration", image="", max_items={Modality.IMAGE: 1})
def blip_2():
    tokenizer = _tokenizer()
    processor = hf.Blip2Processor(hf.BlipImageProcessor(), tokenizer, num_query_tokens=32)
    return processor, full_config("blip-2", tokenizer, image_token_index="<image>")
