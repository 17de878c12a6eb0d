"""One item's replacement as token ids, for prompts that come as ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from processors.tokenizing import Ids
from processors.types import ItemPlan

Range = tuple[int, int]
"""Half-open."""


@dataclass(frozen=True, slots=True)
class ItemIds:
    """What an item's placeholder becomes, as ids."""

    whole: Ids
    rows: tuple[Range, ...]
    """Maximal runs of encoder rows in `whole`."""
    core: Range
    """From the first media token to the last: what an expanded prompt must hold literally. Plain
    text at the edges may have been joined with its neighbours there."""


def item_ids(
    plan: ItemPlan, encode: Callable[[str], Ids], is_media: Callable[[int], bool]
) -> ItemIds:
    """Return a plan's replacement as ids.

    Args:
        plan: With a replacement.
        encode: Ids of one part's text, without BOS and the like.
        is_media: Whether an id is a media token.
    """
    chunks: list[Ids] = []
    rows: list[Range] = []
    position, first, last = 0, -1, 0
    for part in plan.replacement or ():
        ids = encode(part.text)
        chunk = np.tile(ids, part.times) if part.times != 1 else ids
        stop = position + len(chunk)
        if len(ids) == 1 and is_media(int(ids[0])):
            first = position if first < 0 else first
            last = stop
            if int(ids[0]) == plan.row_token_id:
                rows.append((position, stop))
        chunks.append(chunk)
        position = stop
    whole = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int32)
    core = (first, last) if first >= 0 else (0, position)
    return ItemIds(whole, merge_ranges(rows), core)


def merge_ranges(ranges: list[Range]) -> tuple[Range, ...]:
    """Return ascending ranges with those that touch joined."""
    merged: list[Range] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif stop > start:
            merged.append((start, stop))
    return tuple(merged)


def shift_ranges(ranges: tuple[Range, ...], by: int) -> tuple[Range, ...]:
    """Return ranges moved by a number of positions."""
    return tuple((start + by, stop + by) for start, stop in ranges)
