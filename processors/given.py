"""Items that a caller has preprocessed: told apart, checked, and what their placeholders become.

An entry's tensors stand for one item or for several; grids, counts and stacked tensors tell where
one ends. The processor's own rule says what a placeholder becomes, from the metadata given; the
features' values are never read for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from processors import hf
from processors.context import Outcome, Shape
from processors.errors import InvalidRequestError, MediaTooLargeError, PromptTooLongError
from processors.features import without_compact
from processors.given_checks import check_item, check_lengths, is_grid, merge_of
from processors.given_cuts import cut, cut_embedding, take
from processors.given_read import NUM_TOKENS, Given, counter_names, has_several_rows, read_entry
from processors.hashing import TensorContent, digest_of_tensors
from processors.replacement import code_runs, find_row_token
from processors.stage import Stage
from processors.types import (
    GivenEntry,
    GivenItem,
    ItemInput,
    ItemPlan,
    MediaInfo,
    Modality,
    TensorSlice,
)

MIME = "application/x-safetensors"
FRAMING_WARNING = (
    "framing_unknown",
    "What is given does not tell the text around the rows; they stand as one plain run.",
)
_METADATA = "video_metadata"


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
    given = read_entry(stage, entry)
    own = [name for name in given.tensors if name not in (given.embedding, NUM_TOKENS)]
    cuts = {name: found for name in own if (found := cut(given, name)) is not None}
    for index in range(given.count):
        parts = {name: take(given.tensors[name], slices[index]) for name, slices in cuts.items()}
        check_item(parts, given.features, counter_names(stage), stage)
    texts, is_framed = _replacements(given)
    counts = [_count_rows(given, text) for text in texts]
    cuts |= {name: _cut_by_tokens(given, name, counts) for name in own if name not in cuts}
    if given.embedding is not None:
        cuts[given.embedding] = cut_embedding(given, given.embedding, counts)
    _rebase(given, cuts)
    return tuple(
        _item(
            given, entry, index, {n: slices[index] for n, slices in cuts.items()}, text, is_framed
        )
        for index, text in enumerate(texts)
    )


def _cut_by_tokens(given: Given, name: str, counts: Sequence[int]) -> list[TensorSlice]:
    found = cut(given, name, counts)
    if found is None:
        raise InvalidRequestError(
            f"The rows of '{name[:64]}' cannot be told apart for {given.count} items; nothing "
            "given says how many each has."
        )
    return found


def _rebase(given: Given, cuts: dict[str, list[TensorSlice]]) -> None:
    """Let row numbers count from their own item, where a joint call counted on over its items.

    Raises:
        InvalidRequestError: If one is of no row of its item.
    """
    for name, of in given.stage.context.family.row_numbers.items():
        if name not in cuts or of not in cuts:
            continue
        rows_each = given.tensors[of].shape[1] if given.tensors[of].ndim > 1 else 1
        rebased = []
        for part, rows in zip(cuts[name], cuts[of], strict=True):
            numbers = take(given.tensors[name], part)
            numbers = numbers[numbers >= 0]
            base, own = rows.start * rows_each, (rows.stop - rows.start) * rows_each
            is_joint = bool(numbers.numel()) and int(numbers.min()) >= base
            part = replace(part, minus=base if is_joint else 0)
            if numbers.numel() and int(numbers.max()) - part.minus >= own:
                raise InvalidRequestError(f"'{name[:64]}' names rows that its item has not.")
            rebased.append(part)
        cuts[name] = rebased


def _replacements(given: Given) -> tuple[list[str | None], bool]:
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
    if given.metadata:
        inputs[_METADATA] = [
            hf.describe_video(m.frames_indices, m.total_num_frames, m.fps, m.duration_s)
            for m in given.metadata
        ]
    told = _told_counts(given)
    texts = _ask_processor(given, inputs)
    while texts is None and (filled := _fill(given, inputs, told)) is not None:
        inputs[filled[0]] = filled[1]
        texts = _ask_processor(given, inputs)
    if texts is None:
        return [_plain_run(given, count) for count in _plain_counts(given, told, inputs)], False
    for text, count in zip(texts, told or (), strict=told is not None):
        if count != (rows := _count_rows(given, text)):
            raise InvalidRequestError(
                f"'{NUM_TOKENS}' says {count} tokens of an item; its other tensors say {rows}."
            )
    if given.stage.modality is Modality.VIDEO and _METADATA in inputs and not given.metadata:
        # Its rows are right and its times made up.
        return [_rows_alone(given, text) for text in texts], False
    return texts, not inputs.is_partial


def _fill(given: Given, inputs: _Inputs, told: list[int] | None) -> tuple[str, Any] | None:
    """Return (name, value) of something that the processor looks for and that follows."""
    name = inputs.missing
    inputs.missing = None
    grids = [n for n in given.tensors if is_grid(n)]
    if name is not None and name not in given.tensors:
        if told is not None and "token" in name:
            return name, told  # the count, under a name of the processor's own
        several = [n for n in grids if has_several_rows(given.stage, n)]
        if name in counter_names(given.stage) and given.count == 1 and several:
            return name, [given.tensors[several[0]].shape[0]]
    if given.stage.modality is Modality.VIDEO and grids and _METADATA not in dict.keys(inputs):
        return _METADATA, [_made_up(given, grids[0], index) for index in range(given.count)]
    inputs.missing = name
    return None


def _made_up(given: Given, grid: str, index: int) -> hf.HfObject:
    """Return a description of a video with no fewer frames than its grid speaks of, at any time.

    Raises:
        MediaTooLargeError: If they are more than a video may have.
    """
    rows = torch.split(given.tensors[grid], given.grid_rows(grid))[index]
    steps, most = int(rows[:, 0].sum()), given.stage.limits.max_frames
    if steps > most:
        raise MediaTooLargeError(f"The video has {steps} steps in time; at most {most} are taken.")
    frames = steps * int(getattr(given.stage.part, "temporal_patch_size", None) or 1)
    return hf.describe_video(range(frames), frames, 1.0, float(frames))


def _ask_processor(given: Given, inputs: _Inputs) -> list[str | None] | None:
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


def _told_counts(given: Given) -> list[int] | None:
    told = given.tensors.get(NUM_TOKENS)
    if told is None:
        return None
    if told.ndim != 1 or told.is_floating_point():
        raise InvalidRequestError(f"'{NUM_TOKENS}' is one integer per item.")
    check_lengths(NUM_TOKENS, told.tolist(), given.stage)
    return [int(count) for count in told.tolist()]


def _plain_counts(given: Given, told: list[int] | None, inputs: _Inputs) -> Sequence[int]:
    """Return the tokens of each item where the processor does not say what it becomes."""
    if told is not None:
        return told
    merge = merge_of(given.stage.part)
    for name in given.tensors:
        if is_grid(name) and merge is not None:
            return [count // merge**2 for count in given.grid_patches(name)]
    if given.embedding is not None:
        shape = given.tensors[given.embedding].shape
        return [shape[-2]] * given.count
    if given.run_lengths and given.count == 1:
        return [sum(given.run_lengths)]
    needed = "" if inputs.missing is None else f"'{inputs.missing[:64]}', or "
    if inputs.missing == _METADATA:
        needed = "'fps' and 'frames_indices', or "
    raise InvalidRequestError(
        "What is given does not tell what an item becomes in the prompt; give "
        f"{needed}'{NUM_TOKENS}' with the tokens of each item."
    )


def _plain_run(given: Given, count: int) -> str:
    limit = given.stage.limits.max_item_tokens
    if count > limit:
        raise PromptTooLongError(f"The item becomes {count} tokens; at most {limit} are taken.")
    candidates = given.stage.context.tokens.rows[given.stage.modality]
    if not candidates:
        raise InvalidRequestError("The model has no token that stands for an encoder row.")
    return candidates[0] * count


def _rows_alone(given: Given, text: str | None) -> str | None:
    """Return the rows of a replacement text without what stands around and between them."""
    if text is None:
        return None
    tokens = given.stage.context.tokens
    row, count = find_row_token(
        code_runs(text, tokens.repeating), tokens.rows[given.stage.modality]
    )
    return text if row is None else row * count


def _count_rows(given: Given, text: str | None) -> int:
    if text is None:
        return 0
    return given.stage.describe(Outcome({}, text, {}), on_meta=True).num_tokens


def _item(
    given: Given,
    entry: GivenEntry,
    index: int,
    cuts: Mapping[str, TensorSlice],
    text: str | None,
    is_framed: bool,
) -> GivenItem:
    stage = given.stage
    parts = {name: take(given.tensors[name], part) for name, part in cuts.items()}
    dropped = counter_names(stage) - frozenset(stage.joins.layouts)
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
    # What is given is handed on as it is; there are no codes of it.
    return without_compact(stage.item_plan(item, shape, base, stage.server_kwargs))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat.data
