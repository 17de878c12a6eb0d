"""Where the tensors of an entry are cut into its items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from processors.errors import InvalidRequestError
from processors.given_checks import is_grid
from processors.given_read import NUM_TOKENS, Given, has_several_rows
from processors.types import TensorSlice


def cut(given: Given, name: str, counts: Sequence[int] = ()) -> list[TensorSlice] | None:
    """Return each item's part of a tensor; None where nothing given tells them apart.

    Args:
        given: The entry.
        name: Of the tensor.
        counts: Tokens of each item, where they are known.

    Raises:
        InvalidRequestError: If its rows are not as many as the grids or counts say.
    """
    tensor, count = given.tensors[name], given.count
    joins = given.stage.joins
    dim = joins.layout(name).dim
    if tensor.ndim <= dim:
        raise InvalidRequestError(f"'{name[:64]}' has too few dimensions.")
    if has_several_rows(given.stage, name):
        return _ranges(name, 0, given.grid_rows(name))
    if is_grid(name):
        return _ranges(name, 0, [1] * count)
    if name in joins.singles:
        return _ranges(name, dim, [1] * count)
    fitting = [sizes for sizes in _told(given, counts) if sum(sizes) == tensor.shape[dim]]
    if any(sizes != fitting[0] for sizes in fitting):
        raise InvalidRequestError(
            f"The rows of '{name[:64]}' may be cut in several ways; give one item at a time."
        )
    if fitting:
        return _ranges(name, dim, fitting[0])
    if name in given.features and name in joins.layouts and any(map(is_grid, given.tensors)):
        raise InvalidRequestError(
            f"'{name[:64]}' has {tensor.shape[dim]} rows; the grids say another number."
        )
    if count == 1:
        return _ranges(name, dim, [tensor.shape[dim]])
    if tensor.shape[0] == count:
        return _ranges(name, 0, [1] * count)
    return None


def cut_embedding(given: Given, name: str, counts: Sequence[int]) -> list[TensorSlice]:
    """Return each item's rows of precomputed embeddings.

    Raises:
        InvalidRequestError: If they are not as many as the items' tokens.
    """
    shape = given.tensors[name].shape
    if len(shape) == 3:
        if any(count != shape[1] for count in counts):
            raise InvalidRequestError(
                f"'{name[:64]}' has {shape[1]} rows an item; {max(counts)} are its tokens."
            )
        return _ranges(name, 0, [1] * len(counts))
    if sum(counts) != shape[0]:
        raise InvalidRequestError(
            f"'{name[:64]}' has {shape[0]} rows; the items have {sum(counts)} tokens."
        )
    return _ranges(name, 0, counts)


def take(tensor: torch.Tensor, part: TensorSlice) -> torch.Tensor:
    """Return one item's part of a tensor as a view."""
    return tensor.narrow(part.dim, part.start, part.stop - part.start)


def _told(given: Given, counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield what may be the rows that each item has of a joined tensor."""
    for name, tensor in given.tensors.items():
        if is_grid(name):
            yield given.grid_patches(name)
        elif name == NUM_TOKENS or tensor.is_floating_point() or tensor.dtype is torch.bool:
            continue
        elif tensor.shape == (given.count,):
            sizes = tensor.tolist()
            if min(sizes, default=-1) >= 0:
                yield sizes
        elif name in given.stage.context.family.tables and tensor.ndim == 2:
            yield [int(value) for value in tensor[:, 0].tolist()]
    if counts:
        yield list(counts)


def _ranges(name: str, dim: int, sizes: Sequence[int]) -> list[TensorSlice]:
    stops = accumulate(sizes)
    return [
        TensorSlice(name, dim, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)
    ]
