"""Prompts to expanded ids: placeholders found, replaced, tokenized once, and each item's place.

Every run of a repeated media token stands once in the text that is tokenized (collapsed) and is
repeated in the ids afterwards: the same ids as tokenizing the whole expanded text, whose cost would
grow with the number of rows. Where a tokenizer does not keep such a token apart, the whole text is
tokenized instead.

A span is every token that holds a character of what the placeholder became. Where a tokenizer joins
the edge of a replacement with its neighbour (Gemma 3's newlines), the joined token belongs to the
span; rows never join.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from processors.errors import InvalidRequestError, PlaceholderMismatchError
from processors.replaced import ItemIds, Range, item_ids, merge_ranges, shift_ranges
from processors.tokenizing import Ids, TextTokenizer, Tokens
from processors.types import ItemPlacement, ItemPlan, Modality, ModelInfo, RenderedPrompt

Expansion = Literal[False, True, "auto"]


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """A prompt as the engine takes it."""

    input_ids: Ids
    """int32 of shape (L,)."""
    placements: tuple[ItemPlacement, ...]
    """Where each item stands, by first position; items without a placeholder are missing."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(code, sentence) pairs."""


class _Run(NamedTuple):
    """A part of a replacement in the text to tokenize."""

    start: int
    stop: int
    token_id: int
    times: int
    """How often the token stands in the expanded prompt."""


@dataclass(frozen=True, slots=True)
class _Insert:
    """What one placeholder became in the text to tokenize."""

    plan: ItemPlan
    index: int
    start: int
    stop: int
    runs: tuple[_Run, ...]


class _NotApartError(Exception):
    """Raised when a collapsed token is not found as one token of its own."""


@dataclass(slots=True)
class _Items:
    """The items of a request on their way into a prompt."""

    queues: dict[Modality, deque[tuple[int, ItemPlan]]]
    is_lenient: bool
    warnings: list[tuple[str, str]] = field(default_factory=list)
    surplus: dict[Modality, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Sequence[ItemPlan], *, lenient: bool) -> _Items:
        queues: dict[Modality, deque[tuple[int, ItemPlan]]] = {m: deque() for m in Modality}
        for plan in plans:
            queues[plan.modality].append((len(queues[plan.modality]), plan))
        return cls(queues, lenient)

    def take(self, modality: Modality) -> tuple[int, ItemPlan] | None:
        """Return the next item for a placeholder; None (counted) where there is none left."""
        if self.queues[modality]:
            return self.queues[modality].popleft()
        self.surplus[modality] = self.surplus.get(modality, 0) + 1
        return None

    def check(self, plans: Sequence[ItemPlan]) -> None:
        """Refuse surplus placeholders and items, or warn of them where that is asked for."""
        for modality in Modality:
            given = sum(plan.modality is modality for plan in plans)
            left, surplus = len(self.queues[modality]), self.surplus.get(modality, 0)
            if not left and not surplus:
                continue
            error = _mismatch(modality, given - left + surplus, given)
            if not self.is_lenient:
                raise error
            self.warnings.append(("surplus_dropped", error.message))


