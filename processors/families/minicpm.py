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
    token = processor.video_token if modality is Modality.VIDEO else processor.image_token
    count = index + 1
    numbered: list[str] = processor._prepend_local_ids([token * count], [""] * count, token)
    return numbered[-1]


SPEC = FamilySpec(
    model_types=("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"),
    prefix=_number,
)
