"""Documents of tensors that callers give, as workers read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from processors.errors import InvalidRequestError
from processors.types import GivenTensor, TensorSlice
from transport.errors import DocumentError
from transport.safetensors import header_nbytes, parse_document

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 1 << 20
"""Of a caller's document; room for thousands of tensors."""

MAX_DIMS = 8
MAX_ELEMENTS = 1 << 40


def read_tensors(document: memoryview) -> dict[str, GivenTensor]:
    """Return a document's tensors by name; nothing is copied.

    Raises:
        InvalidRequestError: If it breaks a rule of the format, or its header is too long.
    """
    try:
        if header_nbytes(document[:8]) > MAX_HEADER_BYTES:
            raise InvalidRequestError(
                f"The safetensors header may have {MAX_HEADER_BYTES} bytes.", "tensors"
            )
        views = parse_document(document)
    except DocumentError as error:
        raise InvalidRequestError(f"No valid safetensors: {error.message}.", "tensors") from error
    for view in views.values():
        # A tensor without bytes may claim any size along its other dimensions.
        if len(view.shape) > MAX_DIMS or math.prod(max(n, 1) for n in view.shape) > MAX_ELEMENTS:
            raise InvalidRequestError("A tensor's shape is beyond all bounds.", "tensors")
    return {name: GivenTensor(*view) for name, view in views.items()}


def take(tensor: GivenTensor, part: TensorSlice) -> torch.Tensor:
    """Return one item's part of a tensor: a view, or a copy where its numbers count on."""
    # Imported with the engine long ago.
    import torch

    dtype = getattr(torch, tensor.dtype)
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype).narrow(
            part.dim, part.start, part.stop - part.start
        )
    whole = torch.frombuffer(tensor.data, dtype=dtype).view(tensor.shape)
    own = whole.narrow(part.dim, part.start, part.stop - part.start)
    return torch.where(own >= 0, own - part.minus, own) if part.minus else own
