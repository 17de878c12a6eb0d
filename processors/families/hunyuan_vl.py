"""HunYuan VL: an image's columns, rows and number on axes beside the count of tokens."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `HunYuanVLModel.get_rope_index` (transformers 5.24)."""
    rope = config.text_config.rope_parameters or {}
    return {
        "spatial_merge_size": config.vision_config.spatial_merge_size,
        # The model takes no fewer.
        "num_axes": max(3, len(rope.get("mrope_section", ()))),
    }


SPEC = FamilySpec(
    model_types=("hunyuan_vl",),
    positions="grid_axes",
    position_config=_position_config,
)