class PromptEncoder:
    """Expands the prompts of one model; threads may share it.

    Args:
        info: The served model; without a serialised tokenizer only ids can be expanded.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._media_ids = frozenset(info.special_tokens.values()) | {
            p.token_id for p in info.placeholders.values() if p.token_id is not None
        }
        self._bos = info.bos_token
        self._tokenizer = (
            None
            if info.tokenizer_json is None
            else TextTokenizer(info.tokenizer_json, self._media_ids)
        )
        self._placeholders = {m: p for m, p in info.placeholders.items() if m in info.modalities}
        self._names, self._finder = _finder(
            {m: (p.text, p.pattern) for m, p in self._placeholders.items()}
        )
        self._encoded: dict[str, Ids] = {}
        self._placeholder_ids = {
            modality: ids
            for modality, spec in self._placeholders.items()
            if len(ids := self._ids_of_placeholder(spec.text, spec.token_id))
        }

    def count(self, source: RenderedPrompt | Ids) -> dict[Modality, int]:
        """Return how many placeholders of each modality a prompt holds."""
        counts = dict.fromkeys(self._placeholders, 0)
        if isinstance(source, RenderedPrompt):
            for text, is_trusted in source.pieces:
                for found in self._find(text) if is_trusted else ():
                    counts[self._names[str(found.lastgroup)]] += 1
        else:
            for modality, sequence in self._placeholder_ids.items():
                counts[modality] = len(_find_sequence(source, sequence))
        return counts

    def check_counts(self, source: RenderedPrompt | Ids, items: Mapping[Modality, int]) -> None:
        """Refuse a prompt whose placeholders do not match the items in number.

        Modalities without a placeholder (Whisper's audio, CLIP's images) stand beside the text and
        are not counted.

        Raises:
            PlaceholderMismatchError: With both numbers, for the first modality that differs.
        """
        for modality, held in self.count(source).items():
            if held != items.get(modality, 0):
                raise _mismatch(modality, held, items.get(modality, 0))

    def expand_text(
        self, prompt: RenderedPrompt, plans: Sequence[ItemPlan], *, lenient: bool = False
    ) -> ExpandedPrompt:
        """Return a text prompt expanded.

        Args:
            prompt: Trusted pieces with a placeholder per item, and what callers typed.
            plans: Of every item; those of one modality in placeholder order.
            lenient: Drop surplus placeholders and items with a warning instead of refusing.

        Raises:
            PlaceholderMismatchError: If placeholders and items differ in number, or row tokens
                stand in the prompt that belong to no item.
            InvalidRequestError: If the model has no tokenizer for text.

        Blocking: CPU time grows with the text, not with the rows.
        """
        tokenizer = self._require_tokenizer()
        plans = self._in_text(plans)
        items = _Items.of(plans, lenient=lenient)
        adds = prompt.add_special_tokens and not (
            self._bos and len(tokenizer.prefix) and prompt.text.startswith(self._bos)
        )
        chunks: list[Ids] = [tokenizer.prefix] if adds else []
        placements: list[ItemPlacement] = []
        position = sum(len(c) for c in chunks)
        for text, is_trusted in prompt.pieces:
            if is_trusted:
                ids, placed = self._expand_piece(text, items, position)
                placements += placed
            else:
                ids = tokenizer.encode_plain(text)
            chunks.append(ids)
            position += len(ids)
        if adds:
            chunks.append(tokenizer.suffix)
        return self._finish(chunks, placements, plans, items)

    def expand_ids(
        self,
        ids: Ids,
        plans: Sequence[ItemPlan],
        *,
        expanded: Expansion = False,
        lenient: bool = False,
    ) -> ExpandedPrompt:
        """Return token ids expanded; every id that is no placeholder stays as it is.

        Args:
            ids: int32 of shape (L,).
            plans: As for `expand_text`.
            expanded: Whether the runs are there already. `auto`: left to right, what equals the
                item's whole replacement stays, a single placeholder expands.
            lenient: As for `expand_text`.

        Raises:
            PlaceholderMismatchError: If the ids do not fit the items.
        """
        plans = self._in_text(plans)
        items = _Items.of(plans, lenient=lenient)
        replaced = {id(plan): self._item_ids(plan) for plan in plans}
        starts = self._candidate_starts(ids, replaced.values(), expanded)
        chunks: list[Ids] = []
        placements: list[ItemPlacement] = []
        copied = scanned = grown = 0
        while (place := int(np.searchsorted(starts, scanned))) < len(starts):
            start = int(starts[place])
            taken = None if expanded is False else self._take_run(ids, start, items, replaced)
            if taken is not None:
                index, plan, length = taken
                item = replaced[id(plan)]
                rows = shift_ranges(item.rows, start + grown - item.core[0])
                placements.append(
                    _placement(plan, index, rows, (start + grown, start + grown + length))
                )
                scanned = start + length
                continue
            found = None if expanded is True else self._find_placeholder(ids, start)
            if found is None:
                self._refuse_stray(ids, start, replaced.values(), expanded)
                scanned = start + 1
                continue
            modality, length = found
            chunks.append(ids[copied:start])
            copied = scanned = start + length
            new = self._take_placeholder(modality, items, replaced, start + grown, placements)
            chunks.append(new)
            grown += len(new) - length
        chunks.append(ids[copied:])
        return self._finish(chunks, placements, plans, items)

    def _in_text(self, plans: Sequence[ItemPlan]) -> list[ItemPlan]:
        """Return the plans of items that have a placeholder at all."""
        return [plan for plan in plans if plan.modality in self._placeholders]

    def _take_placeholder(
        self,
        modality: Modality,
        items: _Items,
        replaced: Mapping[int, ItemIds],
        position: int,
        placements: list[ItemPlacement],
    ) -> Ids:
        """Return what a placeholder becomes and note the place; nothing for a surplus one."""
        taken = items.take(modality)
        if taken is None:
            return np.zeros(0, dtype=np.int32)
        index, plan = taken
        item = replaced[id(plan)]
        rows = shift_ranges(item.rows, position)
        placements.append(_placement(plan, index, rows, (position, position + len(item.whole))))
        return item.whole

    def _expand_piece(
        self, text: str, items: _Items, position: int
    ) -> tuple[Ids, list[ItemPlacement]]:
        taken = [
            (found.start(), found.end(), items.take(self._names[str(found.lastgroup)]))
            for found in self._find(text)
        ]
        try:
            built, inserts = self._build(text, taken, collapse=True)
            return self._place(self._require_tokenizer().encode(built), inserts, position)
        except _NotApartError:
            built, inserts = self._build(text, taken, collapse=False)
        try:
            return self._place(self._require_tokenizer().encode(built), inserts, position)
        except _NotApartError as error:
            raise PlaceholderMismatchError(
                "A media token of the prompt joins with the text beside it."
            ) from error

    def _build(
        self,
        text: str,
        taken: Iterable[tuple[int, int, tuple[int, ItemPlan] | None]],
        *,
        collapse: bool,
    ) -> tuple[str, list[_Insert]]:
        """Return the text to tokenize and what was inserted where."""
        pieces: list[str] = []
        inserts: list[_Insert] = []
        last = length = 0
        for start, stop, item in taken:
            pieces.append(text[last:start])
            length += start - last
            last = stop
            if item is None:
                continue
            index, plan = item
            begin, runs = length, []
            for part in plan.replacement or ():
                token_id = self._require_tokenizer().token_id(part.text)
                times = 1 if collapse and token_id is not None else part.times
                pieces.append(part.text * times)
                stop_at = length + len(part.text) * times
                if token_id is not None:
                    runs.append(_Run(length, stop_at, token_id, part.times))
                length = stop_at
            inserts.append(_Insert(plan, index, begin, length, tuple(runs)))
        pieces.append(text[last:])
        return "".join(pieces), inserts

    def _place(
        self, tokens: Tokens, inserts: Sequence[_Insert], position: int
    ) -> tuple[Ids, list[ItemPlacement]]:
        """Return the expanded ids of a piece and the places of its items.

        Raises:
            _NotApartError: If a run is not made of its own tokens.
        """
        counts = np.ones(len(tokens.ids), dtype=np.int64)
        row_tokens: list[list[np.ndarray]] = []
        for insert in inserts:
            rows = []
            for run in insert.runs:
                own = _tokens_of(tokens, run)
                if len(own) == 1:
                    counts[own[0]] = run.times
                elif len(own) != run.times:
                    if run.times == 1 and run.token_id != insert.plan.row_token_id:
                        continue  # structure that is no token of its own here; it needs no place
                    raise _NotApartError
                if run.token_id == insert.plan.row_token_id:
                    rows.append(own)
            row_tokens.append(rows)
        ends = np.cumsum(counts)
        begins = ends - counts + position
        ends += position
        placements = []
        for insert, rows in zip(inserts, row_tokens, strict=True):
            runs = [(int(begins[own[0]]), int(ends[own[-1]])) for own in rows]
            first, last = _overlap(tokens, insert.start, insert.stop)
            start = (
                int(begins[first])
                if first < len(begins)
                else int(ends[-1])
                if len(ends)
                else position
            )
            span = (start, int(ends[last - 1])) if last > first else (start, start)
            placements.append(_placement(insert.plan, insert.index, merge_ranges(runs), span))
        return np.repeat(tokens.ids, counts), placements

    def _finish(
        self,
        chunks: Sequence[Ids],
        placements: list[ItemPlacement],
        plans: Sequence[ItemPlan],
        items: _Items,
    ) -> ExpandedPrompt:
        items.check(plans)
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *chunks]).astype(np.int32, copy=False)
        placements.sort(key=lambda p: (p.span or (0, 0), list(Modality).index(p.modality)))
        self._check_rows(ids, placements, plans)
        return ExpandedPrompt(ids, tuple(placements), tuple(items.warnings))

    def _check_rows(
        self, ids: Ids, placements: Sequence[ItemPlacement], plans: Sequence[ItemPlan]
    ) -> None:
        """Refuse ids with rows that belong to no item: the engine would bind features wrongly."""
        for token_id in {p.row_token_id for p in plans if p.row_token_id is not None}:
            placed = sum(
                stop - start
                for placement in placements
                if placement.token_id == token_id
                for start, stop in placement.offsets
            )
            found = int(np.count_nonzero(ids == token_id))
            if found != placed:
                raise PlaceholderMismatchError(
                    f"The expanded prompt has {found} tokens that stand for features and its items "
                    f"have {placed}; the prompt must hold a placeholder per item and no others."
                )

    def _candidate_starts(
        self, ids: Ids, replaced: Iterable[ItemIds], expanded: Expansion
    ) -> np.ndarray:
        """Return every position where a placeholder or an item's run may begin, ascending."""
        heads = {int(sequence[0]) for sequence in self._placeholder_ids.values()}
        if expanded is not False:
            for item in replaced:
                heads |= {int(i) for i in item.whole[item.core[0] : item.core[0] + 1]}
                heads |= {int(item.whole[start]) for start, _ in item.rows[:1]}
        return np.flatnonzero(np.isin(ids, list(heads)))

    def _take_run(
        self, ids: Ids, start: int, items: _Items, replaced: Mapping[int, ItemIds]
    ) -> tuple[int, ItemPlan, int] | None:
        """Take the next item whose whole run stands here."""
        for queue in items.queues.values():
            if not queue:
                continue
            item = replaced[id(queue[0][1])]
            core = item.whole[item.core[0] : item.core[1]]
            if len(core) and np.array_equal(ids[start : start + len(core)], core):
                index, plan = queue.popleft()
                return index, plan, len(core)
        return None

    def _find_placeholder(self, ids: Ids, start: int) -> tuple[Modality, int] | None:
        for modality, sequence in self._placeholder_ids.items():
            if np.array_equal(ids[start : start + len(sequence)], sequence):
                return modality, len(sequence)
        return None

    def _refuse_stray(
        self, ids: Ids, start: int, replaced: Iterable[ItemIds], expanded: Expansion
    ) -> None:
        """Refuse a row or placeholder that begins neither a run nor a single placeholder."""
        rows = {int(item.whole[first]) for item in replaced for first, _ in item.rows[:1]}
        placeholders = {int(s[0]) for s in self._placeholder_ids.values() if len(s) == 1}
        if expanded is not False and int(ids[start]) in rows | placeholders:
            raise PlaceholderMismatchError(
                f"What stands at position {start} is neither the whole run of the next item nor "
                "its single placeholder.",
                "input_ids",
            )

    def _item_ids(self, plan: ItemPlan) -> ItemIds:
        return item_ids(plan, self._encode_part, lambda token_id: token_id in self._media_ids)

    def _encode_part(self, text: str) -> Ids:
        ids = self._encoded.get(text)
        if ids is None:
            ids = self._ids_of_part(text)
            if len(self._encoded) < MAX_ENCODED:
                self._encoded[text] = ids
        return ids

    def _ids_of_part(self, text: str) -> Ids:
        if self._tokenizer is not None:
            token_id = self._tokenizer.token_id(text)
            if token_id is not None:
                return np.array([token_id], dtype=np.int32)
            return self._tokenizer.encode(text).ids
        for spec in self._placeholders.values():
            if spec.text == text and spec.token_id is not None:
                return np.array([spec.token_id], dtype=np.int32)
        raise InvalidRequestError("The model has no tokenizer to expand these ids with.")

    def _ids_of_placeholder(self, text: str, token_id: int | None) -> Ids:
        if token_id is not None:
            return np.array([token_id], dtype=np.int32)
        return (
            np.zeros(0, np.int32) if self._tokenizer is None else self._tokenizer.encode(text).ids
        )

    def _find(self, text: str) -> Iterable[re.Match[str]]:
        return () if self._finder is None else self._finder.finditer(text)

    def _require_tokenizer(self) -> TextTokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError(
                "The model has no tokenizer for text here; send input_ids.", "prompt"
            )
        return self._tokenizer


