"""Wire models of POST /preprocess: shapes and bounds only; meaning is checked further in.

The contract's section 1 is the reference. Unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

TRANSPORTS = ("safetensors", "shm", "cuda_ipc", "ref", "none")
TransportName = Literal["safetensors", "shm", "cuda_ipc", "ref", "none"]
DtypeName = Literal["float32", "bfloat16", "float16", "model"]
EncodingName = Literal["plain", "compact", "raw"]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MEDIA_FIELDS = ("images", "videos", "audios", "messages")
"""Fields of a request that hold media."""
MAX_KNOWN = 4096
MAX_ID = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=MAX_ID)]


class Wire(BaseModel):
    """Base of the request's models: frozen, nothing unknown, no coercion of strings to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WireMediaOptions(Wire):
    """Options of one medium; which apply depends on its modality."""

    alpha: Literal["white", "drop", "keep"] | None = None
    frames: Literal["first", "all"] | None = None
    fps: float | None = Field(None, gt=0, le=1000, allow_inf_nan=False)
    num_frames: int | None = Field(None, ge=1, le=100_000)
    max_frames: int | None = Field(None, ge=1, le=100_000)
    start_s: float | None = Field(None, ge=0, le=1e7, allow_inf_nan=False)
    end_s: float | None = Field(None, ge=0, le=1e7, allow_inf_nan=False)
    trim_padding: bool | None = None
    frame_scaling: float | None = Field(None, gt=0, le=100, allow_inf_nan=False)


def _one_source(media: WireMedia) -> WireMedia:
    given = [
        n for n in ("url", "data", "upload", "hash", "frames") if getattr(media, n) is not None
    ]
    if len(given) > 1 or (not given and media.uuid is None):
        msg = "needs exactly one of url, data, upload, hash (or a uuid seen before)"
        raise ValueError(msg)
    return media


class WireMedia(Wire):
    """A medium given as an object."""

    url: str | None = None
    data: str | None = None
    upload: str | None = Field(None, min_length=1, max_length=256)
    hash: Hash | None = None
    frames: list[str | WireMedia] | None = Field(None, min_length=1, max_length=4096)
    """A video given as a list of images."""
    uuid: str | None = Field(None, min_length=1, max_length=256)
    options: WireMediaOptions | None = None

    _check = model_validator(mode="after")(_one_source)


class WireTensors(Wire):
    """Tensors that travel with the request."""

    safetensors: str | None = None
    """Base64 of a safetensors document."""
    upload: str | None = Field(None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _one(self) -> WireTensors:
        if (self.safetensors is None) == (self.upload is None):
            msg = "needs exactly one of safetensors, upload"
            raise ValueError(msg)
        return self


class WirePreprocessed(Wire):
    """An entry whose features the caller already has."""

    format: Literal["processor_output", "precomputed_embedding"]
    tensors: WireTensors = Field(
        description="By the processor's output names. Beyond them, `num_tokens` says the tokens of "
        "each item; `fps`, `frames_indices`, `total_num_frames` and `duration` describe videos."
    )
    modality: Literal["image", "video", "audio"] | None = None
    input_ids: list[TokenId] | None = None
    offsets: list[Annotated[list[TokenId], Field(min_length=2, max_length=2)]] | None = None
    hash: str | None = Field(
        None, max_length=128, description="Told in the answer as `caller_hash`; names nothing here."
    )


class WireIdsUpload(Wire):
    """Token ids in a file part: little-endian int32."""

    upload: str = Field(min_length=1, max_length=256)


class WireConsumer(Wire):
    """The client's proof that it can open what a transport points to."""

    shm: str | None = Field(None, max_length=256)
    gpus: list[Annotated[str, StringConstraints(max_length=64)]] | None = Field(None, max_length=64)
    pidns: int | None = None


def _media_kind(value: object) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "preprocessed" if "format" in value else "object"
    if isinstance(value, WirePreprocessed):
        return "preprocessed"
    return "object" if isinstance(value, WireMedia) else "null"


Media = Annotated[
    Annotated[str, Tag("string")]
    | Annotated[WireMedia, Tag("object")]
    | Annotated[WirePreprocessed, Tag("preprocessed")]
    | Annotated[None, Tag("null")],
    Discriminator(_media_kind),
]
MEDIA_TAGS = frozenset({"string", "object", "preprocessed", "null"})
"""Steps in a validation error's location that no client wrote."""
MediaList = Annotated[list[Media], Field(max_length=65_536)]


def _no_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = "must be valid Unicode; it holds a lone surrogate"
        raise ValueError(msg) from error
    return text


Text = Annotated[str, AfterValidator(_no_surrogates)]


class PreprocessRequest(Wire):
    """One prompt with its media, and how to answer."""

    model: str | None = Field(None, max_length=512)
    prompt: Text | None = None
    input_ids: list[TokenId] | WireIdsUpload | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1, max_length=65_536)
    images: MediaList | None = None
    videos: MediaList | None = None
    audios: MediaList | None = None
    expanded: bool | Literal["auto"] = False
    lenient: bool = False
    add_generation_prompt: bool = True
    chat_template: Text | None = Field(None, max_length=1 << 20)
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=4096)
    mm_processor_kwargs: dict[str, Any] | None = None
    transport: TransportName | list[TransportName] = "safetensors"
    dtype: DtypeName = "float32"
    encoding: EncodingName = "plain"
    positions: bool = False
    known: list[Hash] | None = Field(None, max_length=MAX_KNOWN)
    plan_hash: bool = False
    wait: bool = True
    readers: int = Field(1, ge=1, le=4096)
    lease_ttl_s: float | None = Field(None, gt=0, le=1800, allow_inf_nan=False)
    consumer: WireConsumer | None = None
    cache_salt: Text | None = Field(None, max_length=1024)
    fingerprint: str | None = Field(None, max_length=128)
    priority: int = Field(0, ge=-(2**31), le=MAX_ID)
    deadline_ms: float | None = Field(None, gt=0, le=3_600_000, allow_inf_nan=False)
    max_prompt_tokens: int | None = Field(None, ge=1, le=MAX_ID)
    request_id: str | None = Field(None, min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")
    return_prompt: bool = False
    format: Literal["native"] = "native"

    @field_validator("transport")
    @classmethod
    def _some_transport(cls, value: str | list[str]) -> str | list[str]:
        if not value:
            msg = "names no transport"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _one_prompt(self) -> PreprocessRequest:
        given = [n for n in ("prompt", "input_ids", "messages") if getattr(self, n) is not None]
        if len(given) > 1:
            msg = f"give exactly one of prompt, input_ids, messages; got {' and '.join(given)}"
            raise ValueError(msg)
        if self.messages is not None and (self.images or self.videos or self.audios):
            msg = "with messages, media stand inside the messages"
            raise ValueError(msg)
        return self

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports asked for, best first."""
        return (self.transport,) if isinstance(self.transport, str) else tuple(self.transport)


class LeaseBatch(Wire):
    """Body of POST /leases/release and /leases/renew."""

    ids: list[Annotated[str, StringConstraints(min_length=1, max_length=128)]] = Field(
        min_length=1, max_length=4096
    )
    reader: str | None = Field(None, min_length=1, max_length=128)
    ttl_s: float | None = Field(None, gt=0, le=1800, allow_inf_nan=False)
