"""Florence-2: its call writes the image before the prompt, and BOS and EOS around the prompt.

Here the image's placeholder stands in the prompt as everywhere; its first place is where the call
writes it. The sentences that the call puts in place of task tokens (`<CAPTION>`) are the caller's.
"""

from typing import Any

from processors.family import FamilySpec
from processors.types import PromptEdit


def _edits(processor: Any) -> tuple[PromptEdit, ...]:  # noqa: ANN401 - a transformers processor
    """Source: `Florence2Processor.prepare_inputs_layout` (transformers 5.24)."""
    tokenizer = processor.tokenizer
    return (
        PromptEdit("after_leading_media", str(tokenizer.bos_token), needs_media=True),
        PromptEdit("end", str(tokenizer.eos_token), needs_media=True),
    )


SPEC = FamilySpec(model_types=("florence2",), edits=_edits)