MAX_ENCODED = 8192
"""Texts of replacement parts whose ids are remembered."""


def _finder(
    spellings: Mapping[Modality, tuple[str, str | None]],
) -> tuple[dict[str, Modality], re.Pattern[str] | None]:
    """Return a pattern that finds every placeholder, with a named group per modality."""
    names = {modality.value: modality for modality in spellings}
    groups = [
        f"(?P<{modality.value}>{'|'.join([re.escape(text), *([pattern] if pattern else [])])})"
        for modality, (text, pattern) in spellings.items()
    ]
    return names, re.compile("|".join(groups)) if groups else None


def _find_sequence(ids: Ids, sequence: Ids) -> list[int]:
    """Return where a sequence of ids stands, not overlapping."""
    starts = np.flatnonzero(ids == sequence[0])
    if len(sequence) == 1:
        return [int(s) for s in starts]
    found: list[int] = []
    for start in starts:
        free = not found or start >= found[-1] + len(sequence)
        if free and np.array_equal(ids[start : start + len(sequence)], sequence):
            found.append(int(start))
    return found


def _overlap(tokens: Tokens, start: int, stop: int) -> tuple[int, int]:
    """Return the half-open range of tokens that hold a character of [start, stop)."""
    first = int(np.searchsorted(tokens.stops, start, side="right"))
    last = int(np.searchsorted(tokens.starts, stop, side="left"))
    return first, max(first, last)


def _tokens_of(tokens: Tokens, run: _Run) -> np.ndarray:
    """Return the places of a run's own tokens."""
    first, last = _overlap(tokens, run.start, run.stop)
    return first + np.flatnonzero(tokens.ids[first:last] == run.token_id)


def _placement(plan: ItemPlan, index: int, rows: tuple[Range, ...], span: Range) -> ItemPlacement:
    return ItemPlacement(
        modality=plan.modality,
        index=index,
        offsets=rows,
        span=span,
        num_tokens=sum(stop - start for start, stop in rows),
        token_id=plan.row_token_id,
    )


def _mismatch(modality: Modality, placeholders: int, items: int) -> PlaceholderMismatchError:
    return PlaceholderMismatchError(
        f"The prompt holds {placeholders} {modality.value} placeholder(s) and the request "
        f"{items} {modality.value}(s); they must be equal.",
        "prompt",
    )
