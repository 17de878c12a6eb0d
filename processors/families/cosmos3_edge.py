"""Cosmos 3 Edge: a video takes the place of its vision frame too, and brings frames of its own."""

from processors.family import FamilySpec
from processors.types import Modality

SPEC = FamilySpec(
    model_types=("cosmos3_edge",),
    # Source: `Cosmos3EdgeProcessor.get_text_with_replacements` (transformers 5.24).
    patterns={Modality.VIDEO: r"<\|vision_start\|><\|video_pad\|><\|vision_end\|>"},
)
