"""Small byte-level BPE tokenizers that carry a family's real special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from processors.demo.corpus import CORPUS

WORD_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Contractions, words, single digits, punctuation and white space, as GPT-like tokenizers split."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens that a family's tokenizer has beyond plain text."""

    first: tuple[str, ...] = ()
    """Special tokens at ids 0, 1, 2, ..., before the text vocabulary (Gemma, Mistral, Llama 2)."""
    last: tuple[str, ...] = ()
    """Special tokens after the text vocabulary, in this order (Qwen, Llama 3)."""
    plain: tuple[str, ...] = ()
    """Added tokens that are not special (Qwen's tool calls)."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Special tokens that the processor asks the tokenizer for by name (`image_token`)."""
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None
    adds_bos: bool = False
    """Whether encoding a plain text puts `bos` before it."""

    def role_arguments(self) -> dict[str, str]:
        """Return the tokens with a role, by the name transformers gives the role."""
        roles = {
            "bos_token": self.bos,
            "eos_token": self.eos,
            "pad_token": self.pad,
            "unk_token": self.unk,
        }
        return {name: token for name, token in roles.items() if token is not None}

    def appended(self) -> list[str]:
        """Return every special token that has no place among the first, each once."""
        tokens = (*self.last, *self.role_arguments().values(), *self.named.values())
        return [token for token in dict.fromkeys(tokens) if token not in self.first]


def train_byte_level_bpe(
    first: Iterable[str] = (), *, vocab_size: int = 2000, nfc: bool = False
) -> Tokenizer:
    """Train a byte-level BPE on the demo corpus.

    Args:
        first: Tokens that take the ids 0, 1, 2, ...
        vocab_size: Entries of the vocabulary, `first` and the 256 bytes included.
        nfc: Whether text is brought to Unicode form NFC first, as Qwen's tokenizers do.

    Returns:
        The tokenizer; the same one for the same arguments.
    """
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(first),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wrap_tokenizer(
    tokenizer: Tokenizer, specials: SpecialTokens, **kwargs: str | bool
) -> PreTrainedTokenizerFast:
    """Give a trained tokenizer its special tokens and wrap it for transformers.

    Args:
        tokenizer: A trained tokenizer whose first ids are `specials.first`; it is changed.
        specials: The family's tokens.
        kwargs: Further arguments of `PreTrainedTokenizerFast` (`padding_side`, ...).

    Returns:
        The tokenizer that `ProcessorMixin` takes and saves.
    """
    special = [*specials.first, *specials.appended()]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in specials.plain])
    if specials.adds_bos and specials.bos is not None:
        bos_id = tokenizer.token_to_id(specials.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{specials.bos} $A",
            pair=f"{specials.bos} $A {specials.bos} $B",
            special_tokens=[(specials.bos, bos_id)],
        )
    arguments: dict[str, Any] = {
        "tokenizer_object": tokenizer,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        **specials.role_arguments(),
        **kwargs,
    }
    if specials.named:
        arguments["extra_special_tokens"] = dict(specials.named)
    wrapped = PreTrainedTokenizerFast(**arguments)
    if specials.last:
        wrapped.add_special_tokens(
            {"extra_special_tokens": list(specials.last)}, replace_extra_special_tokens=False
        )
    return wrapped


def build_tokenizer(
    specials: SpecialTokens, *, vocab_size: int = 2000, nfc: bool = False, **kwargs: str | bool
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the demo corpus and give it a family's special tokens.

    Args:
        specials: The family's tokens.
        vocab_size: Entries of the text vocabulary, `specials.first` included.
        nfc: Whether text is brought to Unicode form NFC first.
        kwargs: Further arguments of `PreTrainedTokenizerFast`.

    Returns:
        A tokenizer of a few hundred kilobytes when saved; the same one for the same arguments.
    """
    trained = train_byte_level_bpe(specials.first, vocab_size=vocab_size, nfc=nfc)
    return wrap_tokenizer(trained, specials, **kwargs)
