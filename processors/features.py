"""Tensors of one item as specs: role, layout and values; and how several items' tensors join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from processors.errors import PlanMismatchError
from processors.types import FieldLayout, ItemPlan, PadSpec, TensorSpec

MAX_VALUES_NBYTES = 64 << 10
"""Tensors whose values the plan knows carry them up to this size."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Joins:
    """How the tensors of several items join, by name, as a joint call was seen to do it."""

    layouts: Mapping[str, FieldLayout] = field(default_factory=dict)
    pads: Mapping[str, PadSpec] = field(default_factory=dict)
    singles: frozenset[str] = frozenset()
    """Names of which each item seen had one entry along the dimension that joins."""

    def layout(self, name: str) -> FieldLayout:
        """Return a tensor's layout; items not seen by the probe concatenate."""
        return self.layouts.get(name, FieldLayout("flat"))

    def override(self, layouts: Mapping[str, FieldLayout]) -> Joins:
        """Return these joins with some layouts said otherwise."""
        return Joins({**self.layouts, **layouts}, self.pads, self.singles - layouts.keys())


def find_joins(one: Tensors, other: Tensors, joint: Tensors | None) -> Joins:
    """Compare two items' tensors alone and in a joint call of both.

    Args:
        one: The first item's tensors, meta or real.
        other: The second item's, of another size.
        joint: Those of a call with both; None where the processor refuses such a call.
    """
    layouts, pads, singles = {}, {}, set()
    for name in {**one, **other}:
        pair = [tensors[name].shape for tensors in (one, other) if name in tensors]
        together = joint[name].shape if joint is not None and name in joint else None
        layouts[name] = _join_of(pair, together)
        if all(shape[layouts[name].dim : layouts[name].dim + 1] == (1,) for shape in pair):
            singles.add(name)
        if together is not None and (padded := _padded_dims(pair, together, layouts[name].dim)):
            pads[name] = PadSpec(padded, 0.0)
    return Joins(layouts, pads, frozenset(singles))


def _join_of(pair: list[torch.Size], together: torch.Size | None) -> FieldLayout:
    if all(shape[:1] == (1,) for shape in pair) and (together is None or together[0] == len(pair)):
        return FieldLayout("batched")
    if together is not None:
        for dim in range(len(together)):
            if together[dim] == sum(shape[dim] for shape in pair):
                return FieldLayout("flat", dim)
    return FieldLayout("flat")


def _padded_dims(pair: list[torch.Size], together: torch.Size, joined: int) -> tuple[int, ...]:
    return tuple(
        dim
        for dim in range(len(together))
        if dim != joined and any(shape[dim] != together[dim] for shape in pair)
    )


def describe_tensors(
    tensors: Tensors,
    joins: Joins,
    *,
    on_meta: bool,
    unknown: frozenset[str] = frozenset(),
) -> tuple[TensorSpec, ...]:
    """Describe one planned item's tensors.

    Args:
        tensors: What the planning run gave.
        joins: How such tensors join.
        on_meta: Whether the run was on meta tensors: then whatever is not meta is known. A run on
            zeros knows only its integers.
        unknown: Names whose values depend on data all the same.
    """
    specs = []
    for name, tensor in tensors.items():
        is_known = name not in unknown and _is_known(tensor, on_meta=on_meta)
        is_feature = not is_known and _is_feature(name, tensor, is_data=name in unknown)
        specs.append(_describe(name, tensor, joins, is_known=is_known, is_feature=is_feature))
    return tuple(specs)


def split_evenly(tensor: torch.Tensor, layout: FieldLayout, count: int) -> list[torch.Tensor]:
    """Return the parts of a joint call's tensor that belong to each of `count` equal items.

    Raises:
        PlanMismatchError: If it is not made of so many parts.
    """
    if layout.kind == "shared":
        return [tensor] * count
    dim = layout.dim if layout.kind == "flat" else 0
    if tensor.dim() <= dim or tensor.shape[dim] % count or not tensor.shape[dim]:
        raise PlanMismatchError(f"A joint call of {count} items gave shape {tuple(tensor.shape)}.")
    return list(tensor.tensor_split(count, dim))


