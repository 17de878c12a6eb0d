"""Prompts to expanded ids, with the place of each item; what a caller typed is never a media token.

Text is spliced and tokenized in one piece (`processors.splicing`); token ids are walked and kept
as they are (`processors.id_walk`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from processors.errors import (
    InvalidRequestError,
    PlaceholderMismatchError,
    UnsupportedOptionError,
)
from processors.id_walk import Expansion, IdWalk, ItemIds, shift_placement
from processors.memo import Memo
from processors.placeholders import PlaceholderFinder
from processors.prompt_edits import edit_prompt
from processors.slow_prompt import spread, without_second_bos
from processors.splicing import NotApartError, Splice, SplicedText, place_item
from processors.tokenizing import Ids, TextTokenizer, TokenizerMemory
from processors.types import (
    ItemPlacement,
    ItemPlan,
    Modality,
    ModelInfo,
    RenderedPrompt,
    ReplacementPart,
)
from processors.waiting import WaitingItem, WaitingItems, mismatch

MAX_EXPANDED_BYTES = 32 << 20
"""What all expanded prompts that are remembered may take."""
MAX_EXPANDED_CHARS = 16_384
MAX_EXPANDED_PARTS = 64
"""Of a prompt that is remembered expanded: what its placeholders become, in parts."""


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """A prompt as the engine takes it."""

    input_ids: Ids
    """int32 of shape (L,); many may hold it, so none writes to it."""
    placements: tuple[ItemPlacement, ...]
    """Where each item stands, by first position; items without a placeholder are missing."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(code, sentence) pairs."""


