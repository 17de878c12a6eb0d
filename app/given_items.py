"""Preprocessed entries on their way: one entry becomes its items, offsets are taken over.

A caller's hash is told in the answer and opens nothing: features are stored under a hash of the
tensors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from app import work
from app.call import Call, Planned
from app.jobs import Extent, PlanGivenJob
from app.media import LoadedItem
from app.pool import WorkerPool
from app.schemas import WirePreprocessed
from processors.errors import InvalidRequestError, PlaceholderMismatchError
from processors.hashing import item_hash
from processors.kwargs import effective_kwargs
from processors.prompt import ExpandedPrompt
from processors.types import GivenItem, ItemPlacement, Modality

MASK_ID = 2**31 - 1
"""Stands in for rows whose places the caller gives; no vocabulary has it."""
Ids = np.ndarray
Expand = Callable[[Ids, list[Planned]], ExpandedPrompt]
"""Expands ids for the items given."""


async def plan_given(
    pool: WorkerPool, call: Call, loaded: LoadedItem, entry: WirePreprocessed
) -> list[Planned]:
    """Return the items of a preprocessed entry with their plans.

    Raises:
        InvalidRequestError: If its tensors contradict each other or the model, or it holds no
            features and more than a plan is asked for.
        MmprepError: As `processors.given.plan_given`.
    """
    modality, info = loaded.item.modality, call.model.info
    # They change nothing here; unknown ones are refused all the same.
    effective_kwargs(info, modality, call.request.mm_processor_kwargs or {}, loaded.item.options)
    runs = entry.offsets or []
    if any(first > last for first, last in runs):
        raise InvalidRequestError("Offsets are inclusive pairs [first, last].", "offsets")
    (document,) = loaded.media
    job = PlanGivenJob(
        info.name,
        modality,
        entry.format,
        Extent(document.segment, document.offset, document.nbytes),
        tuple(last - first + 1 for first, last in runs),
    )
    given = await pool.run(job, deadline=call.deadline, priority=call.request.priority)
    if entry.hash is not None and len(given) > 1:
        raise InvalidRequestError(
            f"A hash names one item; the entry stands for {len(given)}.", "hash"
        )
    return [_planned(call, loaded, entry, index, item) for index, item in enumerate(given)]


def _planned(
    call: Call, loaded: LoadedItem, entry: WirePreprocessed, index: int, given: GivenItem
) -> Planned:
    has_features = any(tensor.role == "feature" for tensor in given.plan.tensors)
    if not has_features and call.choice.name != "none":
        raise InvalidRequestError(
            "The entry holds no features; without them only a plan can be had (transport: none).",
            "tensors",
        )
    item = replace(loaded.item, index=index)
    told = {"format": entry.format, "num_tokens": given.plan.num_tokens}
    name = item_hash(item.modality, given.digest, call.model.info.fingerprint, {}, told, call.salt)
    own = replace(loaded, item=item, digest=given.digest)
    return Planned(own, given.plan, name, work.job_item(own, {}, {}), given.slices)


def own_ids(call: Call) -> list[int] | None:
    """Return the token ids that preprocessed entries bring along; None where none does.

    Raises:
        InvalidRequestError: If two entries bring different ones.
    """
    found: list[int] | None = None
    for item in call.collected.preprocessed:
        ids = None if item.preprocessed is None else item.preprocessed.input_ids
        if ids is None:
            continue
        if found is not None and ids != found:
            raise InvalidRequestError(
                "The entries bring different input_ids.", f"{item.param}.input_ids"
            )
        found = ids
    return found


def expand_around(ids: Ids, planned: Sequence[Planned], expand: Expand) -> ExpandedPrompt:
    """Expand ids in which the rows of some items stand where the caller says.

    Those items' rows are taken over as they stand; the others are expanded around them.

    Args:
        ids: int32 of shape (L,).
        planned: Every item.
        expand: Expands ids for the other items.

    Raises:
        PlaceholderMismatchError: If rows given are not the model's, too few or too many, or would
            move.
    """
    fixed = [item for item in planned if _is_fixed(item)]
    if not fixed:
        return expand(ids, list(planned))
    placements = [p for modality in _modalities(fixed) for p in _place(ids, fixed, modality)]
    masked = ids.copy()
    for placement in placements:
        for start, stop in placement.offsets:
            masked[start:stop] = MASK_ID
    prompt = expand(masked, [item for item in planned if not _is_fixed(item)])
    if len(prompt.input_ids) != len(ids):
        raise PlaceholderMismatchError(
            "Offsets are places in expanded ids; these ids hold placeholders that still expand.",
            "input_ids",
        )
    order = list(Modality)
    placed = sorted(
        (*prompt.placements, *placements),
        key=lambda p: (p.span or (0, 0), order.index(p.modality)),
    )
    return ExpandedPrompt(ids, tuple(placed), prompt.warnings)


def check_offsets(planned: Sequence[Planned], placements: Sequence[ItemPlacement]) -> None:
    """Refuse offsets of preprocessed entries that are not where their items stand.

    Raises:
        PlaceholderMismatchError: Naming the entry.
    """
    for modality in _modalities(planned):
        items = [item for item in planned if item.loaded.item.modality is modality]
        entry = items[0].loaded.item.preprocessed
        if entry is None or entry.offsets is None:
            continue
        told = _rows([(first, last + 1) for first, last in entry.offsets])
        found = _rows([run for p in placements if p.modality is modality for run in p.offsets])
        if not np.array_equal(np.sort(told), np.sort(found)):
            raise PlaceholderMismatchError(
                "The offsets are not where the items' rows stand in the expanded prompt.",
                f"{items[0].loaded.item.param}.offsets",
            )


def _is_fixed(item: Planned) -> bool:
    """Return whether only the caller knows where an item's rows stand."""
    entry = item.loaded.item.preprocessed
    has_offsets = entry is not None and entry.offsets is not None
    return has_offsets and not item.plan.state.get("is_framed", True)


