"""Model directories built from the defaults of transformers' own classes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

from processors.demo.tokenizer import SpecialTokens, build_tokenizer

_ASKED_FOR = re.compile(r"tokenizer\.(\w+_token)\b|tokenizer, ?\"(\w+_token)\"")
_WRITTEN_OUT = re.compile(r"\"(<[^\s\"{}]{1,40}>|\[[A-Z_]+\])\"")
_ROLES = (
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "sep_token",
    "mask_token",
    "cls_token",
)
_PARTS: dict[str, Any] = {
    "image_processor": IMAGE_PROCESSOR_MAPPING_NAMES,
    "video_processor": VIDEO_PROCESSOR_MAPPING_NAMES,
    "feature_extractor": FEATURE_EXTRACTOR_MAPPING_NAMES,
    "audio_processor": FEATURE_EXTRACTOR_MAPPING_NAMES,
}


def processor_names() -> dict[str, str]:
    """Return the processor class of every `model_type` that has one."""
    return dict(PROCESSOR_MAPPING_NAMES)


def build_from_defaults(model_type: str, directory: Path) -> None:
    """Write a model directory whose every part has its class's default values.

    The tokenizer is the demo BPE with the special tokens that the processor's source asks for by
    name or writes out.

    Raises one of `hf.HF_ERRORS` or OSError where the classes cannot be built so.
    """
    processor_class = getattr(transformers, PROCESSOR_MAPPING_NAMES[model_type])
    tokenizer = _tokenizer_for(processor_class)
    arguments: dict[str, Any] = {}
    for name in inspect.signature(processor_class.__init__).parameters:
        if name == "tokenizer" or (name.endswith("_tokenizer") and name != "audio_tokenizer"):
            arguments[name] = tokenizer
        elif name in _PARTS and (part := _part_class(_PARTS[name], model_type)) is not None:
            arguments[name] = part()
    processor = processor_class(**arguments)
    transformers.AutoConfig.for_model(model_type).save_pretrained(directory)
    processor.save_pretrained(directory)


def _tokenizer_for(processor_class: Any) -> Any:  # noqa: ANN401
    source = inspect.getsource(processor_class)
    asked = {name for found in _ASKED_FOR.findall(source) for name in found if name}
    named = {name: f"<|{name}|>" for name in sorted(asked) if not name.startswith("add_")}
    for role in _ROLES:
        named.pop(role, None)
    written = tuple(dict.fromkeys(_WRITTEN_OUT.findall(source)))
    tokens = SpecialTokens(
        last=written, named=named, bos="<s>", eos="</s>", pad="<pad>", unk="<unk>"
    )
    return build_tokenizer(tokens)


def _part_class(names: Any, model_type: str) -> Any:  # noqa: ANN401
    entry = names.get(model_type)
    if isinstance(entry, dict):
        entry = entry.get("torchvision") or entry.get("pil")
    return None if entry is None else getattr(transformers, entry)