class PromptEncoder:
    """Expands the prompts of one model; threads may share it.

    Args:
        info: The served model; without a serialised tokenizer only ids can be expanded.
    """

    def __init__(self, info: ModelInfo) -> None:
        specs = {m: p for m, p in info.placeholders.items() if m in info.modalities}
        placeholder_ids = {p.token_id for p in specs.values() if p.token_id is not None}
        self._media_ids = frozenset(info.special_tokens.values()) | placeholder_ids
        self._bos = info.bos_token
        self._edits = info.prompt_edits
        self._tokenizer = (
            None
            if info.tokenizer_json is None
            else TextTokenizer(info.tokenizer_json, self._media_ids)
        )
        self._adds_special_tokens = info.adds_special_tokens
        self.needs_worker = self._tokenizer is None and info.prompt_fingerprint is not None
        """Whether only a worker can tokenize text: see `for_worker`."""
        self._ids_of_text = {p.text: p.token_id for p in specs.values() if p.token_id is not None}
        self._finder = PlaceholderFinder(specs, self._tokenizer)
        self._expanded: Memo[_Key, ExpandedPrompt] = Memo(MAX_EXPANDED_BYTES, _weigh)

    def count(self, source: RenderedPrompt | Ids) -> dict[Modality, int]:
        """Return how many placeholders of each modality a prompt holds.

        Modalities that share one placeholder are counted under the first of them.
        """
        counts = dict.fromkeys(self._finder.groups, 0)
        if isinstance(source, RenderedPrompt):
            for text, is_trusted in _segments(source):
                for _, _, group in self._finder.in_text(text) if is_trusted else ():
                    counts[group[0]] += 1
        else:
            found = self._finder.in_ids(source)
            for number, group in enumerate(found.groups):
                counts[group[0]] = int(np.count_nonzero(found.numbers == number))
        return counts

    def check_counts(self, source: RenderedPrompt | Ids, items: Mapping[Modality, int]) -> None:
        """Refuse a prompt whose placeholders do not match the items in number.

        Modalities without a placeholder (Whisper's audio, CLIP's images) stand beside the text and
        are not counted.

        Raises:
            PlaceholderMismatchError: With both numbers, for the first modality that differs.
        """
        param = "prompt" if isinstance(source, RenderedPrompt) else "input_ids"
        counts = self.count(source)
        for group in dict.fromkeys(self._finder.groups.values()):
            given = sum(items.get(modality, 0) for modality in group)
            if counts[group[0]] != given:
                raise mismatch(group, counts[group[0]], given, param)

    def repeat_in_text(
        self, prompt: RenderedPrompt, modality: Modality, times: Sequence[int]
    ) -> RenderedPrompt:
        """Return a text prompt in which placeholders of a modality stand several times over.

        Args:
            prompt: The prompt.
            modality: Of the placeholders.
            times: How often each of them stands, in their order; those beyond stand once.

        Raises:
            UnsupportedOptionError: If other modalities share the placeholder.
        """
        group = self._group_to_repeat(modality) if times else None
        if group is None:
            return prompt
        left = iter(times)
        pieces: list[tuple[str, bool]] = []
        for text, is_trusted in _segments(prompt):
            written, last = "", 0
            for start, stop, found in self._finder.in_text(text) if is_trusted else ():
                repeated = next(left, 1) if found == group else 1
                written += text[last:start] + text[start:stop] * repeated
                last = stop
            pieces.append((written + text[last:], is_trusted))
        return replace(prompt, pieces=tuple(pieces))

    def repeat_in_ids(self, ids: Ids, modality: Modality, times: Sequence[int]) -> Ids:
        """Return token ids in which placeholders of a modality stand several times over.

        Args:
            ids: int32 of shape (L,), not expanded.
            modality: As for `repeat_in_text`.
            times: As for `repeat_in_text`.

        Raises:
            UnsupportedOptionError: If other modalities share the placeholder.
        """
        group = self._group_to_repeat(modality) if times else None
        if group is None:
            return ids
        left = iter(times)
        found = self._finder.in_ids(ids)
        pieces, last = [], 0
        for place in range(len(found.starts)):
            if found.group(place) == group:
                start, stop = found.span(place)
                pieces += [ids[last:start], np.tile(ids[start:stop], next(left, 1))]
                last = stop
        return np.concatenate([*pieces, ids[last:]])

    def expand_text(
        self,
        prompt: RenderedPrompt,
        plans: Sequence[ItemPlan],
        *,
        lenient: bool = False,
        max_tokens: int | None = None,
        from_memory: bool = False,
    ) -> ExpandedPrompt:
        """Return a text prompt expanded, with what the processor's own call writes into it.

        Args:
            prompt: Trusted pieces with a placeholder per item, and what callers typed.
            plans: Of every item; those of one modality in placeholder order. The sound of a video
                has no placeholder of its own and stands in its video's.
            lenient: Drop surplus placeholders and items with a warning instead of refusing.
            max_tokens: Bound, BOS and the like aside, that is checked before anything of that size
                is made.
            from_memory: Tokenize nothing, so that the event loop may call this for a short prompt.

        Raises:
            NotRememberedError: If nothing may be tokenized and something would have to be.
            PlaceholderMismatchError: If placeholders and items differ in number, or row tokens
                stand in the prompt that belong to no item.
            InvalidRequestError: If the model has no tokenizer for text, or the text is no valid
                Unicode.
            PromptTooLongError: If there are more than `max_tokens` tokens.

        Blocking: CPU time grows with the text, not with the rows.
        """
        whole = self._require_tokenizer()
        tokenizer = whole.memory if from_memory else whole

        def expand() -> ExpandedPrompt:
            return self._expand_text(tokenizer, prompt, plans, lenient, max_tokens)

        key = _key_of(prompt, plans, lenient)
        if key is None:
            return expand()
        expanded = self._expanded.get(key, expand)
        is_short = max_tokens is None or len(expanded.input_ids) <= max_tokens
        # What was remembered under a wider bound is refused as it is without.
        return expanded if is_short else expand()

    def _expand_text(
        self,
        tokenizer: TextTokenizer | TokenizerMemory,
        prompt: RenderedPrompt,
        plans: Sequence[ItemPlan],
        lenient: bool,
        max_tokens: int | None,
    ) -> ExpandedPrompt:
        items = self._waiting(plans, "prompt")
        edited = edit_prompt(prompt, self._edits, self._finder.in_text)
        pieces = self._take_placeholders(edited, items)
        warnings = items.check(lenient=lenient)
        media_ids = self._media_ids | _row_ids(plans)

        def splice(*, collapse: bool) -> Splice:
            text = SplicedText(tokenizer, collapse, max_tokens)
            for piece in pieces:
                if isinstance(piece, WaitingItem):
                    text.add_item(piece)
                else:
                    text.add_text(piece[0], is_trusted=piece[1])
            return text.tokenize(media_ids)

        prefix, suffix = self._added_around(prompt, tokenizer)
        spliced = _collapsed_or_whole(splice)
        ids = np.concatenate([prefix, spliced.ids, suffix])
        ids.flags.writeable = False
        placements = [shift_placement(p, len(prefix)) for p in spliced.placements]
        return _finished(ids, placements, plans, warnings, "prompt")

    def for_worker(
        self, prompt: RenderedPrompt, plans: Sequence[ItemPlan], *, lenient: bool = False
    ) -> tuple[RenderedPrompt, list[ItemPlan]]:
        """Return a text prompt to be encoded by a worker, and the plans to expand its ids by.

        Args:
            prompt: As for `expand_text`.
            plans: As for `expand_text`.
            lenient: As for `expand_text`.

        Raises:
            PlaceholderMismatchError: If placeholders and items differ in number.
        """
        items = self._waiting(plans, "prompt")
        edited = edit_prompt(prompt, self._edits, self._finder.in_text)
        pieces = list(self._cut(edited, items))
        items.check(lenient=lenient)
        written, cores = spread(pieces, plans, self._is_token)
        guarded = without_second_bos(prompt, self._bos, adds=self._adds_special_tokens)
        return replace(guarded, pieces=written), cores

    def expand_ids(
        self,
        ids: Ids,
        plans: Sequence[ItemPlan],
        *,
        expanded: Expansion = False,
        lenient: bool = False,
        max_tokens: int | None = None,
    ) -> ExpandedPrompt:
        """Return token ids expanded; every id that is no placeholder stays as it is.

        Args:
            ids: int32 of shape (L,).
            plans: As for `expand_text`.
            expanded: Whether the runs are there already. `auto`: left to right, what equals the
                item's whole replacement stays, a single placeholder expands.
            lenient: As for `expand_text`.
            max_tokens: As for `expand_text`.

        Raises:
            PlaceholderMismatchError: If the ids do not fit the items.
            InvalidRequestError: If the model has no tokenizer to expand these ids with.
            PromptTooLongError: If there are more than `max_tokens` tokens.
        """
        items = self._waiting(plans, "input_ids")
        made: dict[tuple[Modality, int, bool], ItemIds] = {}

        def item_ids(item: WaitingItem, at_start: bool) -> ItemIds:
            key = (item.plan.modality, item.index, at_start)
            if key not in made:
                made[key] = self._item_ids(item, at_start=at_start, max_tokens=max_tokens)
            return made[key]

        found = self._finder.in_ids(ids)
        walk = IdWalk(ids, found, items, item_ids, expanded, lenient, max_tokens)
        grown, placements = walk.expand() if expanded is False else walk.match(self._heads(plans))
        warnings = (*walk.warnings, *items.check(lenient=lenient))
        return _finished(grown, placements, plans, warnings, "input_ids")

    def _group_to_repeat(self, modality: Modality) -> tuple[Modality, ...] | None:
        """Return the group of a modality's placeholder, None where it has none."""
        group = self._finder.groups.get(modality)
        if group is not None and len(group) > 1:
            raise UnsupportedOptionError(
                f"Placeholders of {modality.value}s cannot repeat; other modalities share them."
            )
        return group

    def _take_placeholders(
        self, prompt: RenderedPrompt, items: WaitingItems
    ) -> list[tuple[str, bool] | WaitingItem]:
        """Return a prompt's text with an item in place of each placeholder in trusted text."""
        pieces: list[tuple[str, bool] | WaitingItem] = []
        for text, what in self._cut(prompt, items):
            if isinstance(what, bool):
                pieces.append((text, what))
            elif what is not None:
                pieces.append(what)
        return pieces

    def _cut(
        self, prompt: RenderedPrompt, items: WaitingItems
    ) -> Iterator[tuple[str, bool] | tuple[str, WaitingItem | None]]:
        """Yield a prompt's text, and each placeholder in trusted text with the item it stands for.

        A surplus placeholder stands for None.
        """
        for text, is_trusted in _segments(prompt):
            last = 0
            for start, stop, group in self._finder.in_text(text) if is_trusted else ():
                yield text[last:start], True
                yield text[start:stop], items.take(group)
                last = stop
            yield text[last:], is_trusted

    def _is_token(self, part: ReplacementPart) -> bool:
        """Return whether a part with ids is a media token, which no text joins with."""
        return part.ids is not None and len(part.ids) == 1 and part.ids[0] in self._media_ids

    def _added_around(
        self, prompt: RenderedPrompt, tokenizer: TextTokenizer | TokenizerMemory
    ) -> tuple[Ids, Ids]:
        """Return BOS and the like; nothing where the text writes BOS itself."""
        writes_bos = bool(self._bos) and prompt.text.startswith(str(self._bos))
        adds = prompt.add_special_tokens and self._adds_special_tokens
        if not adds or (len(tokenizer.prefix) and writes_bos):
            return tokenizer.prefix[:0], tokenizer.suffix[:0]
        return tokenizer.prefix, tokenizer.suffix

    def _waiting(self, plans: Sequence[ItemPlan], param: str) -> WaitingItems:
        return WaitingItems(plans, self._finder.groups, self._holds, param)

    def _holds(self, plan: ItemPlan, sound: ItemPlan) -> bool:
        """Return whether a replacement holds rows of a video's sound."""
        return plan.modality is Modality.VIDEO and any(
            sound.row_token_id in (self._id_of(part.text), *(part.ids or ()))
            for part in plan.replacement or ()
        )

    def _item_ids(self, item: WaitingItem, *, at_start: bool, max_tokens: int | None) -> ItemIds:
        """Return an item's replacement as ids."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            spliced = self._splice_without_tokenizer(item)
        else:

            def splice(*, collapse: bool) -> Splice:
                text = SplicedText(tokenizer, collapse, max_tokens)
                text.add_item(item)
                known = None if at_start else tokenizer.encode_inside(text.text)
                return text.tokenize(frozenset(), known)

            spliced = _collapsed_or_whole(splice)
        is_media = np.isin(spliced.ids, list(self._media_ids | _row_ids([item.plan])))
        media = np.flatnonzero(is_media)
        core = (int(media[0]), int(media[-1]) + 1) if len(media) else (0, len(spliced.ids))
        heads = np.flatnonzero(np.isin(spliced.ids, list(self._heads([item.plan]))))
        head = int(heads[0]) if len(heads) else core[0]
        return ItemIds(spliced.ids, spliced.placements, core, head)

    def _splice_without_tokenizer(self, item: WaitingItem) -> Splice:
        """Return a replacement made of placeholders, and of parts whose ids came with the plan."""
        pieces = [np.zeros(0, np.int32)]
        for part in item.plan.replacement or ():
            known = self._ids_of_text.get(part.text)
            ids = part.ids if known is None else (known,)
            if ids is None:
                raise InvalidRequestError(
                    "The model has no tokenizer to expand these ids with.", "input_ids"
                )
            pieces.append(np.tile(np.array(ids, dtype=np.int32), part.times))
        whole = np.concatenate(pieces)
        stops = np.flatnonzero(
            np.diff(whole == item.plan.row_token_id, prepend=False, append=False)
        )
        runs = tuple(zip(stops[::2].tolist(), stops[1::2].tolist(), strict=True))
        return Splice(whole, (place_item(item.plan, item.index, runs, (0, len(whole))),))

    def _heads(self, plans: Sequence[ItemPlan]) -> set[int]:
        """Return the ids of rows and of placeholders that are one token."""
        return _row_ids(plans) | set(self._ids_of_text.values())

    def _id_of(self, text: str) -> int | None:
        if self._tokenizer is not None:
            return self._tokenizer.token_id(text)
        return self._ids_of_text.get(text)

    def _require_tokenizer(self) -> TextTokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError(
                "The model has no tokenizer for text here; send input_ids.", "prompt"
            )
        return self._tokenizer


def _segments(prompt: RenderedPrompt) -> list[tuple[str, bool]]:
    """Return a prompt's pieces with neighbours of one kind joined."""
    return [
        ("".join(text for text, _ in pieces), is_trusted)
        for is_trusted, pieces in groupby(prompt.pieces, key=lambda piece: piece[1])
    ]


