"""Pixtral, Mistral 3 and Voxtral: tokens of the Mistral vocabulary at fixed ids."""

from typing import Any

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import set_ids, shrink, small_config
from tests.helpers.zoo.family import family

CONTROL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_21>", "<SPECIAL_22>", "<SPECIAL_23>",
    "[AUDIO]", "[BEGIN_AUDIO]",
)  # fmt: skip
IDS = {"image_token_id": "[IMG]", "image_token_index": "[IMG]"}


def _tokenizer() -> Any:
    specials = SpecialTokens(
        first=CONTROL, bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", adds_bos=True
    )
    return build_tokenizer(specials)


def _pixtral(tokenizer: Any, patch_size: int, merge_size: int, longest_edge: int) -> Any:
    return hf.PixtralProcessor(
        hf.PixtralImageProcessor(
            patch_size={"height": patch_size, "width": patch_size},
            size={"longest_edge": longest_edge},
        ),
        tokenizer,
        patch_size=patch_size,
        spatial_merge_size=merge_size,
        chat_template=templates.instructions(image="[IMG]"),
    )


@family("LlavaForConditionalGeneration", image="[IMG]")
def pixtral():
    tokenizer = _tokenizer()
    config = hf.LlavaConfig(vision_config=hf.PixtralVisionConfig(), text_config=hf.MistralConfig())
    return _pixtral(tokenizer, 16, 1, 1024), set_ids(shrink(config), tokenizer, **IDS)


@family("Mistral3ForConditionalGeneration", image="[IMG]")
def mistral3():
    tokenizer = _tokenizer()
    return _pixtral(tokenizer, 14, 2, 1540), small_config("mistral3", tokenizer, **IDS)


@family("VoxtralForConditionalGeneration", audio="[AUDIO]", joint_call=False)
def voxtral():
    tokenizer = _tokenizer()
    processor = hf.VoxtralProcessor(hf.WhisperFeatureExtractor(feature_size=128), tokenizer)
    return processor, small_config("voxtral", tokenizer, audio_token_id="[AUDIO]")
