"""The values that planning, executing and packing hand to each other.

Everything here is frozen, picklable and free of torch, so that it crosses process borders as a
small message. Dimension letters: `L` prompt tokens, `N` items, `P` patches, `C H W`, `T` frames,
`S` samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

DTYPE_SIZES: Mapping[str, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "uint8": 1, "int8": 1, "bool": 1,
}  # fmt: skip
"""Bytes per element, by torch's dtype spelling; the only dtypes that reach the wire."""


class Modality(StrEnum):
    """Kind of an item; the order is the order of precedence where two items start together."""

    VIDEO = "video"
    IMAGE = "image"
    AUDIO = "audio"

    def __reduce_ex__(self, proto: object) -> tuple[type[Modality], tuple[str]]:
        """Pickle as a call of the class: Python before 3.11.4 names `getattr`, which is refused."""
        return type(self), (self.value,)


class Message:
    """Base of values that cross processes: pickled as a call with their fields.

    What dataclasses do by themselves looks at each field in Python, twice.
    """

    __slots__: Sequence[str] = ()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Bounds that hold before anything is allocated for a medium."""

    max_pixels: int = 100_000_000
    """Decoded pixels of one image, or of all frames kept of one video."""
    max_frames: int = 768
    """Frames kept of one video."""
    max_audio_s: float = 3600.0
    """Seconds of audio decoded from one medium."""
    max_feature_bytes: int = 1 << 30
    """Bytes of all tensors of one item."""
    max_item_tokens: int = 262_144
    """Prompt tokens one item may become."""
    max_decode_s: float = 60.0
    """Wall seconds one decode may take; decoders that can check it do so between frames."""


@dataclass(frozen=True, slots=True)
class MediaOptions(Message):
    """Options of one Media value (contract section 1); `None` means not given."""

    alpha: Literal["white", "drop", "keep"] | None = None
    frames: Literal["first", "all"] | None = None
    fps: float | None = None
    num_frames: int | None = None
    max_frames: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    trim_padding: bool | None = None
    frame_scaling: float | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name; what enters the item's hash."""
        return {k: v for k in self.__slots__ if (v := getattr(self, k)) is not None}


@dataclass(frozen=True, slots=True)
class MediaInfo(Message):
    """What a header probe says of a medium; the wire's `source`."""

    kind: Modality
    """What the bytes are, whatever they were sent as."""
    mime: str
    nbytes: int
    width: int | None = None
    """Pixels, as shown (after orientation or rotation)."""
    height: int | None = None
    orientation: int | None = None
    """EXIF orientation 1-8 of an image."""
    num_frames: int | None = None
    """Frames of a video, promised by the container or counted by demuxing; pictures of an image."""
    fps: float | None = None
    """Average frames per second."""
    seconds: float | None = None
    sample_rate: int | None = None
    """Hz of the best audio track as stored."""
    channels: int | None = None
    has_audio: bool = False
    exact: bool = True
    """False where the header may lie about what will decode (video frame counts)."""


@dataclass(frozen=True, slots=True)
class FieldLayout(Message):
    """How items' tensors join: `flat` concatenates along `dim`, `batched` stacks."""

    kind: Literal["flat", "batched", "shared"]
    dim: int = 0


@dataclass(frozen=True, slots=True)
class PadSpec(Message):
    """Where a joint Hugging Face call would pad this tensor to the largest item, and with what."""

    dims: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Repeat(Message):
    """Every block of `block` entries along `axis` stands `times` times in the plain layout."""

    axis: int
    block: int
    times: int


@dataclass(frozen=True, slots=True)
class LutEncoding(Message):
    """How uint8 codes and a table become a plain feature; the wire's `encoding`."""

    code_shape: tuple[int, ...]
    channel_axis: int
    channel_stride: int
    """Along the channel axis, entry `i` belongs to channel `(i // channel_stride) % 3`."""
    repeat: Repeat | None
    plain_shape: tuple[int, ...]
    plain_dtype: str
    """In torch's spelling without the prefix."""


