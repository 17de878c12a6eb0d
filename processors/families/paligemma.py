"""PaliGemma: its call ends the images with BOS and the prompt with a newline."""

from typing import Any

from processors.family import FamilySpec
from processors.types import PromptEdit


def _edits(processor: Any) -> tuple[PromptEdit, ...]:  # noqa: ANN401 - a transformers processor
    """Source: `PaliGemmaProcessor.prepare_inputs_layout` (transformers 5.24)."""
    return (
        PromptEdit("after_last_media", str(processor.tokenizer.bos_token), needs_media=True),
        PromptEdit("end", "\n", needs_media=True),
    )


SPEC = FamilySpec(model_types=("paligemma",), edits=_edits)
