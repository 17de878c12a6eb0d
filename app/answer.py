"""The pack stage: what the pipeline found, as the contract's two bodies."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pybase64

from app.catalog import ServedModel
from app.describe import (
    describe_placement,
    describe_source,
    describe_tensors,
    describe_warnings,
)
from app.store import FeatureStore, Stored
from app.streaming import Made, Part, StreamedResponse
from app.wire import BINARY_TYPE
from processors.errors import MediaTooLargeError
from processors.positions import Positions
from processors.prompt import ExpandedPrompt
from processors.types import ItemPlacement, ItemPlan, Modality, TensorSpec
from transport.safetensors import TensorEntry, build_layout, data_offsets

BASE64_SLICE = 3 * 256 * 1024
"""Bytes turned to base64 at a time: divisible by 3, so that slices join."""


@dataclass(slots=True)
class AnswerItem:
    """One item of an answer."""

    modality: Modality
    index: int
    status: str
    plan: ItemPlan
    placement: ItemPlacement | None
    hash: str | None
    digest: bytes | None
    tensors: tuple[TensorSpec, ...] = ()
    """As they are asked for, whether or not they are stored."""
    caller_hash: str | None = None
    """What the caller calls a preprocessed item; told, never looked at."""
    stored: Stored | None = None
    """Pinned in the store; None where nothing is sent."""
    location: dict[str, Any] | None = None
    """Where the features are, for all but inline ones."""


@dataclass(slots=True)
class Answer:
    """All that is needed to answer; holds pins until `close`."""

    request_id: str
    instance: str
    model: ServedModel
    prompt: ExpandedPrompt | None
    items: list[AnswerItem]
    inline: bool
    warnings: list[tuple[str, str, str]] = field(default_factory=list)
    """(code, place in the request, sentence)."""
    passed_over: tuple[tuple[str, str], ...] = ()
    """(transport, why) of what stood before the one used in the caller's list."""
    lease: dict[str, Any] | None = None
    positions: Positions | None = None
    wants_positions: bool = False
    prompt_text: str | None = None
    timings_ms: dict[str, float] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    """Of each item computed: how many shared its call."""
    on_close: Callable[[bool], None] = lambda complete: None

    def close(self, complete: bool) -> None:
        """Let go of what the answer held; `complete`: the whole body reached the socket."""
        self.on_close(complete)

    @property
    def num_tokens(self) -> int:
        """Tokens of the expanded prompt."""
        return 0 if self.prompt is None else len(self.prompt.input_ids)

    @property
    def inline_nbytes(self) -> int:
        """Bytes of documents that go inline."""
        return sum(i.stored.region.nbytes for i in self.items if i.stored and self.inline)


def describe(answer: Answer) -> dict[str, Any]:
    """Return the answer's JSON without `input_ids`, inline locations without their data."""
    info = answer.model.info
    # Items of one size have the very same tensors.
    tensors: dict[int, dict[str, Any]] = {}
    for item in answer.items:
        if id(item.tensors) not in tensors:
            tensors[id(item.tensors)] = _describe_document(item.tensors)
    body: dict[str, Any] = {
        "request_id": answer.request_id,
        "model": info.name,
        "instance": answer.instance,
        "fingerprint": info.fingerprint,
        "prompt_fingerprint": info.prompt_fingerprint,
        "items": [
            describe_item(item, tensors[id(item.tensors)], inline=answer.inline)
            for item in answer.items
        ],
        "lease": answer.lease,
        "warnings": describe_warnings(answer.warnings),
        "timings_ms": {k: round(v, 3) for k, v in answer.timings_ms.items()},
    }
    if answer.wants_positions:
        body["position_delta"] = None if answer.positions is None else answer.positions.delta
    if answer.prompt_text is not None:
        body["prompt"] = answer.prompt_text
    return body


