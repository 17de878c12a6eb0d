"""Items spliced into a text that is tokenized once, and where each of them lands in the ids.

Runs of a media token stand once in the text (collapsed) and are repeated in the ids: the same ids
as tokenizing the whole text, whose cost would grow with the number of rows.

A span is every token that holds a character of what the placeholder became. Where a tokenizer joins
the edge of a replacement with its neighbour (Gemma 3's newlines), the joined token belongs to the
span, and to both spans where two items share it; rows never join.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from processors.errors import PromptTooLongError
from processors.tokenizing import Ids, TextTokenizer, Tokens
from processors.types import ItemPlacement, ItemPlan
from processors.waiting import WaitingItem


class NotApartError(Exception):
    """Raised when a media token does not come out as tokens of its own."""


@dataclass(frozen=True, slots=True)
class _Insert:
    """What one placeholder became in the text."""

    item: WaitingItem
    start: int
    stop: int
    parts: tuple[int, int]
    """Half-open range of its parts among those of all inserts."""


@dataclass(slots=True)
class SplicedText:
    """A text under construction, with what was spliced into it.

    Args:
        tokenizer: Says which runs may be collapsed.
        collapse: False to write every run out.
        max_tokens: Bound of the tokens of all replacements together.
    """

    tokenizer: TextTokenizer
    collapse: bool = True
    max_tokens: int | None = None
    _pieces: list[str] = field(default_factory=list)
    _length: int = 0
    _num_tokens: int = 0
    _inserts: list[_Insert] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _stops: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    """Of every part: how often its one token stands in the ids; 0 where it is written out."""
    _run_ids: list[int | None] = field(default_factory=list)
    """Of every part that is collapsed: its token."""
    _trusted: list[tuple[int, int]] = field(default_factory=list)
    """Character ranges of trusted text, what was spliced in included; they do not touch."""
    _has_typed_text: bool = False

    def add_text(self, text: str, *, is_trusted: bool) -> None:
        """Add text from the prompt."""
        if not text:
            return
        self._add(text)
        if is_trusted:
            self._trust(self._length - len(text))
        else:
            self._has_typed_text = True

    def add_item(self, item: WaitingItem) -> None:
        """Add what an item's placeholder becomes.

        Raises:
            PromptTooLongError: If the replacements exceed `max_tokens`.
        """
        start, first_part = self._length, len(self._times)
        for part in item.plan.replacement or ():
            self._count(part.times)
            is_run = self.collapse and part.times > 1 and self.tokenizer.is_collapsible(part.text)
            self._starts.append(self._length)
            self._add(part.text if is_run else part.text * part.times)
            self._stops.append(self._length)
            self._times.append(part.times if is_run else 0)
            if is_run:
                self._run_ids.append(self.tokenizer.token_id(part.text))
        parts = (first_part, len(self._times))
        self._inserts.append(_Insert(item, start, self._length, parts))
        self._trust(start)

    def tokenize(self, media_ids: frozenset[int], tokens: Tokens | None = None) -> Splice:
        """Return the ids and the placements of what was spliced in.

        Args:
            media_ids: Ids that must not come out of typed text.
            tokens: The tokens of the text, where they are known.

        Raises:
            NotApartError: If a run or a row is not made of its own tokens.
            PromptTooLongError: If there would be more than `max_tokens` tokens.
        """
        tokens = self.tokenizer.encode(self.text) if tokens is None else tokens
        counts = self._repeat_runs(tokens)
        spelled = self._spell_typed_media(tokens, media_ids) if self._has_typed_text else {}
        for index, ids in spelled.items():
            counts[index] = len(ids)
        self._num_tokens = 0
        self._count(int(counts.sum()))
        stops = np.cumsum(counts)
        starts = stops - counts
        ids = np.repeat(tokens.ids, counts)
        for index, spelling in spelled.items():
            ids[starts[index] : stops[index]] = spelling
        return Splice(ids, tuple(self._place(tokens, starts, stops)))

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def _add(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def _trust(self, start: int) -> None:
        if self._trusted and self._trusted[-1][1] == start:
            start = self._trusted.pop()[0]
        self._trusted.append((start, self._length))

    def _count(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        if self.max_tokens is not None and self._num_tokens > self.max_tokens:
            raise PromptTooLongError(
                f"The expanded prompt has at least {self._num_tokens} tokens; at most "
                f"{self.max_tokens} are allowed.",
                "prompt",
            )

    def _repeat_runs(self, tokens: Tokens) -> np.ndarray:
        """Return how often each token stands in the ids, int64."""
        counts = np.ones(len(tokens.ids), dtype=np.int64)
        times = np.array(self._times, dtype=np.int64)
        is_run = times > 0
        if not is_run.any():
            return counts
        starts = np.array(self._starts)[is_run]
        stops = np.array(self._stops)[is_run]
        first, last = tokens.overlapping(starts, stops)
        if (last - first != 1).any() or (tokens.ids[first] != self._run_ids).any():
            raise NotApartError
        counts[first] = times[is_run]
        return counts

    def _spell_typed_media(self, tokens: Tokens, media_ids: frozenset[int]) -> dict[int, Ids]:
        """Return the spelling of every media token that is not wholly trusted, by its place."""
        found = np.flatnonzero(np.isin(tokens.ids, list(media_ids)))
        borders = np.array([(0, 0), *self._trusted], dtype=np.int64)
        place = np.searchsorted(borders[:, 0], tokens.starts[found], side="right") - 1
        text = self.text
        spelled = {}
        for index in found[tokens.stops[found] > borders[place, 1]].tolist():
            start, stop = int(tokens.starts[index]), int(tokens.stops[index])
            covered = text[start:stop]
            if not self._is_trusted(stop - len(covered.lstrip()), start + len(covered.rstrip())):
                spelled[index] = self.tokenizer.spell(covered)
        return spelled

    def _is_trusted(self, start: int, stop: int) -> bool:
        """Return whether a token without the spaces that it took along is wholly trusted."""
        place = bisect.bisect_right(self._trusted, start, key=lambda entry: entry[0]) - 1
        return place >= 0 and stop <= self._trusted[place][1]

    def _place(self, tokens: Tokens, starts: np.ndarray, stops: np.ndarray) -> list[ItemPlacement]:
        part_first, part_last = tokens.overlapping(np.array(self._starts), np.array(self._stops))
        first, last = tokens.overlapping(
            np.array([insert.start for insert in self._inserts]),
            np.array([insert.stop for insert in self._inserts]),
        )
        total = int(stops[-1]) if len(stops) else 0
        placements = []
        for place, insert in enumerate(self._inserts):
            begin, end = int(first[place]), int(last[place])
            start = int(starts[begin]) if begin < len(starts) else total
            span = (start, int(stops[end - 1]) if end > begin else start)
            own = slice(*insert.parts)
            inside = _within(part_first[own], part_last[own])
            for index, plan in insert.item.placed:
                row_token_id = -1 if plan.row_token_id is None else plan.row_token_id
                rows = inside[tokens.ids[inside] == row_token_id]
                runs = _join(starts[rows], stops[rows])
                placements.append(place_item(plan, index, runs, span))
        return placements


@dataclass(frozen=True, slots=True)
class Splice:
    """A tokenized text with what was spliced into it."""

    ids: Ids
    placements: tuple[ItemPlacement, ...]
    """In the order of the inserts; a video's sound behind it."""


def place_item(
    plan: ItemPlan, index: int, runs: Sequence[tuple[int, int]], span: tuple[int, int]
) -> ItemPlacement:
    """Return where an item stands.

    Raises:
        NotApartError: If its rows are not as many as it has.
    """
    num_tokens = sum(stop - start for start, stop in runs)
    if num_tokens != plan.num_tokens:
        raise NotApartError
    return ItemPlacement(
        modality=plan.modality,
        index=index,
        offsets=tuple(runs),
        span=span,
        num_tokens=num_tokens,
        token_id=plan.row_token_id,
    )


def _within(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return every index in ascending half-open ranges, once each, ascending."""
    sizes = last - first
    ends = np.cumsum(sizes)
    indices = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - ends + sizes, sizes)
    return np.unique(indices)


def _join(starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
    """Return ascending half-open ranges with those that touch joined."""
    is_new = np.ones(len(starts), dtype=bool)
    is_new[1:] = starts[1:] != stops[:-1]
    is_end = np.ones(len(starts), dtype=bool)
    is_end[:-1] = is_new[1:]
    return list(zip(starts[is_new].tolist(), stops[is_end].tolist(), strict=True))
