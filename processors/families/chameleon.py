"""Chameleon: its call ends every prompt with the separator that a chat answer follows."""

from typing import Any

from processors.family import FamilySpec
from processors.types import PromptEdit


def _edits(processor: Any) -> tuple[PromptEdit, ...]:  # noqa: ANN401 - a transformers processor
    """Source: `ChameleonProcessor.__call__` (transformers 5.24)."""
    if processor.return_for_text_completion:
        return ()
    return (PromptEdit("end", str(processor.tokenizer.sep_token)),)


SPEC = FamilySpec(model_types=("chameleon",), edits=_edits)
