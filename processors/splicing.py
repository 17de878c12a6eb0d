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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from processors.errors import PromptTooLongError
from processors.tokenizing import Ids, TextTokenizer, TokenizerMemory, Tokens
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


class _Ranges(NamedTuple):
    """Half-open ranges, int64."""

    first: np.ndarray
    last: np.ndarray


@dataclass(slots=True)
class SplicedText:
    """A text under construction, with what was spliced into it.

    Args:
        tokenizer: Says which runs may be collapsed; or its memory, which tokenizes nothing.
        collapse: False to write every run out.
        max_tokens: Bound of the tokens of all replacements together.
    """

    tokenizer: TextTokenizer | TokenizerMemory
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
    _known_runs: dict[str, int | None] = field(default_factory=dict)
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
            run_id = self._run_id(part.text) if self.collapse and part.times > 1 else None
            is_run = run_id is not None
            self._starts.append(self._length)
            self._add(part.text if is_run else part.text * part.times)
            self._stops.append(self._length)
            self._times.append(part.times if is_run else 0)
            if is_run:
                self._run_ids.append(run_id)
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
            NotRememberedError: If the tokenizer is a memory that does not hold them.
            PromptTooLongError: If there would be more than `max_tokens` tokens.
        """
        tokens = self.tokenizer.encode_prompt(self.text) if tokens is None else tokens
        inserts = self._inserts
        first, last = tokens.overlapping(
            _int64([*self._starts, *(insert.start for insert in inserts)]),
            _int64([*self._stops, *(insert.stop for insert in inserts)]),
        )
        num_parts = len(self._times)
        parts = _Ranges(first[:num_parts], last[:num_parts])
        counts = self._repeat_runs(tokens, parts)
        spelled = self._spell_typed_media(tokens, media_ids) if self._has_typed_text else {}
        for index, ids in spelled.items():
            counts[index] = len(ids)
        self._num_tokens = 0
        self._count(int(counts.sum()))
        borders = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=borders[1:])
        ids = tokens.ids.repeat(counts)
        for index, spelling in spelled.items():
            ids[borders[index] : borders[index + 1]] = spelling
        spans = _Ranges(borders[first[num_parts:]], borders[last[num_parts:]])
        runs = self._find_runs(tokens, parts, borders)
        return Splice(ids, tuple(self._place(spans, runs)))

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def _run_id(self, text: str) -> int | None:
        """Return the token of a text whose runs may be collapsed, None of any other."""
        if text not in self._known_runs:
            is_collapsible = self.tokenizer.is_collapsible(text)
            self._known_runs[text] = self.tokenizer.token_id(text) if is_collapsible else None
        return self._known_runs[text]

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

    def _repeat_runs(self, tokens: Tokens, parts: _Ranges) -> np.ndarray:
        """Return how often each token stands in the ids, int64."""
        counts = np.ones(len(tokens.ids), dtype=np.int64)
        times = _int64(self._times)
        is_run = times > 0
        if not is_run.any():
            return counts
        first = parts.first[is_run]
        if (parts.last[is_run] - first != 1).any() or (tokens.ids[first] != self._run_ids).any():
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

    def _find_runs(
        self, tokens: Tokens, parts: _Ranges, borders: np.ndarray
    ) -> list[tuple[tuple[int, int], ...]]:
        """Return where the rows of every item stand in the ids, for all items in one pass."""
        inserts = self._inserts
        row_ids = [
            -1 if plan.row_token_id is None else plan.row_token_id
            for insert in inserts
            for _, plan in insert.item.placed
        ]
        # Of every item, the parts of its insert: a video's are also its sound's.
        first_part = [insert.parts[0] for insert in inserts for _ in insert.item.placed]
        last_part = [insert.parts[1] for insert in inserts for _ in insert.item.placed]
        part, item = _within(_Ranges(_int64(first_part), _int64(last_part)))
        token, place = _within(_Ranges(parts.first[part], parts.last[part]))
        item = item[place]
        is_row = tokens.ids[token] == _int64(row_ids)[item]
        # Parts that share a token (their edges joined) tell it once each.
        is_row[1:] &= (token[1:] != token[:-1]) | (item[1:] != item[:-1])
        token, item = token[is_row], item[is_row]
        starts, stops = borders[token], borders[token + 1]
        is_new = np.ones(len(token) + 1, dtype=bool)
        is_new[1:-1] = (starts[1:] != stops[:-1]) | (item[1:] != item[:-1])
        runs = list(zip(starts[is_new[:-1]].tolist(), stops[is_new[1:]].tolist(), strict=True))
        marks = item[is_new[:-1]].searchsorted(np.arange(len(row_ids) + 1)).tolist()
        return [tuple(runs[start:stop]) for start, stop in pairwise(marks)]

    def _place(
        self, spans: _Ranges, runs: Sequence[tuple[tuple[int, int], ...]]
    ) -> list[ItemPlacement]:
        left = iter(runs)
        whole = zip(spans.first.tolist(), spans.last.tolist(), strict=True)
        return [
            place_item(plan, index, next(left), span)
            for insert, span in zip(self._inserts, whole, strict=True)
            for index, plan in insert.item.placed
        ]


@dataclass(frozen=True, slots=True)
class Splice:
    """A tokenized text with what was spliced into it."""

    ids: Ids
    placements: tuple[ItemPlacement, ...]
    """In the order of the inserts; a video's sound behind it."""


def place_item(
    plan: ItemPlan, index: int, runs: tuple[tuple[int, int], ...], span: tuple[int, int]
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
        offsets=runs,
        span=span,
        num_tokens=num_tokens,
        token_id=plan.row_token_id,
    )


def _within(ranges: _Ranges) -> tuple[np.ndarray, np.ndarray]:
    """Return every index in half-open ranges, one range after the other, and which range it is of.

    Example:
        [4, 6) and [9, 10) -> 4, 5, 9 and 0, 0, 1.
    """
    sizes = ranges.last - ranges.first
    place = np.arange(len(sizes)).repeat(sizes)
    starts = ranges.first - (sizes.cumsum() - sizes)
    return starts[place] + np.arange(len(place)), place


def _int64(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)