def _collapsed_or_whole(splice: Callable[..., Splice]) -> Splice:
    """Splice with runs collapsed, or written out where a media token is not kept apart so.

    Raises:
        PlaceholderMismatchError: If it is not kept apart either way.
    """
    try:
        return splice(collapse=True)
    except NotApartError:
        pass
    try:
        return splice(collapse=False)
    except NotApartError as error:
        raise PlaceholderMismatchError(
            "A media token of the prompt joins with the text beside it.", "prompt"
        ) from error


class _Key(NamedTuple):
    """All that a text prompt's expansion follows from."""

    pieces: tuple[tuple[str, bool], ...]
    add_special_tokens: bool
    items: tuple[Hashable, ...]
    lenient: bool


def _key_of(prompt: RenderedPrompt, plans: Sequence[ItemPlan], lenient: bool) -> _Key | None:
    """Return what a prompt is remembered by; None for what is long to look up."""
    num_parts = sum(len(plan.replacement or ()) for plan in plans)
    num_chars = sum(len(text) for text, _ in prompt.pieces)
    if num_parts + len(plans) > MAX_EXPANDED_PARTS or num_chars > MAX_EXPANDED_CHARS:
        return None
    items = tuple((p.modality, p.replacement, p.num_tokens, p.row_token_id) for p in plans)
    return _Key(prompt.pieces, prompt.add_special_tokens, items, lenient)


