"""Text to token ids with a fast tokenizer, in the API process.

A media token whose runs may be collapsed is an added token that the tokenizer keeps apart whatever
stands beside it and however often it is repeated. Whether that holds is tried on each such token
once; a token that fails is always written out in full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
from tokenizers import Tokenizer

from processors.errors import InvalidRequestError

Ids = np.ndarray
"""int32 of shape (L,)."""

MAX_REMEMBERED = 4096
"""Texts whose ids are remembered, of replacements and of spelled-out tokens each."""
MAX_REMEMBERED_CHARS = 4096

_NEIGHBOURS = ("", "a", " ", "\n", "é.")
_REPEATS = (2, 3, 6)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenized text: ids, and the characters each came from."""

    ids: Ids
    starts: np.ndarray
    """First character of each token, int64, never falling."""
    stops: np.ndarray
    """One past its last character, never falling."""

    def overlapping(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the half-open ranges of tokens that hold a character of each [start, stop)."""
        first = np.searchsorted(self.stops, starts, side="right")
        last = np.searchsorted(self.starts, stops, side="left")
        return first, np.maximum(first, last)


class TextTokenizer:
    """A fast tokenizer; threads may share it.

    Args:
        serialized: `tokenizer.json`.
        media_ids: Ids that must never come out of what callers typed.
    """

    def __init__(self, serialized: bytes, media_ids: Iterable[int]) -> None:
        self._tokenizer = Tokenizer.from_str(serialized.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.prefix, self.suffix = self._find_added()
        # What is left of it moves offsets (ByteLevel trims spaces off) and changes no id.
        self._tokenizer.post_processor = None
        self._media_ids = frozenset(media_ids)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._anchor = self._find_anchor()
        self._collapsible: dict[str, bool] = {}
        self._inside: dict[str, Tokens] = {}
        self._spelled: dict[str, Ids] = {}

    def token_id(self, text: str) -> int | None:
        """Return the id of a text that is one token of the vocabulary."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """Return how the vocabulary writes each id; nothing for unknown ones."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text, without BOS and the like.

        Raises:
            InvalidRequestError: If the text holds lone surrogates.

        Blocking: CPU time grows with the text; releases the interpreter lock.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError("The prompt is no valid Unicode text.", "prompt") from error
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        borders = chain.from_iterable(encoding.offsets)
        offsets = np.fromiter(borders, dtype=np.int64, count=2 * len(ids)).reshape(-1, 2)
        # A token made of nothing (a prefix space) may tell an earlier character.
        starts, stops = np.maximum.accumulate(offsets, axis=0).T
        return Tokens(ids, starts, stops)

    def encode_inside(self, text: str) -> Tokens:
        """Return the tokens of a text as it stands behind a token that keeps apart."""
        found = self._inside.get(text)
        if found is None:
            found = self._cut_anchor(text)
            if len(text) <= MAX_REMEMBERED_CHARS and len(self._inside) < MAX_REMEMBERED:
                self._inside[text] = found
        return found

    def is_collapsible(self, text: str) -> bool:
        """Return whether a text is one token of which a run may be collapsed to one."""
        found = self._collapsible.get(text)
        if found is None:
            token_id = self.token_id(text)
            found = token_id in self._added and self._keeps_apart(text, token_id)
            if len(self._collapsible) < MAX_REMEMBERED:
                self._collapsible[text] = found
        return found

    def spell(self, text: str) -> Ids:
        """Return ids of a text that holds a media token, with no media token among them.

        Raises:
            InvalidRequestError: If the vocabulary has no other spelling.
        """
        found = self._spelled.get(text)
        if found is None:
            found = self._spell(text)
            if len(text) <= MAX_REMEMBERED_CHARS and len(self._spelled) < MAX_REMEMBERED:
                self._spelled[text] = found
        return found

    def _spell(self, text: str) -> Ids:
        """Cut a text where its parts, by themselves, hold no media token."""
        for cut in range(1, len(text)):
            parts = (text[:cut], text[cut:])
            ids = np.concatenate([self.encode_inside(part).ids for part in parts])
            if self._media_ids.isdisjoint(ids.tolist()):
                return ids
        raise InvalidRequestError("The prompt's text cannot be told from a media token.", "prompt")

    def _cut_anchor(self, text: str) -> Tokens:
        if self._anchor is None:
            return self.encode(text)
        tokens = self.encode(self._anchor + text)
        width = len(self._anchor)
        return Tokens(tokens.ids[1:], tokens.starts[1:] - width, tokens.stops[1:] - width)

    def _keeps_apart(self, text: str, token_id: int) -> bool:
        for left, right in product(_NEIGHBOURS, repeat=2):
            short = self.encode(left + text + right).ids
            own = short == token_id
            if np.count_nonzero(own) != 1:
                return False
            for times in _REPEATS:
                whole = self.encode(left + text * times + right).ids
                if not np.array_equal(whole, np.repeat(short, np.where(own, times, 1))):
                    return False
        return True

    def _find_anchor(self) -> str | None:
        """Return an added token that takes nothing of what stands beside it."""
        for token in self._added.values():
            is_plain = not (token.lstrip or token.rstrip or token.single_word or token.normalized)
            if is_plain and token.content and self.encode(token.content + "a").ids[1:].size:
                return str(token.content)
        return None

    def _find_added(self) -> tuple[Ids, Ids]:
        """Return what the tokenizer adds before and after every text."""
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        own = [n for n, added in enumerate(encoding.special_tokens_mask) if not added]
        ids = np.array(encoding.ids, dtype=np.int32)
        if not own:
            return ids, ids[:0]
        return ids[: own[0]], ids[own[-1] + 1 :]
