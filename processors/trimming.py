"""Cutting off what an extractor padded a clip's features with, where a request asks for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from processors.features import Tensors


def find_padding(tensors: Tensors) -> dict[str, tuple[int, int]]:
    """Return what is to be cut of a clip's tensors so that no frame is padding.

    Which frames are is what the extractor's mask says: the integer or boolean tensor (N, T) whose
    name ends in `mask`, where T is a dimension of a floating one. Both are cut behind the last
    frame that is marked in any of the N rows, the chunks of one clip.

    Returns:
        The dimension and how much of it is kept, by name; empty where there is no such mask.
    """
    for name, mask in tensors.items():
        if not name.endswith("mask") or mask.is_floating_point() or mask.ndim != 2:
            continue
        features = {
            other: tensor.shape.index(mask.shape[1], 1)
            for other, tensor in tensors.items()
            if tensor.is_floating_point() and mask.shape[1] in tensor.shape[1:]
        }
        if features:
            marked = mask.bool().any(dim=0).nonzero()
            kept = int(marked[-1]) + 1 if len(marked) else 0
            return {cut: (dim, kept) for cut, dim in {name: 1, **features}.items()}
    return {}


def cut(tensors: Tensors, padding: Mapping[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
    """Return tensors with their padding cut off."""
    return {
        name: tensor.narrow(padding[name][0], 0, padding[name][1]) if name in padding else tensor
        for name, tensor in tensors.items()
    }
