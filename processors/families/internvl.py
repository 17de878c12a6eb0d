"""InternVL: frames of a video are pixels among those of images."""

from typing import Any

from processors.family import FamilySpec, Features
from processors.types import Modality


def _flatten_frames(
    processor: Any,  # noqa: ANN401 - a transformers processor
    modality: Modality,
    features: Features,
) -> Features:
    """Source: `InternVLProcessor.__call__` (transformers 5.24)."""
    if modality is not Modality.VIDEO:
        return features
    rest = {name: value for name, value in features.items() if name != "pixel_values_videos"}
    return {"pixel_values": features["pixel_values_videos"].flatten(0, 1), **rest}


SPEC = FamilySpec(model_types=("internvl",), finish=_flatten_frames)
