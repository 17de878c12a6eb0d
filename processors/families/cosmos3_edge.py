"""Cosmos 3 Edge: a video takes the place of its vision frame too, and brings frames of its own."""

from typing import Any

from processors.family import FamilySpec
from processors.types import Modality


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `Cosmos3EdgeModel.get_rope_index` (transformers 5.24)."""
    return {
        "spatial_merge_size": config.vision_config.spatial_merge_size,
        "frames_apart": True,
    }


SPEC = FamilySpec(
    model_types=("cosmos3_edge",),
    # Source: `Cosmos3EdgeProcessor.get_text_with_replacements` (transformers 5.24).
    patterns={Modality.VIDEO: r"<\|vision_start\|><\|video_pad\|><\|vision_end\|>"},
    positions="mrope",
    position_config=_position_config,
)
