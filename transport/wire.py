"""The service's answers as typed values, for consumers.

Field names are the wire's. What a newer service adds is ignored, so that an older client goes on
working.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """How items' tensors join: `flat` concatenates along `dim`, `batched` stacks."""

    kind: Literal["flat", "batched", "shared"]
    dim: int = 0


class Pad(msgspec.Struct, frozen=True, kw_only=True):
    """Where a joint Hugging Face call would pad to the largest item, and with what."""

    dims: tuple[int, ...]
    value: float


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """What compact codes leave out: each `block` entries along `axis` stand for `times` copies."""

    axis: int
    block: int
    times: int


class LutEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """How uint8 codes become the plain tensor: by a table per channel, then by repetition."""

    kind: Literal["lut-u8"]
    table: str
    """Name of the tensor that holds the table: float32 of shape (C, 256)."""
    channel_axis: int
    channel_stride: int
    """The channel of entry `i` on the channel axis is `(i // channel_stride) % C`."""
    repeat: Repeat | None = None
    plain_shape: tuple[int, ...]
    plain_dtype: str


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of an item."""

    dtype: str
    """In torch's spelling without the prefix."""
    shape: tuple[int, ...]
    nbytes: int
    role: Literal["feature", "metadata", "lut"]
    field: Field
    offset: int | None = None
    """Start within the data section of the item's document."""
    keep_on_cpu: bool = False
    values: Any = None
    """Nested lists, where `keep_on_cpu` and small."""
    normalized: bool | None = None
    pad: Pad | None = None
    encoding: LutEncoding | None = None


class SafetensorsLocation(msgspec.Struct, tag="safetensors", tag_field="kind", kw_only=True):
    """Features inside the answer."""

    data: bytes | None = None
    """The item's document; base64 on the wire."""
    views: Any = None
    """Not on the wire: the item's tensors by name, where the answer was one document."""


class ShmLocation(msgspec.Struct, tag="shm", tag_field="kind", frozen=True, kw_only=True):
    """Features in shared memory of this machine."""

    segment: str
    offset: int
    nbytes: int
    generation: int


class CudaLocation(msgspec.Struct, tag="cuda_ipc", tag_field="kind", frozen=True, kw_only=True):
    """Features in a pool of device memory: the data section only."""

    pool_id: str
    offset: int
    nbytes: int
    generation: int
    slot: int
    device_uuid: str


class RefLocation(msgspec.Struct, tag="ref", tag_field="kind", frozen=True, kw_only=True):
    """Features to be had from a URL."""

    url: str
    nbytes: int


Location = SafetensorsLocation | ShmLocation | CudaLocation | RefLocation


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What the medium was; fields that do not apply are None."""

    mime: str
    nbytes: int
    width: int | None = None
    height: int | None = None
    orientation: int | None = None
    num_frames: int | None = None
    fps: float | None = None
    seconds: float | None = None
    sample_rate: int | None = None
    channels: int | None = None


class Item(msgspec.Struct, kw_only=True):
    """One image, video or audio clip: where it is in the prompt, and where its features are."""

    modality: Literal["image", "video", "audio"]
    index: int
    status: Literal["computed", "cached", "known", "planned", "pending", "passthrough"]
    token_id: int | None = None
    offsets: list[tuple[int, int]] = []
    """Inclusive ranges of the positions that take one encoder row each."""
    span: tuple[int, int] | None = None
    """Inclusive range of everything the placeholder became."""
    num_tokens: int = 0
    hash: str | None = None
    content_digest: str | None = None
    exact: bool = True
    tensors: dict[str, TensorInfo] = {}
    location: Location | None = None
    source: Source | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """How long the features of an answer stay where they are."""

    id: str
    ttl_ms: float
    readers: int = 1


class AnswerWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something a caller should know that is no error."""

    code: str
    detail: str = ""
    param: str | None = None


class Response(msgspec.Struct, kw_only=True):
    """An answer of POST /preprocess as it stands on the wire."""

    request_id: str
    model: str
    instance: str
    fingerprint: str
    prompt_fingerprint: str | None = None
    input_ids: list[int] | None = None
    prompt: str | None = None
    items: list[Item] = []
    lease: Lease | None = None
    warnings: list[AnswerWarning] = []
    timings_ms: dict[str, float] = {}
    position_ids: Any = None
    position_delta: int | None = None
    mm_token_type_ids: Any = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document."""

    code: str = "internal"
    detail: str = ""
    title: str = ""
    param: str | None = None
    status: int = 0
    retryable: bool = False
    retry_after_ms: float | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pool's generation words stand in host shared memory."""

    segment: str
    offset: int


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of device memory that `cuda_ipc` locations point into."""

    pool_id: str
    device_uuid: str
    handle: bytes
    """Of the runtime's inter-process interface; base64 on the wire."""
    nbytes: int
    control: Control
