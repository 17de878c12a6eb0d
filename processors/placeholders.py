"""A model's placeholders, found in text and among token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from processors.id_walk import FoundPlaceholders
from processors.tokenizing import Ids, TextTokenizer
from processors.types import Modality, PlaceholderSpec
from processors.waiting import Group


class PlaceholderFinder:
    """Finds placeholders; modalities that share one are found as one group.

    Args:
        specs: The placeholder of each modality that has one.
        tokenizer: For placeholders of several tokens; None where there is none.
    """

    def __init__(
        self, specs: Mapping[Modality, PlaceholderSpec], tokenizer: TextTokenizer | None
    ) -> None:
        shared: dict[tuple[str, str | None], list[Modality]] = {}
        for modality, spec in specs.items():
            shared.setdefault((spec.text, spec.pattern), []).append(modality)
        self._tokenizer = tokenizer
        self._specs = {tuple(group): specs[group[0]] for group in shared.values()}
        self._names = {f"g{n}": group for n, group in enumerate(self._specs)}
        self._regex = self._compile()
        self._sequences = {g: ids for g, s in self._specs.items() for ids in self._ids_of(s)}
        self.groups: Mapping[Modality, Group] = {m: group for group in self._specs for m in group}

    def in_text(self, text: str) -> Iterator[tuple[int, int, Group]]:
        """Yield (start, stop, group) of every placeholder in a text."""
        for found in () if self._regex is None else self._regex.finditer(text):
            yield found.start(), found.end(), self._names[str(found.lastgroup)]

    def in_ids(self, ids: Ids) -> FoundPlaceholders:
        """Return every placeholder among ids.

        Blocking: where placeholders have a pattern, about 10 ms per 100,000 ids.
        """
        if any(spec.pattern for spec in self._specs.values()) and self._tokenizer is not None:
            found = self._by_text(ids, self._tokenizer)
        else:
            found = self._by_sequence(ids)
        starts, stops, numbers = _disjoint(found)
        return FoundPlaceholders(starts, stops, numbers, tuple(self._specs))

    def _by_sequence(self, ids: Ids) -> np.ndarray:
        rows = [np.zeros((3, 0), dtype=np.int64)]
        for number, group in enumerate(self._specs):
            if group in self._sequences:
                sequence = self._sequences[group]
                starts = _find_sequence(ids, sequence)
                numbers = np.full_like(starts, number)
                rows.append(np.stack([starts, starts + len(sequence), numbers]))
        joined = np.concatenate(rows, axis=1)
        return joined[:, np.argsort(joined[0], kind="stable")]

    def _by_text(self, ids: Ids, tokenizer: TextTokenizer) -> np.ndarray:
        """Read ids as the vocabulary writes them, and keep what begins and ends with tokens."""
        known, inverse = np.unique(ids, return_inverse=True)
        texts = tokenizer.token_texts(known)
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths[inverse])])
        numbers = {group: number for number, group in enumerate(self._specs)}
        found = []
        for start, stop, group in self.in_text("".join(texts[i] for i in inverse.tolist())):
            # Ids that the vocabulary does not know are written as nothing and stay outside.
            first = int(np.searchsorted(starts, start, side="right")) - 1
            last = int(np.searchsorted(starts, stop))
            if starts[first] == start and starts[last] == stop:
                found.append((first, last, numbers[group]))
        return np.array(found, dtype=np.int64).reshape(-1, 3).T

    def _compile(self) -> re.Pattern[str] | None:
        alternatives = [
            f"(?P<{name}>{'|'.join(filter(None, (spec.pattern, re.escape(spec.text))))})"
            for name, spec in zip(self._names, self._specs.values(), strict=True)
        ]
        return re.compile("|".join(alternatives)) if alternatives else None

    def _ids_of(self, spec: PlaceholderSpec) -> Iterator[Ids]:
        """Yield the ids of a placeholder's text, nothing where they cannot be known."""
        if spec.token_id is not None:
            yield np.array([spec.token_id], dtype=np.int32)
        elif self._tokenizer is not None and spec.text:
            yield self._tokenizer.encode_inside(spec.text).ids


def _find_sequence(ids: Ids, sequence: Ids) -> np.ndarray:
    """Return where a sequence of ids stands."""
    starts = np.flatnonzero(ids[: max(0, len(ids) - len(sequence) + 1)] == sequence[0])
    for place, token_id in enumerate(sequence[1:], start=1):
        starts = starts[ids[starts + place] == token_id]
    return starts


def _disjoint(found: np.ndarray) -> np.ndarray:
    """Return (start, stop, number) columns without those that overlap an earlier one."""
    if not (found[0, 1:] < found[1, :-1]).any():
        return found
    kept: list[int] = []
    for place, (start, _, _) in enumerate(found.T.tolist()):
        if not kept or start >= found[1, kept[-1]]:
            kept.append(place)
    return found[:, kept]
