"""Qwen3-VL and those after it, GLM-4V and its kin: a video's frames stand apart, each a grid."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `Qwen3VLModel` and `Glm4vModel`, `get_rope_index` (transformers 5.24)."""
    return {
        "spatial_merge_size": config.vision_config.spatial_merge_size,
        "frames_apart": True,
    }


SPEC = FamilySpec(
    model_types=(
        "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp",
        "glm4v", "glm4v_moe", "glm46v", "glm_ocr", "cohere_compass", "cosmos3_omni",
    ),
    positions="mrope",
    position_config=_position_config,
)  # fmt: skip
