"""Molmo 2: patches are rows, and column separators stand between them."""

from processors.family import FamilySpec
from processors.types import Modality

SPEC = FamilySpec(
    model_types=("molmo2",),
    row_tokens={Modality.IMAGE: "<im_patch>", Modality.VIDEO: "<im_patch>"},
    tables=frozenset({"image_grids", "video_grids"}),
    row_numbers={
        "image_token_pooling": "pixel_values",
        "video_token_pooling": "pixel_values_videos",
    },
)
