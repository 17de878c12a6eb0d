"""Write the embedded demo model directory: `python -m processors.demo.make [DIRECTORY]`.

Everything comes from transformers' own classes and a small tokenizer trained on the demo corpus, so
nothing is downloaded and the result is the same on every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from processors.demo import demo_model_path
from processors.demo.tokenizer import SpecialTokens, build_tokenizer

MIN_PIXELS = 56 * 56
MAX_PIXELS = 1280 * 28 * 28
"""transformers' own default and the family's advice for serving: at most 1,280 tokens an image."""

VISION_GEOMETRY = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}

QWEN_SPECIALS = SpecialTokens(
    last=(
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
        "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
        "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    ),
    plain=(
        "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    ),
    eos="<|im_end|>",
    pad="<|endoftext|>",
)  # fmt: skip

CHAT_TEMPLATE = """\
{%- set seen = namespace(images=0, videos=0) -%}
{%- if messages and messages[0].role != 'system' -%}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{{ '' }}
{%- endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ '' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{%- set seen.images = seen.images + 1 -%}
{%- if add_vision_id -%}Picture {{ seen.images }}: {% endif -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}
{%- set seen.videos = seen.videos + 1 -%}
{%- if add_vision_id -%}Video {{ seen.videos }}: {% endif -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{{ '' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{{ '' }}
{%- endif -%}
"""


def build_processor() -> Qwen2_5_VLProcessor:
    """Return the demo model's processor: real vision geometry, small tokenizer."""
    size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=dict(size), **VISION_GEOMETRY),
        build_tokenizer(QWEN_SPECIALS, nfc=True),
        Qwen2VLVideoProcessor(size=dict(size), **VISION_GEOMETRY),
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Return the demo model's config: real vision geometry and positions, two layers deep."""

    def token_id(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": token_id("<|im_end|>"),
        "pad_token_id": token_id("<|endoftext|>"),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000000.0,
            "mrope_section": [16, 24, 24],
        },
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 160,
        "num_heads": 2,
        "intermediate_size": 320,
        "out_hidden_size": 256,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }
    return Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        dtype="bfloat16",
        text_config=text,
        vision_config=vision,
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        eos_token_id=token_id("<|im_end|>"),
        pad_token_id=token_id("<|endoftext|>"),
    )


def write_demo_model(directory: Path) -> None:
    """Write the demo model's files into a directory, which is made if it does not exist."""
    processor = build_processor()
    build_config(processor.tokenizer).save_pretrained(directory)
    processor.save_pretrained(directory)


if __name__ == "__main__":
    write_demo_model(Path(sys.argv[1]) if len(sys.argv) > 1 else demo_model_path())
