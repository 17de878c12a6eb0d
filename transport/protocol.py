"""What the client sends and how it reads the answers; no network, the same for sync and async."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np

from transport.errors import ApiError, ClientError, DocumentError, ServiceUnreachableError
from transport.safetensors import TensorView, read_document
from transport.tensors import Array, to_numpy
from transport.wire import AnswerWarning, Item, Lease, Problem, Response, SafetensorsLocation

BINARY_TYPE = "application/vnd.mmprep.safetensors"
MAX_BATCH = 4096
"""Lease ids in one call of /leases/release or /leases/renew."""

Transport = Literal["safetensors", "shm", "cuda_ipc", "ref", "none"]
MediaInput = str | bytes | bytearray | memoryview | os.PathLike[str] | Mapping[str, Any] | None
"""A Media string, encoded bytes, a local file to upload, or a Media object.

An object's `data` may be bytes: they are uploaded, not turned into base64.
"""


class PreprocessFields(TypedDict, total=False):
    """The fields of POST /preprocess; those left out take the service's defaults."""

    model: str
    prompt: str
    input_ids: Sequence[int] | Array
    """An array is uploaded as int32, whatever its integer type."""
    messages: Sequence[Mapping[str, Any]]
    images: Sequence[MediaInput]
    videos: Sequence[MediaInput]
    audios: Sequence[MediaInput]
    uploads: Mapping[str, bytes]
    """Further file parts, for `{"upload": name}` inside of messages."""
    expanded: bool | Literal["auto"]
    lenient: bool
    add_generation_prompt: bool
    chat_template: str
    chat_template_kwargs: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    mm_processor_kwargs: Mapping[str, Any]
    transport: Transport | Sequence[Transport]
    dtype: Literal["float32", "bfloat16", "float16", "model"]
    encoding: Literal["plain", "compact", "raw"]
    positions: bool
    known: Sequence[str]
    plan_hash: bool
    wait: bool
    readers: int
    lease_ttl_s: float
    cache_salt: str
    fingerprint: str
    priority: int
    deadline_ms: float
    max_prompt_tokens: int
    request_id: str
    return_prompt: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of POST /preprocess, with its ids as arrays."""

    response: Response
    input_ids: Array | None
    """int32 of shape (L,); None for models without text."""
    position_ids: Array | None = None
    """int32, in the model's shape, where positions were asked for."""
    mm_token_type_ids: Array | None = None
    """int32 of shape (L,), where positions were asked for."""

    @property
    def items(self) -> list[Item]:
        """The items, by their first position in the prompt."""
        return self.response.items

    @property
    def lease(self) -> Lease | None:
        """What keeps the features where they are; None where they are in the answer."""
        return self.response.lease

    @property
    def warnings(self) -> list[AnswerWarning]:
        """What is no error and still worth knowing."""
        return self.response.warnings

    @property
    def position_delta(self) -> int | None:
        """What later positions differ by from the token count."""
        return self.response.position_delta


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A body of POST /preprocess: JSON, or JSON and file parts."""

    json: bytes
    uploads: Mapping[str, bytes | bytearray | memoryview]

    @property
    def files(self) -> list[tuple[str, tuple[str | None, bytes, str]]] | None:
        """Parts of a multipart body, or None where the JSON is the body."""
        if not self.uploads:
            return None
        parts: list[tuple[str, tuple[str | None, bytes, str]]] = [
            ("request", (None, self.json, "application/json"))
        ]
        for name, data in self.uploads.items():
            whole = data if isinstance(data, bytes) else bytes(data)
            parts.append((name, (name, whole, "application/octet-stream")))
        return parts


def encode_request(fields: PreprocessFields, consumer: Mapping[str, Any] | None) -> Outgoing:
    """Make a request's body.

    Args:
        fields: The request.
        consumer: Proof of what this process shares with the service; sent where the transport
            asked for needs one.

    Raises:
        OSError: If a local file cannot be read.
        TypeError: If a medium is none of `MediaInput`, or something in it is not JSON.
    """
    body: dict[str, Any] = dict(fields)
    uploads: dict[str, bytes | bytearray | memoryview] = dict(body.pop("uploads", {}))
    for kind in ("images", "videos", "audios"):
        if kind in body:
            body[kind] = [_medium(m, f"{kind}{i}", uploads) for i, m in enumerate(body[kind])]
    if isinstance(body.get("input_ids"), np.ndarray):
        uploads["input_ids"] = body["input_ids"].astype("<i4").tobytes()
        body["input_ids"] = {"upload": "input_ids"}
    wanted = body.get("transport", ())
    wanted = {wanted} if isinstance(wanted, str) else set(wanted)
    if consumer is not None and wanted & {"shm", "cuda_ipc"}:
        body["consumer"] = consumer
    return Outgoing(msgspec.json.encode(body), uploads)


def _medium(
    medium: MediaInput, part: str, uploads: dict[str, bytes | bytearray | memoryview]
) -> str | Mapping[str, Any] | None:
    match medium:
        case None | str():
            return medium
        case bytes() | bytearray() | memoryview():
            uploads[part] = medium
            return {"upload": part}
        case os.PathLike():
            uploads[part] = Path(medium).read_bytes()
            return {"upload": part}
        case Mapping():
            data = medium.get("data")
            if not isinstance(data, bytes | bytearray | memoryview):
                return medium
            uploads[part] = data
            return {**{k: v for k, v in medium.items() if k != "data"}, "upload": part}
    raise TypeError("a medium is a string, bytes, a path or an object")


def decode_answer(content_type: str, body: memoryview) -> Answer:
    """Read an answer of POST /preprocess, JSON or binary; tensors stay where the body is.

    Raises:
        DocumentError: If it is not a well-formed answer.
    """
    try:
        if content_type.startswith(BINARY_TYPE):
            return _decode_binary(body)
        return _decode_json(body)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as exc:
        raise DocumentError("the service's answer is not one this client understands") from exc


def _decode_binary(body: memoryview) -> Answer:
    document = read_document(body)
    response = msgspec.json.decode(document.metadata["response"].encode(), type=Response)
    for number, item in enumerate(response.items):
        if isinstance(item.location, SafetensorsLocation) and item.location.data is None:
            item.location.views = {n: document.tensors[f"{number}.{n}"] for n in item.tensors}
    arrays = (
        to_numpy(document.tensors[name]) if name in document.tensors else None
        for name in ("input_ids", "position_ids", "mm_token_type_ids")
    )
    return Answer(response, *arrays)


def _decode_json(body: memoryview) -> Answer:
    response = msgspec.json.decode(body, type=Response)
    ids = None if response.input_ids is None else np.array(response.input_ids, np.int32)
    response.input_ids = None
    return Answer(response, ids, _array(response.position_ids), _array(response.mm_token_type_ids))


class _WireArray(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _array(value: object) -> Array | None:
    if value is None:
        return None
    wire = msgspec.convert(value, _WireArray)
    return to_numpy(TensorView(wire.dtype, wire.shape, memoryview(bytearray(wire.data))))


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error that an answer with status 400 or above tells of."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A proxy's page, or the body of a HEAD.
        problem = Problem(retryable=status in (429, 502, 503, 504))
    message = problem.detail or problem.title or f"the service answered with status {status}"
    retry_after = problem.retry_after_ms
    wait_s = retry_after / 1000 if retry_after is not None else _seconds(headers.get("retry-after"))
    return ApiError(message, problem.param or "", status, problem.code, problem.retryable, wait_s)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to send a request again: after 429 and 503, and where no answer came."""

    attempts: int = 4
    """Times a request is sent, the first included."""
    max_wait_s: float = 30.0
    """Longest wait between two attempts; a service that asks for more is not waited for."""
    first_wait_s: float = 0.1
    """Wait after the first failure where the service names none; doubles each time."""

    def wait_s(self, attempt: int, error: ClientError) -> float | None:
        """Return how long to wait before attempt number `attempt` (from 1), or None to give up."""
        if attempt >= self.attempts:
            return None
        asked: float | None = None
        if isinstance(error, ApiError):
            if error.status not in (429, 503):
                return None
            asked = error.retry_after_s
        elif not (isinstance(error, ServiceUnreachableError) and error.retryable):
            return None
        # Spread, so that clients refused together do not come back together.
        backoff = self.first_wait_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        wait_s = backoff if asked is None else asked
        return wait_s if wait_s <= self.max_wait_s else None