def _describe_document(tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return what stands in one document, by name."""
    entries = [TensorEntry(t.name, t.dtype, t.shape) for t in tensors]
    return describe_tensors(tensors, data_offsets(entries))


def describe_item(item: AnswerItem, tensors: dict[str, Any], *, inline: bool) -> dict[str, Any]:
    """Return one item's JSON."""
    location = {"kind": "safetensors"} if inline and item.stored is not None else item.location
    return {
        "modality": item.modality.value,
        "index": item.index,
        "status": item.status,
        **describe_placement(item.placement, item.plan),
        "hash": item.hash,
        "content_digest": None if item.digest is None else item.digest.hex(),
        "exact": item.plan.exact,
        "tensors": tensors,
        "location": location,
        "source": describe_source(item.plan.source),
        **({} if item.caller_hash is None else {"caller_hash": item.caller_hash}),
    }


def _arrays(answer: Answer) -> dict[str, np.ndarray]:
    """Return the request-level int32 arrays by name."""
    arrays = {}
    if answer.prompt is not None:
        arrays["input_ids"] = answer.prompt.input_ids
    if answer.positions is not None:
        arrays["position_ids"] = answer.positions.position_ids
        arrays["mm_token_type_ids"] = answer.positions.mm_token_type_ids
    return {k: np.ascontiguousarray(v, dtype="<i4") for k, v in arrays.items()}


def _base64_parts(document: memoryview) -> list[Made]:
    """Return a document's base64 in parts that are made when their turn to be sent comes."""

    def make(start: int) -> Made:
        piece = document[start : start + BASE64_SLICE]
        return 4 * -(-piece.nbytes // 3), lambda: pybase64.b64encode(piece)

    return [make(start) for start in range(0, document.nbytes, BASE64_SLICE)]


def json_parts(answer: Answer, store: FeatureStore, max_inline_bytes: int) -> list[Part]:
    """Return the JSON body: text around each inline document's base64.

    Blocking: CPU time grows with the prompt's length; run in a thread.

    Raises:
        MediaTooLargeError: If the inline documents exceed the limit.
    """
    nbytes = answer.inline_nbytes
    if nbytes > max_inline_bytes:
        raise MediaTooLargeError(
            f"The features are {nbytes} bytes; at most {max_inline_bytes} are answered as JSON. "
            f"Ask with Accept: {BINARY_TYPE}."
        )
    body = describe(answer)
    arrays = _arrays(answer)
    body["input_ids"] = arrays.pop("input_ids", None)
    if answer.wants_positions:
        for name in ("position_ids", "mm_token_type_ids"):
            body[name] = _base64_array(arrays[name]) if name in arrays else None
    documents: list[memoryview] = []
    mark = secrets.token_hex(16)
    for entry, item in zip(body["items"], answer.items, strict=True):
        if answer.inline and item.stored is not None:
            entry["location"]["data"] = mark
            documents.append(store.view(item.stored))
    text = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    pieces = text.split(mark.encode())
    parts: list[Part] = [pieces[0]]
    for piece, document in zip(pieces[1:], documents, strict=True):
        parts += [*_base64_parts(document), piece]
    return parts


def _base64_array(array: np.ndarray) -> dict[str, Any]:
    data = pybase64.b64encode(array.tobytes()).decode()
    return {"dtype": "int32", "shape": list(array.shape), "data": data}


def binary_parts(answer: Answer, store: FeatureStore) -> list[Part]:
    """Return the safetensors body: its own header, then every tensor by falling element size.

    Blocking: CPU time grows with the prompt's length; run in a thread.
    """
    arrays = _arrays(answer)
    buffers: dict[str, memoryview] = {k: v.data.cast("B") for k, v in arrays.items()}
    entries = [TensorEntry(k, "int32", v.shape) for k, v in arrays.items()]
    for number, item in enumerate(answer.items):
        if not answer.inline or item.stored is None:
            continue
        document, layout = store.view(item.stored), item.stored.layout
        for tensor in item.stored.tensors:
            name = f"{number}.{tensor.name}"
            start = layout.data_start + layout.offsets[tensor.name]
            buffers[name] = document[start : start + tensor.nbytes]
            entries.append(TensorEntry(name, tensor.dtype, tensor.shape))
    layout = build_layout(entries, {"response": orjson.dumps(describe(answer)).decode()})
    return [layout.header, *(buffers[name] for name in layout.offsets)]


def respond(
    answer: Answer, parts: list[Part], media_type: str, *, executor: Executor, stalled_s: float
) -> StreamedResponse:
    """Return the response that streams a body and closes the answer when it is out."""
    return StreamedResponse(
        parts,
        headers={"x-request-id": answer.request_id},
        media_type=media_type,
        executor=executor,
        stalled_s=stalled_s,
        on_end=answer.close,
    )