@dataclass(frozen=True, slots=True)
class TensorSpec(Message):
    """One output tensor of one item, known before anything is decoded."""

    name: str
    """The Hugging Face output name."""
    dtype: str
    """In torch's spelling without the prefix: `float32`, `bfloat16`, `int64`, `bool`, ..."""
    shape: tuple[int, ...]
    """With HF's leading dimension."""
    role: Literal["feature", "metadata", "lut"]
    layout: FieldLayout
    keep_on_cpu: bool = False
    """True for tensors whose values the plan knows (grids, sizes, counts)."""
    values: Any = None
    """Nested lists of the values where `keep_on_cpu`, else None."""
    normalized: bool | None = None
    """For pixel features: whether rescale and normalise have been applied."""
    pad: PadSpec | None = None
    compact: LutEncoding | None = None
    """Of a planned feature: how it is stored as codes; None where it cannot be."""
    encoding: LutEncoding | None = None
    """Of a stored tensor: how its codes become the plain feature; None where it holds no codes."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * DTYPE_SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class ReplacementPart(Message):
    """A piece of what a placeholder becomes: `text` repeated `times` times (run-length coded)."""

    text: str
    times: int = 1
    ids: tuple[int, ...] | None = None
    """Token ids of `text`, where the tokenizer has no fast form that others could ask."""


@dataclass(frozen=True, slots=True)
class ItemPlan(Message):
    """All that is known of one item before its pixels or samples are decoded."""

    modality: Modality
    source: MediaInfo
    replacement: tuple[ReplacementPart, ...] | None
    """What the placeholder becomes in the prompt; None for models without text. Empty for the sound
    of a video (`use_audio_in_video`), whose tokens stand inside the video's replacement."""
    num_tokens: int
    """Encoder rows; 0 for cross-attention models and models without text."""
    row_token_id: int | None
    """Id of the token that stands for one encoder row of this item; None where there is none."""
    tensors: tuple[TensorSpec, ...]
    exact: bool = True
    """False where the plan came from a header that may lie."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(code, sentence) pairs for the answer's `warnings`."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What processing needs of the plan (sampled frame indices, grids); small and picklable."""


@dataclass(frozen=True, slots=True)
class PlaceholderSpec:
    """How an item of one modality appears in an unexpanded prompt."""

    text: str
    """The string a prompt carries once per item."""
    token_id: int | None
    """Its vocabulary id, where it is one token."""
    pattern: str | None = None
    """Regular expression of equivalent spellings (`<\\|image_\\d+\\|>`), if the family has one."""


@dataclass(frozen=True, slots=True)
class PromptEdit:
    """Text that a processor's own call writes into every text prompt."""

    place: Literal["start", "after_leading_media", "after_last_media", "end"]
    text: str
    unless: Literal["starts", "contains"] | None = None
    """Where it is not written: the prompt starts with it, or holds it somewhere."""
    needs_media: bool = False
    """Whether it is written into prompts with media only."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the API process knows of a served model; made by a worker at warm-up, sent once."""

    name: str
    family: str
    """transformers' `model_type`."""
    architecture: str
    modalities: tuple[Modality, ...]
    placeholders: Mapping[Modality, PlaceholderSpec]
    special_tokens: Mapping[str, int]
    """Every media token the family knows: name (`image_token`, `vision_start`, ...) to id."""
    features: Mapping[Modality, tuple[str, ...]]
    """Names of the tensors with role `feature`."""
    accepted_kwargs: Mapping[Modality, tuple[str, ...]]
    """Names `mm_processor_kwargs` may hold, per modality."""
    fingerprint: str
    fingerprint_inputs: Mapping[str, Any]
    prompt_fingerprint: str | None
    tokenizer_json: bytes | None = field(repr=False)
    """The fast tokenizer, serialised; None where there is none (slow tokenizer, or no text)."""
    adds_special_tokens: bool = False
    """Whether the processor's own call adds BOS or the like to a plain text."""
    bos_token: str | None = None
    has_chat_template: bool = False
    model_dtype: str | None = None
    """What `dtype: "model"` means: the config's torch dtype, if it says one."""
    positions: str | None = None
    """Name of the position scheme in `processors.positions`, or None."""
    position_config: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that scheme: token ids, merge size, tokens per second."""
    prompt_edits: tuple[PromptEdit, ...] = ()
    """What the processor's own call writes into a text prompt; token ids are never edited."""
    stateful_prompt: bool = False
    """True where an item's replacement depends on its index (MiniCPM counts images)."""
    compact: tuple[Modality, ...] = ()
    """The modalities whose pixels can be had as `compact` and `raw`."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StageTraits:
    """How a model's items of one modality are planned and processed; never changes results."""

    plans_by: str
    """`meta` tensors, `zeros`, or a `function` of the family's on either."""
    has_kernel: bool
    has_compact: bool


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model to serve, as the operator names it."""

    name: str
    path: str
    """A local directory, or a hub id that is already in the local cache."""
    aliases: tuple[str, ...] = ()
    device: str = "cpu"
    image_backend: Literal["torchvision", "pil"] = "torchvision"
    trust_remote_code: bool = False
    default_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The server's default `mm_processor_kwargs` (`--mm-process-config`); enter the fingerprint."""
    video_fps: float = 2.0
    """Frames a second where the processor has no sampling rule of its own."""
    allow_fast: bool = True
    """Whether exact fast kernels may stand in for the plain processor; never changes results."""
    max_batch: int = 1
    """Images of equal size that one call may take; never changes results."""
    batch_wait_s: float = 0.002
    """How long an image waits for others of its size."""