def names_that_differ(one: Tensors, other: Tensors) -> frozenset[str]:
    """Return the names whose values are not the same in both."""
    return frozenset(
        name
        for name in {**one, **other}
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    )


def _is_known(tensor: torch.Tensor, *, on_meta: bool) -> bool:
    """Whether a tensor of a run without data holds what a real run gives."""
    if tensor.is_meta or tensor.nbytes > MAX_VALUES_NBYTES:
        return False
    return not tensor.is_floating_point() or (on_meta and tensor.ndim <= 1)


def _is_feature(name: str, tensor: torch.Tensor, *, is_data: bool) -> bool:
    """Whether an unknown tensor is what the encoder eats; masks only go along with it."""
    if name.endswith("mask"):
        return False
    return tensor.is_floating_point() or is_data or name.startswith("pixel_values")


def _describe(
    name: str, tensor: torch.Tensor, joins: Joins, *, is_known: bool, is_feature: bool
) -> TensorSpec:
    is_pixels = is_feature and "pixel" in name
    return TensorSpec(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        role="feature" if is_feature else "metadata",
        layout=joins.layout(name),
        keep_on_cpu=is_known,
        values=tensor.tolist() if is_known else None,
        normalized=tensor.is_floating_point() if is_pixels else None,
        pad=joins.pads.get(name),
    )


def write_tensors(
    tensors: Tensors, specs: tuple[TensorSpec, ...], outputs: Mapping[str, torch.Tensor]
) -> None:
    """Write executed tensors into their places, after checking them against the plan.

    Args:
        tensors: What the processor gave for the real item.
        specs: What was planned.
        outputs: One preallocated tensor per spec, of its shape; a feature's may have another
            floating dtype and is then rounded from the exact values.

    Raises:
        PlanMismatchError: If a name, shape, dtype or known value differs from the plan.
    """
    check_executed(tensors, specs)
    for spec in specs:
        if spec.name not in outputs or tuple(outputs[spec.name].shape) != spec.shape:
            raise PlanMismatchError(f"There is no place for '{spec.name}' as it was planned.")
        if str(tensors[spec.name].dtype) != f"torch.{spec.dtype}":
            raise PlanMismatchError(f"'{spec.name}' has another dtype than planned.")
    for spec in specs:
        outputs[spec.name].copy_(tensors[spec.name])


def check_executed(tensors: Tensors, specs: tuple[TensorSpec, ...]) -> None:
    """Compare executed tensors with the plan, dtypes aside.

    Raises:
        PlanMismatchError: If a name, shape or known value differs.
    """
    planned = {spec.name: spec for spec in specs}
    if tensors.keys() != planned.keys():
        raise PlanMismatchError("The processor returned other tensors than planned.")
    for name, spec in planned.items():
        shape = tuple(tensors[name].shape)
        if shape != spec.shape:
            raise PlanMismatchError(f"'{name}' has shape {shape} where {spec.shape} was planned.")
        if spec.values is not None and tensors[name].tolist() != spec.values:
            raise PlanMismatchError(f"'{name}' has other values than planned.")


Encoding = Literal["plain", "compact", "raw"]


def encoding_of(specs: Sequence[TensorSpec], outputs: Mapping[str, torch.Tensor]) -> Encoding:
    """Return the encoding that the places for an item's tensors are made for."""
    for spec in specs:
        if spec.compact is None:
            continue
        if f"{spec.name}.lut" in outputs:
            return "compact"
        if outputs[spec.name].dtype == torch.uint8:
            return "raw"
    return "plain"


def without_compact(plan: ItemPlan) -> ItemPlan:
    """Return the plan of an item whose features can only be had plain."""
    return replace(plan, tensors=tuple(replace(spec, compact=None) for spec in plan.tensors))
