"""LFM2-VL: its processor's call hands a switch of its own to the protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from processors.family import FamilySpec
from processors.types import Modality


def _run(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Any],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `Lfm2VlProcessor.__call__` (transformers 5.24)."""
    features, replacements = processor._process_images(
        [list(media)],
        use_image_special_tokens=processor.use_image_special_tokens,
        **merged["images_kwargs"],
    )
    return features, replacements


SPEC = FamilySpec(model_types=("lfm2_vl",), runs={Modality.IMAGE: _run})
