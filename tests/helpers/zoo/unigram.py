"""A Unigram tokenizer as SentencePiece makes them: words keep a mark for the space before them."""

import math
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from processors.demo.corpus import CORPUS

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
LONGEST_PIECE = 10


def build_unigram(first: Iterable[str], num_pieces: int = 1500) -> Tokenizer:
    """Build a Unigram model with byte fallback; `first` takes the ids 0, 1, 2, ...

    Its pieces are the corpus' most frequent substrings of words, scored by frequency (the trainer
    of `tokenizers` gives another result on every run). The space mark is put before the first
    word of a text only, as Llama's tokenizers do, so a prompt that is encoded in pieces shows.
    """
    words = Counter(SPACE + word for text in CORPUS for word in text.split())
    substrings: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for stop in range(start + 1, min(len(word), start + LONGEST_PIECE) + 1):
                substrings[word[start:stop]] += count
    characters = {piece for piece in substrings if len(piece) == 1}
    frequent = sorted(substrings, key=lambda piece: (-substrings[piece] * len(piece), piece))
    pieces = dict.fromkeys([*frequent[:num_pieces], *sorted(characters)])
    total = sum(substrings[piece] for piece in pieces)
    vocabulary = [(token, 0.0) for token in (*first, *BYTES)]
    vocabulary += [(piece, math.log(substrings[piece] / total)) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer
