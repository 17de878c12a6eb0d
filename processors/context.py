"""The values that stages are made of and pass around."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from processors import hf
from processors.family import FamilySpec, Features
from processors.types import DecodeLimits, Modality, ModelSpec, ReplacementPart, TensorSpec

Fill: TypeAlias = Literal["meta", "zeros", "noise"]
"""What an item without data consists of; noise tells what depends on data."""

Maker: TypeAlias = Callable[[Fill], Any]
"""Makes an item of one size."""


@dataclass(frozen=True)
class Outcome:
    """One item through the protocol, on real data or without."""

    tensors: dict[str, torch.Tensor]
    replacement: str | None
    features: Features
    """The sub-processor's own output, counters included."""


@dataclass(frozen=True)
class Ran:
    """How one item was executed."""

    kernel: str
    """Which implementation ran."""
    batch: int = 1
    """Items that ran in the same call."""


@dataclass(frozen=True)
class Shape:
    """The part of a plan that follows from size and keyword arguments alone."""

    replacement: tuple[ReplacementPart, ...] | None
    num_tokens: int
    row_token_id: int | None
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class MediaTokens:
    """The media tokens of a model: what may repeat, and what stands for an encoder row."""

    repeating: tuple[str, ...]
    rows: Mapping[Modality, tuple[str, ...]]
    """Candidates by modality, the likeliest first."""


@dataclass(frozen=True)
class StageContext:
    """What every stage of a model is made of."""

    model: hf.LoadedModel
    family: FamilySpec
    spec: ModelSpec
    limits: DecodeLimits
    tokens: MediaTokens
