"""Entries of tensors that a caller has preprocessed, read: names, kinds, and how many items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

from processors import hf
from processors.errors import InvalidRequestError
from processors.family import COUNTERS
from processors.given_checks import check_tensor, is_grid
from processors.given_video import METADATA_NAMES, GivenMetadata, read_metadata
from processors.stage import Stage
from processors.types import GivenEntry, GivenTensor, Modality

NUM_TOKENS = "num_tokens"
"""Name of the tensor by which a caller says the tokens of each item itself."""
MAX_ITEMS = 4096
_OTHER_NAMES: Mapping[Modality, frozenset[str]] = {
    Modality.IMAGE: frozenset({
        "pixel_values", "image_sizes", "image_grid_thw", "image_attention_mask", "image_emb_mask",
        "images_spatial_crop", "images_crop", "has_local_crops", "has_images", "tgt_size",
        "image_grid_hws", "aspect_ratio_ids", "aspect_ratio_mask", "num_patches",
        "patch_pixel_values", "block_sizes", "grid_thws",
    }),
    Modality.VIDEO: frozenset({"pixel_values_videos", "second_per_grid_ts", "video_grid_thw"}),
    Modality.AUDIO: frozenset({
        "audio_features", "audio_feature_lens", "input_features", "input_features_mask",
        "audio_attention_mask", "feature_attention_mask",
    }),
}  # fmt: skip
"""Names that mean a modality whatever the model, beyond those its processor was seen to return."""


@dataclass(frozen=True)
class Given:
    """An entry that has been read."""

    stage: Stage
    tensors: Mapping[str, torch.Tensor]
    features: frozenset[str]
    embedding: str | None
    """The feature of a precomputed entry: a row per token."""
    count: int
    run_lengths: tuple[int, ...]
    metadata: tuple[GivenMetadata, ...]
    """What is given of each video; empty where nothing is."""

    def grid_rows(self, name: str) -> list[int]:
        """Return how many rows of a grid each item has: one, or several for long videos."""
        rows = self.tensors[name].shape[0]
        if not has_several_rows(self.stage, name):
            return [1] * self.count
        for other, tensor in self.tensors.items():
            if other in counter_names(self.stage) and tensor.shape == (self.count,):
                counts = [int(value) for value in tensor.tolist()]
                if sum(counts) == rows and min(counts) > 0:
                    return counts
        if self.count == 1:
            return [rows]
        raise InvalidRequestError(
            f"The rows of '{name[:64]}' cannot be told apart for {self.count} items; "
            f"{_several(self.stage)} is how many each has."
        )

    def grid_patches(self, name: str) -> list[int]:
        """Return the patches that a grid says of each item."""
        patches = self.tensors[name].long().prod(-1)
        parts = torch.split(patches, self.grid_rows(name))
        return [int(part.sum()) for part in parts]


def read_entry(stage: Stage, entry: GivenEntry) -> Given:
    """Return an entry with its tensors' kinds told.

    Args:
        stage: Of the entry's modality.
        entry: What the caller gives; hostile.

    Raises:
        InvalidRequestError: If a name, dtype or value is none of the model's, or the tensors speak
            of different numbers of items.
    """
    tensors = {name: _as_torch(tensor) for name, tensor in entry.tensors.items()}
    described = {}
    if entry.modality is Modality.VIDEO:
        described = {n: tensors.pop(n) for n in METADATA_NAMES if n in tensors}
    if not tensors:
        raise InvalidRequestError("The document holds no tensors.")
    features = frozenset(n for n, t in tensors.items() if _is_feature(stage, n, t))
    embedding = _find_embedding(entry, tensors, features)
    known = _known_names(stage)
    for name, tensor in tensors.items():
        if name not in known and name != embedding:
            raise InvalidRequestError(
                f"'{name[:64]}' is no tensor of this model's {entry.modality.value}s; it takes "
                f"{', '.join(sorted(known))}."
            )
        if name in counter_names(stage) and tensor.is_floating_point():
            raise InvalidRequestError(f"'{name[:64]}' counts, in integers.")
        check_tensor(name, tensor, is_feature=name in features)
    count = _count_items(stage, tensors, embedding)
    metadata = read_metadata(described, count, stage.limits.max_frames)
    return Given(stage, tensors, features, embedding, count, entry.run_lengths, metadata)


def counter_names(stage: Stage) -> frozenset[str]:
    """Return what a processor counts with and does not hand on."""
    return COUNTERS | stage.context.family.counters | hf.unused_names(stage.model.processor)


def has_several_rows(stage: Stage, name: str) -> bool:
    """Return whether one item may have several rows of a grid, as long videos of Kimi-K2.5 do."""
    seen = stage.joins.layouts.get(name)
    return is_grid(name) and seen is not None and seen.kind == "flat"


def _several(stage: Stage) -> str:
    names = hf.unused_names(stage.model.processor) - COUNTERS
    return " or ".join(f"'{name}'" for name in sorted(names)) or f"'{NUM_TOKENS}'"


def _as_torch(tensor: GivenTensor) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(tensor.data, dtype=dtype).view(tensor.shape)


def _is_feature(stage: Stage, name: str, tensor: torch.Tensor) -> bool:
    if name.endswith("mask") or is_grid(name):
        return False
    is_named = name in stage.feature_names or name.startswith("pixel_values")
    return is_named or (tensor.is_floating_point() and tensor.ndim > 1)


def _find_embedding(
    entry: GivenEntry, tensors: Mapping[str, torch.Tensor], features: frozenset[str]
) -> str | None:
    if entry.format != "precomputed_embedding":
        return None
    if not features:
        return None
    (name, *others) = sorted(features)
    if others or not tensors[name].is_floating_point() or tensors[name].ndim not in (2, 3):
        raise InvalidRequestError(
            "Precomputed embeddings are one floating tensor: a row per token, of two dimensions, "
            "or of three with the items first."
        )
    return name


def _known_names(stage: Stage) -> frozenset[str]:
    own = frozenset(stage.joins.layouts) | frozenset(stage.feature_names)
    described = METADATA_NAMES if stage.modality is Modality.VIDEO else frozenset()
    return own | _OTHER_NAMES[stage.modality] | counter_names(stage) | {NUM_TOKENS} | described


def _count_items(stage: Stage, tensors: Mapping[str, torch.Tensor], embedding: str | None) -> int:
    counts = {}
    for name, tensor in tensors.items():
        is_counter = name == NUM_TOKENS or name in counter_names(stage)
        if name == embedding:
            if tensor.ndim == 3:
                counts[name] = tensor.shape[0]
        elif (dim := _item_dim(stage, name, tensor)) is not None:
            counts[name] = tensor.shape[dim]
        elif is_counter and tensor.ndim == 1:
            counts[name] = tensor.shape[0]
    if any(a != b for a, b in pairwise(counts.values())):
        told = ", ".join(f"'{name[:64]}' of {count}" for name, count in counts.items())
        raise InvalidRequestError(f"The tensors speak of different numbers of items: {told}.")
    count = next(iter(counts.values()), 1)
    if not 0 < count <= MAX_ITEMS:
        raise InvalidRequestError(f"An entry stands for 1 to {MAX_ITEMS} items.")
    return count


def _item_dim(stage: Stage, name: str, tensor: torch.Tensor) -> int | None:
    """Return the dimension along which a tensor has one entry per item; None where it has none."""
    if is_grid(name):
        return None if has_several_rows(stage, name) or not tensor.ndim else 0
    dim = stage.joins.layout(name).dim
    return dim if name in stage.joins.singles and dim < tensor.ndim else None
