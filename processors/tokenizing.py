"""Text to token ids with a fast tokenizer, in the API process.

A media token whose runs may be collapsed is an added token that the tokenizer keeps apart whatever
stands beside it and however often it is repeated. Whether that holds is tried on each such token
once; a token that fails is always written out in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, product
from typing import TypeVar

import numpy as np
from tokenizers import Tokenizer

from processors.errors import InvalidRequestError
from processors.memo import Memo

T = TypeVar("T")

Ids = np.ndarray
"""int32 of shape (L,)."""

MAX_REMEMBERED_CHARS = 4096
"""Longer texts are tokenized anew each time; whole prompts may have more."""
MAX_REMEMBERED_PROMPT_CHARS = 16_384
MAX_REMEMBERED_PROMPT_BYTES = 32 << 20
"""What the tokens of all prompts remembered may take."""

BYTES_OF_OBJECTS = 512
"""Of one prompt remembered, beside its text and numbers."""

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
        first = self.stops.searchsorted(starts, side="right")
        last = self.starts.searchsorted(stops, side="left")
        return first, np.maximum(first, last)


class NotRememberedError(Exception):
    """Raised where a text would have to be tokenized that was not tokenized before."""


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
        self._prompts: Memo[str, Tokens] = Memo(MAX_REMEMBERED_PROMPT_BYTES, _weigh)
        self._collapsible: Memo[str, bool] = Memo()
        self._inside: Memo[str, Tokens] = Memo()
        self._spelled: Memo[str, Ids] = Memo()
        self.memory = TokenizerMemory(self, self._prompts, self._collapsible, self._spelled)

    def token_id(self, text: str) -> int | None:
        """Return the id of a text that is one token of the vocabulary."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """Return how the vocabulary writes each id; nothing for unknown ones."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]

    def encode_prompt(self, text: str) -> Tokens:
        """Return the tokens of a prompt's text; remembered, since prompts come again.

        Raises:
            InvalidRequestError: If the text holds lone surrogates.

        Blocking: as `encode`.
        """
        if len(text) > MAX_REMEMBERED_PROMPT_CHARS:
            return self.encode(text)
        return self._prompts.get(text, lambda: self.encode(text))

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
        return _remember(self._inside, text, self._cut_anchor)

    def is_collapsible(self, text: str) -> bool:
        """Return whether a text is one token of which a run may be collapsed to one."""
        return _remember(self._collapsible, text, self._keeps_apart)

    def spell(self, text: str) -> Ids:
        """Return ids of a text that holds a media token, with no media token among them.

        Raises:
            InvalidRequestError: If the vocabulary has no other spelling.
        """
        return _remember(self._spelled, text, self._spell)

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

    def _keeps_apart(self, text: str) -> bool:
        token_id = self.token_id(text)
        if token_id not in self._added:
            return False
        for left, right in product(_NEIGHBOURS, repeat=2):
            short = self.encode(left + text + right).ids
            for times in _REPEATS:
                whole = self.encode(left + text * times + right).ids
                if not np.array_equal(
                    whole, np.repeat(short, np.where(short == token_id, times, 1))
                ):
                    return False
        return True

    def _find_anchor(self) -> str | None:
        """Return an added token that takes nothing of what stands beside it."""
        for token_id, token in self._added.items():
            is_plain = not (token.lstrip or token.rstrip or token.single_word or token.normalized)
            if is_plain and self.encode(f"{token.content}a").ids[0] == token_id:
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


class TokenizerMemory:
    """What a tokenizer was asked before: answers as it did, at once, and never tokenizes.

    Args:
        tokenizer: Whose vocabulary to look into.
        prompts: Tokens by text.
        collapsible: Which texts may be collapsed.
        spelled: Spellings by text.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompts: Memo[str, Tokens],
        collapsible: Memo[str, bool],
        spelled: Memo[str, Ids],
    ) -> None:
        self.prefix, self.suffix = tokenizer.prefix, tokenizer.suffix
        self.token_id = tokenizer.token_id
        self._prompts = prompts
        self._collapsible = collapsible
        self._spelled = spelled

    def encode_prompt(self, text: str) -> Tokens:
        """Return the tokens of a prompt's text.

        Raises:
            NotRememberedError: If they are not remembered.
        """
        return _recall(self._prompts, text)

    def is_collapsible(self, text: str) -> bool:
        """Return whether a text is one token of which a run may be collapsed to one.

        Raises:
            NotRememberedError: If that is not remembered.
        """
        return _recall(self._collapsible, text)

    def spell(self, text: str) -> Ids:
        """Return ids of a text that holds a media token, with no media token among them.

        Raises:
            NotRememberedError: If they are not remembered.
        """
        return _recall(self._spelled, text)


def _weigh(text: str, tokens: Tokens) -> int:
    """Return the bytes of a text and its tokens."""
    arrays = tokens.ids.nbytes + tokens.starts.nbytes + tokens.stops.nbytes
    return 4 * len(text) + arrays + BYTES_OF_OBJECTS


def _recall(memo: Memo[str, T], text: str) -> T:
    value = memo.find(text)
    if value is None:
        raise NotRememberedError
    return value


def _remember(memo: Memo[str, T], text: str, compute: Callable[[str], T]) -> T:
    """Return what is computed of a text, remembered unless the text is long."""
    if len(text) > MAX_REMEMBERED_CHARS:
        return compute(text)
    return memo.get(text, lambda: compute(text))