def _modalities(planned: Sequence[Planned]) -> list[Modality]:
    return list(dict.fromkeys(item.loaded.item.modality for item in planned))


def _rows(runs: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop in runs)])


def _place(ids: Ids, fixed: Sequence[Planned], modality: Modality) -> list[ItemPlacement]:
    """Return where the items of an entry stand: each takes the next of the rows given."""
    items = [item for item in fixed if item.loaded.item.modality is modality]
    request = items[0].loaded.item
    runs = [] if request.preprocessed is None else request.preprocessed.offsets or []
    param = f"{request.param}.offsets"
    if any(last >= len(ids) for _, last in runs):
        raise PlaceholderMismatchError("The offsets go beyond the ids.", param)
    rows = _rows([(first, last + 1) for first, last in runs])
    total = sum(item.plan.num_tokens for item in items)
    if len(rows) != total or (np.diff(rows) <= 0).any():
        raise PlaceholderMismatchError(
            f"The offsets are {len(rows)} places, the items {total} tokens; they must be equal, "
            "ascending and disjoint.",
            param,
        )
    if (ids[rows] != items[0].plan.row_token_id).any():
        raise PlaceholderMismatchError(
            "Another token than the one of the model's rows stands at the offsets.", param
        )
    placements, start = [], 0
    for item in items:
        own = rows[start : start + item.plan.num_tokens]
        start += item.plan.num_tokens
        cuts = np.flatnonzero(np.diff(own) > 1) + 1
        parts = [part for part in np.split(own, cuts) if len(part)]
        offsets = tuple((int(part[0]), int(part[-1]) + 1) for part in parts)
        span = (offsets[0][0], offsets[-1][1]) if offsets else None
        placements.append(
            ItemPlacement(
                modality,
                item.loaded.item.index,
                offsets,
                span,
                item.plan.num_tokens,
                item.plan.row_token_id,
            )
        )
    return placements
