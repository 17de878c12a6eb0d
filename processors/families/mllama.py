"""Mllama: cross-attention; an image keeps its one placeholder and takes no rows in the prompt."""

from processors.family import FamilySpec

SPEC = FamilySpec(model_types=("mllama",), cross_attention=True)
