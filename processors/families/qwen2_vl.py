"""Qwen2-VL, Qwen2.5-VL, PaddleOCR-VL: rotary positions over time, height and width."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `Qwen2VLModel` and `Qwen2_5_VLModel`, `get_rope_index` (transformers 5.24)."""
    vision = config.vision_config
    return {
        "spatial_merge_size": vision.spatial_merge_size,
        "tokens_per_second": getattr(vision, "tokens_per_second", 0),
    }


SPEC = FamilySpec(
    model_types=("qwen2_vl", "qwen2_5_vl", "paddleocr_vl"),
    positions="mrope",
    position_config=_position_config,
)
