"""Ovis 2: the token of an encoder row is named neither by its config nor by its processor."""

from processors.family import FamilySpec
from processors.types import Modality

SPEC = FamilySpec(
    model_types=("ovis2",),
    row_tokens={Modality.IMAGE: "<IMG_ATOM>"},
    framing=("<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
)
