"""ERNIE 4.5 VL: rotary positions of videos whose frames the model merges in time."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `Ernie4_5_VLMoeModel.get_rope_index` (transformers 5.24)."""
    vision = config.vision_config
    return {
        "spatial_merge_size": vision.spatial_merge_size,
        "temporal_merge_size": vision.temporal_merge_size,
    }


SPEC = FamilySpec(
    model_types=("ernie4_5_vl_moe",),
    positions="mrope",
    position_config=_position_config,
)
