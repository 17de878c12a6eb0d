"""Molmo 2: patches are rows, and column separators stand between them; prompts start with BOS."""

from typing import Any

from processors.family import FamilySpec
from processors.types import Modality, PromptEdit


def _edits(processor: Any) -> tuple[PromptEdit, ...]:  # noqa: ANN401 - a transformers processor
    """Source: `Molmo2Processor.__call__` (transformers 5.24)."""
    tokenizer = processor.tokenizer
    return (PromptEdit("start", str(tokenizer.bos_token or tokenizer.eos_token), unless="starts"),)


SPEC = FamilySpec(
    model_types=("molmo2",),
    row_tokens={Modality.IMAGE: "<im_patch>", Modality.VIDEO: "<im_patch>"},
    edits=_edits,
    tables=frozenset({"image_grids", "video_grids"}),
    row_numbers={
        "image_token_pooling": "pixel_values",
        "video_token_pooling": "pixel_values_videos",
    },
)