def _weigh(key: _Key, expanded: ExpandedPrompt) -> int:
    """Return about the bytes of an expanded prompt and its key."""
    num_chars = sum(len(text) for text, _ in key.pieces)
    num_runs = sum(len(placement.offsets) for placement in expanded.placements)
    objects = 512 * (1 + len(key.items) + num_runs)
    return objects + 4 * num_chars + expanded.input_ids.nbytes


def _row_ids(plans: Sequence[ItemPlan]) -> set[int]:
    return {plan.row_token_id for plan in plans if plan.row_token_id is not None}


def _finished(
    ids: Ids,
    placements: Sequence[ItemPlacement],
    plans: Sequence[ItemPlan],
    warnings: tuple[tuple[str, str], ...],
    param: str,
) -> ExpandedPrompt:
    """Return an expanded prompt in order.

    Raises:
        PlaceholderMismatchError: If rows stand outside the items: the engine would bind features
            wrongly.
    """
    is_stray = np.zeros(len(ids), dtype=bool)
    for row_id in _row_ids(plans):
        is_stray |= ids == row_id
    for placement in placements:
        is_stray[slice(*(placement.span or (0, 0)))] = False
    if strays := int(np.count_nonzero(is_stray)):
        raise PlaceholderMismatchError(
            f"The prompt holds {strays} token(s) that stand for features and belong to no item; "
            "it must hold a placeholder per item and no others.",
            param,
        )
    order = list(Modality)
    ordered = sorted(placements, key=lambda p: (p.span or (0, 0), order.index(p.modality)))
    return ExpandedPrompt(ids, tuple(ordered), warnings)
