"""Molmo 2: patches are rows, and column separators stand between them."""

from processors.family import FamilySpec
from processors.types import Modality

SPEC = FamilySpec(
    model_types=("molmo2",),
    row_tokens={Modality.IMAGE: "<im_patch>", Modality.VIDEO: "<im_patch>"},
)
