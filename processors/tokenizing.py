"""Text to token ids with a fast tokenizer, in the API process: trusted text and plain text.

Trusted text is read with the tokenizer's added tokens. Plain text is what a caller typed: it goes
through normalizer, pre-tokenizer and model alone, so that no added token can come out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

Ids = np.ndarray
"""int32 of shape (L,)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenized text: ids, and the characters each came from."""

    ids: Ids
    starts: np.ndarray
    """First character of each token, int64, never falling."""
    stops: np.ndarray
    """One past its last character."""


class TextTokenizer:
    """A fast tokenizer; threads may share it.

    Args:
        serialized: `tokenizer.json`.
        media_ids: Ids that must never come out of plain text.
    """

    def __init__(self, serialized: bytes, media_ids: Iterable[int]) -> None:
        self._tokenizer = Tokenizer.from_str(serialized.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._media_ids = frozenset(media_ids)
        self.prefix, self.suffix = self._find_added()

    def token_id(self, text: str) -> int | None:
        """Return the id of a text that is one token of the vocabulary."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a trusted text, without BOS and the like.

        Blocking: CPU time grows with the text; releases the interpreter lock.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return Tokens(np.array(encoding.ids, dtype=np.int32), offsets[:, 0], offsets[:, 1])

    def encode_plain(self, text: str) -> Ids:
        """Return the ids of what a caller typed; no media token is among them."""
        ids = list(self._plain_ids(text))
        if len(text) > 1 and not self._media_ids.isdisjoint(ids):
            # A model whose vocabulary holds the media token as an ordinary piece.
            middle = len(text) // 2
            halves = (self.encode_plain(text[:middle]), self.encode_plain(text[middle:]))
            return np.concatenate(halves)
        return np.array(ids, dtype=np.int32)

    def _plain_ids(self, text: str) -> Iterator[int]:
        tokenizer = self._tokenizer
        normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        words = (
            [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]
            if tokenizer.pre_tokenizer
            else [normalized]
        )
        for word in words:
            for token in tokenizer.model.tokenize(word):
                yield token.id

    def _find_added(self) -> tuple[Ids, Ids]:
        """Return what the tokenizer adds before and after every text."""
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        own = [n for n, added in enumerate(encoding.special_tokens_mask) if not added]
        ids = np.array(encoding.ids, dtype=np.int32)
        if not own:
            return ids, ids[:0]
        return ids[: own[0]], ids[own[-1] + 1 :]
