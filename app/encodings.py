"""What is stored of an item for an encoding and a dtype: plain features, raw pixels, or codes.

`plain` is what the processor gives. `raw` holds the pixels of a feature before they are rescaled
and normalised, in the same layout. `compact` holds them without repetition, and a table that makes
plain features of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from processors.types import FieldLayout, TensorSpec

PLAIN = "plain"
EXACT = "float32"
"""The dtype that rounds nothing: features are what the processor gives."""
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
TABLE_SHAPE = (3, 256)


def table_name(name: str) -> str:
    """Return the name of the table that belongs to a tensor of codes."""
    return f"{name}.lut"


def encode(tensors: Sequence[TensorSpec], encoding: str, dtype: str) -> tuple[TensorSpec, ...]:
    """Return planned tensors as they are stored.

    Args:
        tensors: As the plan has them.
        encoding: `plain`, `compact` or `raw`.
        dtype: Of floating features, `float32` for what the processor gives; of compact ones it is
            what they are once expanded.
    """
    if encoding == PLAIN and dtype == EXACT:
        return tuple(tensors)
    encoded: list[TensorSpec] = []
    for tensor in tensors:
        is_rounded = dtype != EXACT and tensor.role == "feature" and tensor.dtype in FLOATS
        plain = replace(tensor, dtype=dtype) if is_rounded else tensor
        if encoding == PLAIN or tensor.compact is None:
            encoded.append(plain)
        elif encoding == "raw":
            encoded.append(replace(plain, dtype="uint8", normalized=False))
        else:
            codes = replace(tensor.compact, plain_dtype=plain.dtype)
            table = table_name(tensor.name)
            encoded += [
                replace(plain, dtype="uint8", shape=codes.code_shape, encoding=codes),
                TensorSpec(table, "float32", TABLE_SHAPE, "lut", FieldLayout("shared")),
            ]
    return tuple(encoded)
