"""Token ids expanded: left to right, each placeholder or run takes the next item.

Every id that is no placeholder stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from processors.errors import PlaceholderMismatchError, PromptTooLongError
from processors.tokenizing import Ids
from processors.types import ItemPlacement
from processors.waiting import Group, WaitingItem, WaitingItems

Expansion = Literal[False, True, "auto"]
Range = tuple[int, int]
"""Half-open."""


class FoundPlaceholders(NamedTuple):
    """Placeholders among ids, ascending and disjoint."""

    starts: np.ndarray
    stops: np.ndarray
    numbers: np.ndarray
    """Of each placeholder's group, in `groups`."""
    groups: tuple[Group, ...]

    def span(self, place: int) -> Range:
        """Return where the n-th placeholder stands."""
        return int(self.starts[place]), int(self.stops[place])

    def group(self, place: int) -> Group:
        """Return the group of the n-th placeholder."""
        return self.groups[int(self.numbers[place])]

    def find(self, start: int) -> int | None:
        """Return which placeholder begins at a position, None if none does."""
        place = int(np.searchsorted(self.starts, start))
        is_there = place < len(self.starts) and int(self.starts[place]) == start
        return place if is_there else None


class ItemIds(NamedTuple):
    """What an item's placeholder becomes, as ids."""

    whole: Ids
    placements: tuple[ItemPlacement, ...]
    """As if `whole` were the prompt."""
    core: Range
    """From the first media token to the last: what an expanded prompt must hold literally. Plain
    text at the edges may have been joined with its neighbours there."""
    head: int
    """Place in `whole` of the core's first row or placeholder."""


class _Run(NamedTuple):
    """An item's run that stands in the prompt already."""

    group: Group
    made: ItemIds
    start: int
    """Of its core."""
    stop: int


@dataclass(slots=True)
class IdWalk:
    """One pass over a prompt's ids.

    Args:
        ids: int32 of shape (L,).
        placeholders: Of the ids.
        items: The request's items.
        item_ids: Returns what an item's placeholder becomes, at the start of a prompt or inside.
        expanded: Whether the runs are there already; `auto`: what equals the item's whole
            replacement stays, a single placeholder expands.
        lenient: Whether what no item is left for is dropped.
        max_tokens: Bound of the expanded ids.
    """

    ids: Ids
    placeholders: FoundPlaceholders
    items: WaitingItems
    item_ids: Callable[[WaitingItem, bool], ItemIds]
    expanded: Expansion
    lenient: bool
    max_tokens: int | None = None
    warnings: list[tuple[str, str]] = field(default_factory=list)
    _chunks: list[Ids] = field(default_factory=list)
    _placements: list[ItemPlacement] = field(default_factory=list)
    _read: int = 0
    """Ids before it are done with."""
    _written: int = 0
    """Ids in the chunks."""

    def expand(self) -> tuple[Ids, list[ItemPlacement]]:
        """Return the ids with every placeholder expanded."""
        for place in range(len(self.placeholders.starts)):
            self._expand_one(place)
        return self._finish()

    def match(self, heads: Iterable[int]) -> tuple[Ids, list[ItemPlacement]]:
        """Return the ids with the runs that stand there found, and the rest expanded.

        Args:
            heads: Ids of rows and placeholders: where one stands, so must an item.
        """
        is_head = np.isin(self.ids, list(heads))
        is_head[self.placeholders.starts] = True
        candidates = np.flatnonzero(is_head)
        while (place := int(np.searchsorted(candidates, self._read))) < len(candidates):
            start = int(candidates[place])
            run = self._find_run(start)
            single = self.placeholders.find(start)
            if run is not None:
                self._keep_run(run)
            elif self.expanded == "auto" and single is not None:
                self._expand_one(single)
            elif self.lenient and not self.items.upcoming():
                self._drop(candidates[place:])
            else:
                raise PlaceholderMismatchError(
                    f"What stands at position {start} is neither the whole run of the next item "
                    "nor its single placeholder.",
                    "input_ids",
                )
        return self._finish()

    def _expand_one(self, place: int) -> None:
        start, stop = self.placeholders.span(place)
        self._copy(start)
        self._read = stop
        taken = self.items.take(self.placeholders.group(place))
        if taken is not None:
            made = self.item_ids(taken, start == 0)
            self._place(made, self._written, (0, len(made.whole)))
            self._write(made.whole)

    def _find_run(self, head: int) -> _Run | None:
        """Return the next item whose run stands around a head, of several the longest."""
        runs = []
        for group, item in self.items.upcoming():
            made = self.item_ids(item, False)
            first, last = made.core
            start = head - made.head + first
            core = made.whole[first:last]
            if start >= self._read and np.array_equal(self.ids[start : start + len(core)], core):
                runs.append(_Run(group, made, start, start + len(core)))
        return max(runs, key=lambda run: run.stop - run.start, default=None)

    def _keep_run(self, run: _Run) -> None:
        """Note where an item stands; the plain text around its core where that is unchanged."""
        whole, (first, last) = run.made.whole, run.made.core
        begin, end = run.start - first, run.stop + len(whole) - last
        has_before = begin >= self._read and np.array_equal(
            self.ids[begin : run.start], whole[:first]
        )
        has_after = np.array_equal(self.ids[run.stop : end], whole[last:])
        span = (0 if has_before else first, len(whole) if has_after else last)
        self._place(run.made, self._written + begin - self._read, span)
        self._copy(end if has_after else run.stop)
        self.items.take(run.group)

    def _drop(self, places: np.ndarray) -> None:
        """Leave out rows and placeholders that no item is left for."""
        for start in places.tolist():
            if start >= self._read:
                single = self.placeholders.find(start)
                self._copy(start)
                self._read = start + 1 if single is None else self.placeholders.span(single)[1]
        self.warnings.append(
            ("surplus_dropped", "The prompt held media tokens that no item was left for.")
        )

    def _copy(self, stop: int) -> None:
        self._write(self.ids[self._read : stop])
        self._read = stop

    def _write(self, ids: Ids) -> None:
        self._chunks.append(ids)
        self._written += len(ids)
        if self.max_tokens is not None and self._written > self.max_tokens:
            raise PromptTooLongError(
                f"The expanded prompt has at least {self._written} tokens; at most "
                f"{self.max_tokens} are allowed.",
                "input_ids",
            )

    def _place(self, made: ItemIds, by: int, span: Range) -> None:
        for placement in made.placements:
            self._placements.append(shift_placement(replace(placement, span=span), by))

    def _finish(self) -> tuple[Ids, list[ItemPlacement]]:
        self._copy(len(self.ids))
        return np.concatenate(self._chunks), self._placements


def shift_placement(placement: ItemPlacement, by: int) -> ItemPlacement:
    """Return a placement moved by a number of positions."""
    if not by:
        return placement
    span = placement.span
    return replace(
        placement,
        offsets=tuple((start + by, stop + by) for start, stop in placement.offsets),
        span=None if span is None else (span[0] + by, span[1] + by),
    )
