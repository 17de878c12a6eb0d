"""Items that a caller has preprocessed: told apart, checked, and what their placeholders become.

An entry's tensors stand for one item or for several; grids, counts and stacked tensors tell where
one ends. The processor's own rule says what a placeholder becomes, from the metadata given; the
features' values are never read for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from processors import hf
from processors.context import Outcome, Shape
from processors.errors import InvalidRequestError, PromptTooLongError
from processors.family import COUNTERS
from processors.given_checks import check_item, check_lengths, check_tensor, is_grid, merge_of
from processors.hashing import TensorContent, digest_of_tensors
from processors.stage import Stage
from processors.types import (
    GivenEntry,
    GivenItem,
    GivenTensor,
    ItemInput,
    ItemPlan,
    MediaInfo,
    Modality,
    TensorSlice,
)

NUM_TOKENS = "num_tokens"
"""Name of the tensor by which a caller says the tokens of each item itself."""
MAX_ITEMS = 4096
MIME = "application/x-safetensors"
FRAMING_WARNING = (
    "framing_unknown",
    "What is given does not tell the text around the rows; they stand as one plain run.",
)
_OTHER_NAMES: Mapping[Modality, frozenset[str]] = {
    Modality.IMAGE: frozenset({
        "pixel_values", "image_sizes", "image_grid_thw", "image_attention_mask", "image_emb_mask",
        "images_spatial_crop", "images_crop", "has_local_crops", "has_images", "tgt_size",
        "image_grid_hws", "aspect_ratio_ids", "aspect_ratio_mask", "num_patches",
        "patch_pixel_values", "block_sizes", "grid_thws",
    }),
    Modality.VIDEO: frozenset({"pixel_values_videos", "second_per_grid_ts", "video_grid_thw"}),
    Modality.AUDIO: frozenset({
        "audio_features", "audio_feature_lens", "input_features", "input_features_mask",
        "audio_attention_mask", "feature_attention_mask",
    }),
}  # fmt: skip
"""Names that mean a modality whatever the model, beyond those its processor was seen to return."""


class _Inputs(dict[str, Any]):
    """A sub-processor's output as given; remembers what was looked for in vain."""

    missing: str | None = None
    """What it cannot do without."""
    is_partial = False
    """Whether it looked for something that it can do without."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        self.missing = self.missing or str(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.is_partial = self.is_partial or not found
        return found

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as of any dict
        """Return a value, the default where it is not given."""
        if name not in self:
            return default
        return self[name]


@dataclass(frozen=True)
class _Given:
    """An entry that has been read."""

    stage: Stage
    tensors: Mapping[str, torch.Tensor]
    features: frozenset[str]
    embedding: str | None
    """The feature of a precomputed entry: a row per token."""
    count: int
    run_lengths: tuple[int, ...]

    def sizes(self) -> list[list[int]]:
        """Return what may say how many rows of a joined tensor each item has, grids first."""
        grids = [t.long().prod(-1) for name, t in self.tensors.items() if is_grid(name)]
        counts = [
            tensor.long()
            for name, tensor in self.tensors.items()
            if tensor.shape == (self.count,)
            and name != NUM_TOKENS
            and not tensor.is_floating_point()
        ]
        return [sizes.tolist() for sizes in (*grids, *counts) if bool((sizes >= 0).all())]


def plan_given(stage: Stage, entry: GivenEntry) -> tuple[GivenItem, ...]:
    """Tell the items of an entry apart and plan each.

    Args:
        stage: Of the entry's modality.
        entry: What the caller gives; hostile.

    Raises:
        InvalidRequestError: If tensors contradict each other or the model, or do not tell what an
            item becomes.
        MediaTooLargeError, PromptTooLongError: If an item would exceed a limit.
    """
    given = _read(stage, entry)
    cuts = {
        name: _cut(given, name)
        for name in given.tensors
        if name not in (given.embedding, NUM_TOKENS)
    }
    for index in range(given.count):
        own = {name: _take(given.tensors[name], slices[index]) for name, slices in cuts.items()}
        check_item(own, given.features, _counter_names(stage), stage)
    texts, is_framed = _replacements(given)
    if given.embedding is not None:
        cuts[given.embedding] = _cut_embedding(given, [_count_rows(given, t) for t in texts])
    return tuple(
        _item(
            given, entry, index, {n: slices[index] for n, slices in cuts.items()}, text, is_framed
        )
        for index, text in enumerate(texts)
    )


def _read(stage: Stage, entry: GivenEntry) -> _Given:
    tensors = {name: _as_torch(tensor) for name, tensor in entry.tensors.items()}
    if not tensors:
        raise InvalidRequestError("The document holds no tensors.")
    features = frozenset(n for n, t in tensors.items() if _is_feature(stage, n, t))
    embedding = _find_embedding(entry, tensors, features)
    known = _known_names(stage)
    for name, tensor in tensors.items():
        if name not in known and name != embedding:
            raise InvalidRequestError(
                f"'{name[:64]}' is no tensor of this model's {entry.modality.value}s; it takes "
                f"{', '.join(sorted(known))}."
            )
        if name in _counter_names(stage) and tensor.is_floating_point():
            raise InvalidRequestError(f"'{name[:64]}' counts, in integers.")
        check_tensor(name, tensor, is_feature=name in features)
    count = _count_items(stage, tensors, embedding)
    return _Given(stage, tensors, features, embedding, count, entry.run_lengths)


def _as_torch(tensor: GivenTensor) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(tensor.data, dtype=dtype).view(tensor.shape)


def _is_feature(stage: Stage, name: str, tensor: torch.Tensor) -> bool:
    if name.endswith("mask") or is_grid(name):
        return False
    is_named = name in stage.feature_names or name.startswith("pixel_values")
    return is_named or (tensor.is_floating_point() and tensor.ndim > 1)


def _find_embedding(
    entry: GivenEntry, tensors: Mapping[str, torch.Tensor], features: frozenset[str]
) -> str | None:
    if entry.format != "precomputed_embedding":
        return None
    if not features:
        return None
    (name, *others) = sorted(features)
    if others or not tensors[name].is_floating_point() or tensors[name].ndim not in (2, 3):
        raise InvalidRequestError(
            "Precomputed embeddings are one floating tensor: a row per token, of two dimensions, "
            "or of three with the items first."
        )
    return name


def _known_names(stage: Stage) -> frozenset[str]:
    own = frozenset(stage.joins.layouts) | frozenset(stage.feature_names)
    return own | _OTHER_NAMES[stage.modality] | _counter_names(stage) | {NUM_TOKENS}


def _counter_names(stage: Stage) -> frozenset[str]:
    """Return what a processor counts with and does not hand on."""
    return COUNTERS | stage.context.family.counters | hf.unused_names(stage.model.processor)


def _count_items(stage: Stage, tensors: Mapping[str, torch.Tensor], embedding: str | None) -> int:
    counts = {}
    for name, tensor in tensors.items():
        is_stacked = stage.joins.layout(name).kind == "batched"
        is_counter = name == NUM_TOKENS or name in _counter_names(stage)
        if name == embedding:
            if tensor.ndim == 3:
                counts[name] = tensor.shape[0]
        elif tensor.ndim and (is_grid(name) or is_stacked or (is_counter and tensor.ndim == 1)):
            counts[name] = tensor.shape[0]
    if len(set(counts.values())) > 1:
        told = ", ".join(f"'{name[:64]}' of {count}" for name, count in counts.items())
        raise InvalidRequestError(f"The tensors speak of different numbers of items: {told}.")
    count = next(iter(counts.values()), 1)
    if not 0 < count <= MAX_ITEMS:
        raise InvalidRequestError(f"An entry stands for 1 to {MAX_ITEMS} items.")
    return count


def _cut(given: _Given, name: str) -> list[TensorSlice]:
    """Return each item's part of a tensor.

    Raises:
        InvalidRequestError: If its rows are not as many as the grids or counts say.
    """
    tensor, count = given.tensors[name], given.count
    layout = given.stage.joins.layout(name)
    if not tensor.ndim:
        raise InvalidRequestError(f"'{name[:64]}' has no dimension.")
    is_seen = name in given.stage.joins.layouts
    if is_grid(name) or (is_seen and layout.kind == "batched"):
        return [TensorSlice(name, 0, i, i + 1) for i in range(count)]
    dim = layout.dim if layout.dim < tensor.ndim else 0
    told = given.sizes()
    for sizes in told:
        if len(sizes) == count and sum(sizes) == tensor.shape[dim]:
            return _ranges(name, dim, sizes)
    if name in given.features and is_seen and any(map(is_grid, given.tensors)):
        raise InvalidRequestError(
            f"'{name[:64]}' has {tensor.shape[dim]} rows; the grids say another number."
        )
    if count == 1:
        return [TensorSlice(name, dim, 0, tensor.shape[dim])]
    if tensor.shape[0] == count:
        return [TensorSlice(name, 0, i, i + 1) for i in range(count)]
    raise InvalidRequestError(
        f"The rows of '{name[:64]}' cannot be told apart for {count} items; nothing given says how "
        "many each has."
    )


def _cut_embedding(given: _Given, counts: Sequence[int]) -> list[TensorSlice]:
    name = str(given.embedding)
    shape = given.tensors[name].shape
    if len(shape) == 3:
        if any(count != shape[1] for count in counts):
            raise InvalidRequestError(
                f"'{name[:64]}' has {shape[1]} rows an item; {max(counts)} are its tokens."
            )
        return [TensorSlice(name, 0, i, i + 1) for i in range(len(counts))]
    if sum(counts) != shape[0]:
        raise InvalidRequestError(
            f"'{name[:64]}' has {shape[0]} rows; the items have {sum(counts)} tokens."
        )
    return _ranges(name, 0, counts)


def _ranges(name: str, dim: int, sizes: Sequence[int]) -> list[TensorSlice]:
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        TensorSlice(name, dim, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)
    ]


def _take(tensor: torch.Tensor, part: TensorSlice) -> torch.Tensor:
    return tensor.narrow(part.dim, part.start, part.stop - part.start)


def _replacements(given: _Given) -> tuple[list[str | None], bool]:
    """Return what each placeholder becomes, and whether the processor said so.

    Raises:
        InvalidRequestError: If neither the processor nor a count tells.
    """
    inputs = _Inputs(
        {
            # Processors ask for a feature's shape alone: zeros of any shape take no memory.
            name: torch.zeros((1,) * t.ndim, dtype=t.dtype).expand(t.shape)
            if name in given.features
            else t.clone()
            for name, t in given.tensors.items()
            if name not in (NUM_TOKENS, given.embedding)
        }
    )
    told = _told_counts(given)
    texts = _ask_processor(given, inputs)
    if texts is None and told is not None and inputs.missing and "token" in inputs.missing:
        # The count it looked for under a name of its own.
        inputs[inputs.missing] = told
        texts = _ask_processor(given, inputs)
    if texts is None:
        return [_plain_run(given, count) for count in _plain_counts(given, told, inputs)], False
    for text, count in zip(texts, told or (), strict=told is not None):
        if count != (rows := _count_rows(given, text)):
            raise InvalidRequestError(
                f"'{NUM_TOKENS}' says {count} tokens of an item; its other tensors say {rows}."
            )
    return texts, not inputs.is_partial


def _ask_processor(given: _Given, inputs: _Inputs) -> list[str | None] | None:
    """Return what the processor says of each item; None where that takes more than is given."""
    stage = given.stage
    try:
        texts = hf.replacements_of(
            stage.model.planner,
            stage.modality,
            inputs,
            given.count,
            stage.merged(stage.server_kwargs),
        )
    except hf.HF_ERRORS:
        return None
    return [None] * given.count if texts is None else list(texts)


def _told_counts(given: _Given) -> list[int] | None:
    told = given.tensors.get(NUM_TOKENS)
    if told is None:
        return None
    if told.ndim != 1 or told.is_floating_point():
        raise InvalidRequestError(f"'{NUM_TOKENS}' is one integer per item.")
    check_lengths(NUM_TOKENS, told.tolist(), given.stage)
    return [int(count) for count in told.tolist()]


def _plain_counts(given: _Given, told: list[int] | None, inputs: _Inputs) -> Sequence[int]:
    """Return the tokens of each item where the processor does not say what it becomes."""
    if told is not None:
        return told
    merge = merge_of(given.stage.part)
    for name, tensor in given.tensors.items():
        if is_grid(name) and merge is not None:
            return [count // merge**2 for count in tensor.long().prod(-1).tolist()]
    if given.embedding is not None:
        shape = given.tensors[given.embedding].shape
        return [shape[-2]] * given.count
    if given.run_lengths and given.count == 1:
        return [sum(given.run_lengths)]
    needed = "" if inputs.missing is None else f"'{inputs.missing[:64]}', or "
    raise InvalidRequestError(
        "What is given does not tell what an item becomes in the prompt; give "
        f"{needed}'{NUM_TOKENS}' with the tokens of each item."
    )


def _plain_run(given: _Given, count: int) -> str:
    limit = given.stage.limits.max_item_tokens
    if count > limit:
        raise PromptTooLongError(f"The item becomes {count} tokens; at most {limit} are taken.")
    candidates = given.stage.context.tokens.rows[given.stage.modality]
    if not candidates:
        raise InvalidRequestError("The model has no token that stands for an encoder row.")
    return candidates[0] * count


def _count_rows(given: _Given, text: str | None) -> int:
    if text is None:
        return 0
    return given.stage.describe(Outcome({}, text, {}), on_meta=True).num_tokens


def _item(
    given: _Given,
    entry: GivenEntry,
    index: int,
    cuts: Mapping[str, TensorSlice],
    text: str | None,
    is_framed: bool,
) -> GivenItem:
    stage = given.stage
    parts = {name: _take(given.tensors[name], part) for name, part in cuts.items()}
    dropped = _counter_names(stage) - frozenset(stage.joins.layouts)
    kept = {
        name: torch.empty_like(part, device="meta") if name in given.features else part
        for name, part in parts.items()
        if name not in dropped
    }
    shape = stage.describe(Outcome(kept, text, {}), on_meta=True)
    source = MediaInfo(stage.modality, MIME, sum(part.nbytes for part in parts.values()))
    plan = _plan(stage, index, shape, source, is_framed=is_framed)
    contents = [
        TensorContent(
            name, entry.tensors[name].dtype, tuple(part.shape), _bytes_of(part.contiguous())
        )
        for name, part in parts.items()
    ]
    slices = tuple(cuts[spec.name] for spec in shape.tensors)
    return GivenItem(plan, digest_of_tensors(contents), slices)


def _plan(
    stage: Stage, index: int, shape: Shape, source: MediaInfo, *, is_framed: bool
) -> ItemPlan:
    base = ItemPlan(
        stage.modality,
        source,
        None,
        0,
        None,
        (),
        warnings=() if is_framed else (FRAMING_WARNING,),
        state={"is_framed": is_framed},
    )
    item = ItemInput(stage.modality, (), index=index)
    return stage.item_plan(item, shape, base, stage.server_kwargs)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat.data
