"""Bounds of what callers give in place of a processor's output, before a processor counts by it.

Processors repeat a token as often as such a number says; each check keeps that in memory's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from processors.errors import InvalidRequestError, MediaTooLargeError, PromptTooLongError
from processors.hf import HfObject
from processors.stage import Stage

MAX_PIECES = 16_384
"""Tiles, crops or slices of one item, all counts of it multiplied."""
MAX_LENGTH = 10_000_000
"""Largest length, in frames or samples."""
MAX_SECONDS = 100.0
"""Between two steps in time."""
MAX_EMPTY = 4096
"""Places in the shape of a tensor without values, its empty dimensions aside."""
_FEW = 64
"""Values of one item that may be counts; what has more is a map, not a count."""
_MOST = 2**31 - 1


def is_grid(name: str) -> bool:
    """Return whether a tensor holds the patches of each item along its axes."""
    return name.endswith(("grid_thw", "grid_thws", "grid_hw", "grid_hws"))


def merge_of(part: HfObject) -> int | None:
    """Return how many patches along one side a sub-processor's encoder merges; None if unknown."""
    for name in ("merge_size", "spatial_merge_size", "merge_kernel_size"):
        value = getattr(part, name, None)
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, int) and value > 0:
            return value
    return None


def check_tensor(name: str, tensor: torch.Tensor, *, is_feature: bool) -> None:
    """Refuse values that no processor returns.

    Raises:
        InvalidRequestError: Naming the tensor.
    """
    if is_grid(name) and not _is_table(tensor):
        raise InvalidRequestError(f"'{name[:64]}' is integers, one row per item.")
    if is_feature:
        return
    if not tensor.numel():
        _check_empty(name, tensor)
        return
    if tensor.dtype is torch.bool:
        is_right = bool((tensor.view(torch.uint8) <= 1).all())
    elif tensor.is_floating_point():
        is_right = bool(tensor.isfinite().all())
        if "second" in name:
            is_right = is_right and bool(((tensor >= 0) & (tensor <= MAX_SECONDS)).all())
    else:
        most = 1 if name.endswith("mask") else _MOST
        is_right = bool(((tensor >= -1) & (tensor <= most)).all())
    if not is_right:
        raise InvalidRequestError(f"'{name[:64]}' holds values that no processor returns.")


def _check_empty(name: str, tensor: torch.Tensor) -> None:
    """Refuse nested lists without end: a tensor without values costs no bytes of the document."""
    if math.prod(max(size, 1) for size in tensor.shape) > MAX_EMPTY:
        raise InvalidRequestError(f"'{name[:64]}' is empty and claims a large shape.")


def _is_table(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a row of counts for each item."""
    is_whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
    return is_whole and tensor.ndim == 2 and tensor.shape[1] in (2, 3)


def check_item(
    tensors: Mapping[str, torch.Tensor],
    features: frozenset[str],
    counters: frozenset[str],
    stage: Stage,
) -> None:
    """Refuse an item whose numbers would make more than its limits allow.

    Raises:
        InvalidRequestError: If its grid is none, or a count is many.
        MediaTooLargeError, PromptTooLongError: If it is too large.
    """
    pieces = 1
    for name, tensor in tensors.items():
        if name in counters and tensor.numel() > _FEW:
            raise InvalidRequestError(f"'{name[:64]}' has more numbers than an item has counts.")
        if is_grid(name):
            _check_grid(name, tensor, stage)
            continue
        if name in features or tensor.is_floating_point() or not 0 < tensor.numel() <= _FEW:
            continue
        if name.endswith("mask"):
            continue
        values = [int(value) for value in tensor.reshape(-1).tolist()]
        if name in stage.context.family.tables:
            _check_table(name, values, stage)
        elif "size" in name or "grid" in name:
            _check_sizes(values, tensor.shape[-1] if tensor.ndim else 1, stage)
        elif "token" in name or "len" in name:
            check_lengths(name, values, stage)
        else:
            pieces *= math.prod(max(value, 1) for value in values)
    if pieces > MAX_PIECES:
        raise MediaTooLargeError(f"An item has at most {MAX_PIECES} tiles or crops.")


def _check_grid(name: str, grid: torch.Tensor, stage: Stage) -> None:
    merge = merge_of(stage.part) or 1
    if not grid.numel():
        return
    if bool((grid < 1).any()) or bool((grid[:, -2:] % merge).any()):
        raise InvalidRequestError(
            f"'{name[:64]}' holds patches along each axis: at least 1, along height and width in "
            f"multiples of {merge}."
        )
    patches = sum(math.prod(row) for row in grid.tolist())
    limit = stage.limits.max_item_tokens
    if patches // merge**2 > 2 * limit:
        raise PromptTooLongError(
            f"The item becomes {patches // merge**2} tokens; at most {limit} are taken."
        )


def _check_table(name: str, values: list[int], stage: Stage) -> None:
    """Refuse grids of which a processor makes more tokens than an item may have.

    Four columns are two grids, (height, width) each.
    """
    grids = [values[:2], values[2:]] if len(values) == 4 else [values]
    if any(value < 1 for value in values):
        raise InvalidRequestError(f"'{name[:64]}' holds patches along each axis: at least 1.")
    limit = stage.limits.max_item_tokens
    if any(math.prod(grid) > limit for grid in grids):
        raise PromptTooLongError(f"The item becomes more than the {limit} tokens that are taken.")


def _check_sizes(values: list[int], num_axes: int, stage: Stage) -> None:
    """Refuse areas, one after another, that are too large together."""
    pixels = 0
    for start in range(0, len(values), num_axes):
        pixels += math.prod(max(value, 1) for value in values[start : start + num_axes])
    if pixels > stage.limits.max_pixels:
        raise MediaTooLargeError(f"A size given is more than {stage.limits.max_pixels} pixels.")


def check_lengths(name: str, values: list[int], stage: Stage) -> None:
    """Refuse numbers of tokens or lengths beyond their limits.

    Raises:
        InvalidRequestError: If one is negative.
        PromptTooLongError: If one is too large.
    """
    limit = stage.limits.max_item_tokens if "token" in name else MAX_LENGTH
    if any(value < 0 for value in values):
        raise InvalidRequestError(f"'{name[:64]}' is not negative.")
    if any(value > limit for value in values):
        raise PromptTooLongError(f"'{name[:64]}' is at most {limit}.")