@dataclass(frozen=True, slots=True)
class ItemInput:
    """One item as planning and processing take it."""

    modality: Modality
    data: tuple[memoryview | bytes, ...]
    """Encoded bytes: one medium, or the frames of a video given as a list of images."""
    options: MediaOptions = field(default_factory=MediaOptions)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Effective processor kwargs of this modality, flat (`processors.kwargs.effective_kwargs`)."""
    index: int = 0
    """Place within its modality; only families with `stateful_prompt` look at it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Family switches that span modalities (`use_audio_in_video`)."""
    num_threads: int = 1
    """Most threads to process it with; what comes out does not depend on it."""


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor that a caller gives."""

    dtype: str
    """In torch's spelling without the prefix."""
    shape: tuple[int, ...]
    data: memoryview = field(repr=False)
    """C-contiguous, little-endian, of any alignment."""


@dataclass(frozen=True, slots=True)
class GivenEntry:
    """Items of one modality that a caller has preprocessed, together."""

    modality: Modality
    format: Literal["processor_output", "precomputed_embedding"]
    tensors: Mapping[str, GivenTensor]
    """By Hugging Face's output name; `num_tokens` may say the tokens of each item."""
    run_lengths: tuple[int, ...] = ()
    """Lengths of the token ranges the caller gives; counts where nothing else tells any."""


@dataclass(frozen=True, slots=True)
class TensorSlice(Message):
    """One item's part of a tensor that stands for several items."""

    name: str
    dim: int
    start: int
    stop: int
    """Half-open along `dim`."""
    minus: int = 0
    """Taken off values that are not negative: row numbers that count on over items."""


@dataclass(frozen=True, slots=True)
class GivenItem(Message):
    """One item of a preprocessed entry."""

    plan: ItemPlan
    digest: bytes
    """Content digest of its tensors, 32 bytes."""
    slices: tuple[TensorSlice, ...]
    """Where each tensor of the plan comes from."""


@dataclass(frozen=True, slots=True)
class ProcessReport(Message):
    """What processing one item took."""

    decode_ms: float
    process_ms: float
    warnings: tuple[tuple[str, str], ...] = ()
    kernel: str = "plain"
    """Which implementation ran; for metrics only."""
    batch: int = 1
    """Items that ran in the same call; for metrics only."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt(Message):
    """A prompt as pieces of text; what a caller typed is never read for media tokens.

    Trusted pieces are template output: special tokens in them mean what they mean. In untrusted
    pieces the family's placeholder and media-framing tokens are plain text, every other special
    token keeps its meaning (contract section 1, chat parts).
    """

    pieces: tuple[tuple[str, bool], ...]
    """(text, is_trusted), in order; joined they are the whole prompt."""
    add_special_tokens: bool = True
    """Whether the tokenizer's own BOS and the like are added; False after a chat template."""

    @property
    def text(self) -> str:
        """The whole prompt as one string."""
        return "".join(t for t, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class ChatInput(Message):
    """Chat messages to render, media parts reduced to `{"type": "image" | "video" | "audio"}`."""

    messages: tuple[Mapping[str, Any], ...]
    add_generation_prompt: bool = True
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class ItemPlacement:
    """Where one item landed in the expanded prompt; all ranges half-open."""

    modality: Modality
    index: int
    offsets: tuple[tuple[int, int], ...]
    """Maximal runs of positions that take one encoder row each, in row order."""
    span: tuple[int, int] | None
    """Everything the placeholder became, separators included."""
    num_tokens: int
    token_id: int | None
