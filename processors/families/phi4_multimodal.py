"""Phi-4-multimodal: its thumbnail is resized after normalising, which no table of bytes repeats."""

from processors.family import FamilySpec

SPEC = FamilySpec(model_types=("phi4_multimodal",), allow_fast=False)
