"""Mllama: cross-attention; an image keeps its one placeholder and takes no rows in the prompt.

Its call writes BOS behind the images that a prompt starts with.
"""

from typing import Any

from processors.family import FamilySpec
from processors.types import PromptEdit


def _edits(processor: Any) -> tuple[PromptEdit, ...]:  # noqa: ANN401 - a transformers processor
    """Source: `build_string_from_input` of `processing_mllama` (transformers 5.24)."""
    bos = str(processor.tokenizer.bos_token)
    return (PromptEdit("after_leading_media", bos, unless="contains"),)


SPEC = FamilySpec(model_types=("mllama",), edits=_edits, cross_attention=True)
