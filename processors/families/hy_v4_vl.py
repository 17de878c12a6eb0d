"""HY V4 VL: rotary positions of grids whose rows end in a token of their own."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `HYV4VLModel.get_rope_index` (transformers 5.24)."""
    return {"spatial_merge_size": config.vision_config.spatial_merge_size}


SPEC = FamilySpec(
    model_types=("hy_v4_vl",),
    positions="mrope_wide",
    position_config=_position_config,
)
