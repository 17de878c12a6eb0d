"""GOT-OCR 2: its processor lays out images together with a text of its own, which is not wanted."""

from collections.abc import Mapping, Sequence
from typing import Any

from processors.family import FamilySpec
from processors.types import Modality


def _run(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Any],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `GotOcr2Processor.__call__` (transformers 5.24)."""
    features, replacements = processor._process_images(
        list(media),
        multi_page=False,
        num_image_tokens=processor.num_image_tokens,
        **merged["images_kwargs"],
    )
    return features, replacements


SPEC = FamilySpec(model_types=("got_ocr2",), runs={Modality.IMAGE: _run})
