"""MiniCPM-V: every image and video is numbered in the prompt."""

from collections.abc import Mapping
from typing import Any

from processors.family import FamilySpec
from processors.types import Modality


def _number(
    processor: Any,  # noqa: ANN401 - a transformers processor
    modality: Modality,
    merged: Mapping[str, Any],
    index: int,
) -> str:
    """Source: `MiniCPMV4_6Processor.__call__` and `_prepend_local_ids` (transformers 5.24)."""
    wanted = merged["images_kwargs"].get("use_image_id", merged["use_image_id"])
    wanted = processor.default_use_image_id if wanted is None else wanted
    if not wanted:
        return ""
    return f"{processor.image_id_start_token}{index}{processor.image_id_end_token}"


SPEC = FamilySpec(
    model_types=("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"),
    prefix=_number,
)
