"""Qwen2.5-Omni and Qwen3-Omni: rotary positions in step with seconds, of videos with sound too."""

from typing import Any

from processors.family import FamilySpec


def _position_config(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a transformers config
    """Source: `get_rope_index` of both families' thinkers (transformers 5.24)."""
    thinker = getattr(config, "thinker_config", config)
    return {
        "spatial_merge_size": thinker.vision_config.spatial_merge_size,
        "position_id_per_seconds": thinker.position_id_per_seconds,
        "shared_markers": config.model_type.startswith("qwen2_5_omni"),
    }


SPEC = FamilySpec(
    model_types=("qwen2_5_omni", "qwen3_omni_moe"),
    positions="mrope_omni",
    position_config=_position_config,
)
