"""From what the pipeline found to the contract's JSON (section 2); pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.encodings import table_name
from processors.types import (
    ItemPlacement,
    ItemPlan,
    LutEncoding,
    MediaInfo,
    Modality,
    TensorSpec,
)

MAX_VALUES_BYTES = 64 * 1024
_SOURCE_FIELDS = (
    "mime", "nbytes", "width", "height", "orientation", "num_frames", "fps", "seconds",
    "sample_rate", "channels",
)  # fmt: skip


def describe_tensor(tensor: TensorSpec, offset: int | None) -> dict[str, Any]:
    """Return one tensor's entry; `offset` is relative to its document's data section."""
    entry: dict[str, Any] = {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "nbytes": tensor.nbytes,
        "offset": offset,
        "role": tensor.role,
        "field": {"kind": tensor.layout.kind}
        | ({"dim": tensor.layout.dim} if tensor.layout.kind == "flat" else {}),
    }
    if tensor.keep_on_cpu:
        entry["keep_on_cpu"] = True
        if tensor.values is not None and tensor.nbytes <= MAX_VALUES_BYTES:
            entry["values"] = tensor.values
    if tensor.normalized is not None:
        entry["normalized"] = tensor.normalized
    if tensor.pad is not None:
        entry["pad"] = {"dims": list(tensor.pad.dims), "value": tensor.pad.value}
    if tensor.encoding is not None:
        entry["encoding"] = _describe_codes(tensor.name, tensor.encoding)
    return entry


def _describe_codes(name: str, encoding: LutEncoding) -> dict[str, Any]:
    repeat = encoding.repeat
    return {
        "kind": "lut-u8",
        "table": table_name(name),
        "channel_axis": encoding.channel_axis,
        "channel_stride": encoding.channel_stride,
        "repeat": None
        if repeat is None
        else {"axis": repeat.axis, "block": repeat.block, "times": repeat.times},
        "plain_shape": list(encoding.plain_shape),
        "plain_dtype": encoding.plain_dtype,
    }


def describe_tensors(
    tensors: Sequence[TensorSpec], offsets: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return every tensor's entry by name."""
    return {t.name: describe_tensor(t, offsets.get(t.name)) for t in tensors}


def describe_source(source: MediaInfo) -> dict[str, Any]:
    """Return what is known of a medium, where it applies."""
    return {name: value for name in _SOURCE_FIELDS if (value := getattr(source, name)) is not None}


def inclusive(ranges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return half-open ranges as the wire's inclusive pairs."""
    return [[start, stop - 1] for start, stop in ranges]


def describe_placement(placement: ItemPlacement | None, plan: ItemPlan) -> dict[str, Any]:
    """Return where an item stands in the prompt; the form without text where there is none."""
    if placement is None:
        return {"token_id": None, "offsets": [], "span": None, "num_tokens": 0}
    span = placement.span
    return {
        "token_id": placement.token_id if placement.token_id is not None else plan.row_token_id,
        "offsets": inclusive(placement.offsets),
        "span": None if span is None else [span[0], span[1] - 1],
        "num_tokens": placement.num_tokens,
    }


def describe_warnings(warnings: Sequence[tuple[str, str, str]]) -> list[dict[str, str | None]]:
    """Return warnings as (code, param, sentence) objects."""
    return [{"code": c, "param": p or None, "detail": d} for c, p, d in warnings]


def in_prompt_order(
    keys: Sequence[tuple[Modality, int]], placements: Sequence[ItemPlacement]
) -> list[int]:
    """Return the places of `keys` (modality, index) in the order the answer lists items.

    By first position in the prompt; items without a place (no text) keep the request's order.
    """
    first = {(p.modality, p.index): n for n, p in enumerate(placements)}
    return sorted(range(len(keys)), key=lambda n: (first.get(keys[n], len(first)), n))
