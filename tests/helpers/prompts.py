"""Small tokenizers of several kinds, and models and items that are made of nothing but a prompt."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from processors.prompt import ExpandedPrompt
from processors.types import (
    ItemPlacement,
    ItemPlan,
    MediaInfo,
    Modality,
    ModelInfo,
    PlaceholderSpec,
    RenderedPrompt,
    ReplacementPart,
)

MEDIA = ("<image>", "<row>", "<break>", "<start>", "<end>", "<video>", "<audio>", "<frame>")
"""Added tokens that every tokenizer here has: placeholders, a row token, framing."""
CORPUS = [
    "What is in this picture? Describe it, please.\n\n\nAnd the video:\n\n 00:01 then <1.5 s>",
    "the quick brown fox  jumps over\tthe lazy dog\n\nuser: image video audio row start end <> |",
    "Bilder größer als üblich, 图像 视频 é ñ ☃ 🙂",
] * 4


def _add_media(tokenizer: Tokenizer, **flags: bool) -> Tokenizer:
    tokens = [AddedToken(t, special=True, normalized=False, **flags) for t in ("<s>", *MEDIA)]
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def _byte_level(**flags: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _add_media(tokenizer, **flags)


def _byte_level_with_bos() -> Tokenizer:
    tokenizer = _byte_level()
    bos = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=bos),
    ])  # fmt: skip
    return tokenizer


def _unigram(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _add_media(tokenizer)


def _llama() -> Tokenizer:
    """Return a SentencePiece-like BPE that puts a space before every stretch of text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _add_media(tokenizer)


def _pieces() -> Tokenizer:
    """Return a Unigram model whose media tokens are ordinary pieces of its vocabulary."""
    letters = sorted(set("".join(CORPUS)) | set("".join(MEDIA)))
    vocab = [("<unk>", 0.0), ("▁", -2.0), *((c, -6.0) for c in letters if c != " ")]
    vocab += [(token, -1.0) for token in ("<s>", *MEDIA)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return tokenizer


BUILDERS = {
    "byte_level": _byte_level,
    "with_bos": _byte_level_with_bos,
    "stripping": lambda: _byte_level(lstrip=True, rstrip=True),
    "single_word": lambda: _byte_level(single_word=True),
    "unigram_first": lambda: _unigram("first"),
    "unigram_always": lambda: _unigram("always"),
    "llama": _llama,
    "pieces": _pieces,
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    """Return a tokenizer; callers must not change it."""
    return BUILDERS[kind]()


def model(
    kind: str | None = "byte_level",
    placeholders: Mapping[Modality, PlaceholderSpec] | None = None,
    **changes: object,
) -> ModelInfo:
    """Return a model with a tokenizer of a kind, or without one."""
    ids = {t: number for number, t in enumerate(("<s>", *MEDIA), start=3)}
    serialized = None
    if kind is not None:
        serialized = tokenizer(kind).to_str().encode()
        ids = {t: tokenizer(kind).token_to_id(t) for t in ids}
    if placeholders is None:
        texts = {Modality.IMAGE: "<image>", Modality.VIDEO: "<video>", Modality.AUDIO: "<audio>"}
        placeholders = {m: PlaceholderSpec(text, ids[text]) for m, text in texts.items()}
    fields = {
        "name": "m", "family": "f", "architecture": "A", "modalities": tuple(placeholders),
        "placeholders": placeholders, "special_tokens": {t: ids[t] for t in MEDIA},
        "features": {}, "accepted_kwargs": {}, "fingerprint": "00" * 32, "fingerprint_inputs": {},
        "prompt_fingerprint": None, "tokenizer_json": serialized, "bos_token": "<s>",
        "adds_special_tokens": True,
    }  # fmt: skip
    return ModelInfo(**(fields | changes))


def plan(
    modality: Modality,
    parts: Sequence[tuple[str, int]],
    row: str | None,
    row_token_id: int | None,
    num_tokens: int | None = None,
) -> ItemPlan:
    """Return a plan that replaces a placeholder by parts, of which one token is a row."""
    if num_tokens is None:
        num_tokens = sum(text.count(row) * times for text, times in parts if row)
    return ItemPlan(
        modality=modality,
        source=MediaInfo(modality, "x/y", 1),
        replacement=tuple(ReplacementPart(text, times) for text, times in parts),
        num_tokens=num_tokens,
        row_token_id=row_token_id,
        tensors=(),
    )


def trusted(text: str, *, add_special_tokens: bool = False) -> RenderedPrompt:
    """Return a prompt of trusted text."""
    return RenderedPrompt(((text, True),), add_special_tokens)


def whole_text(plan: ItemPlan) -> str:
    """Return all of what a placeholder becomes."""
    return "".join(part.text * part.times for part in plan.replacement or ())


def assert_as_whole(kind: str, expanded: ExpandedPrompt, pieces: Sequence[str | ItemPlan]) -> None:
    """Compare with tokenizing the whole expanded text, and finding each item by its characters."""
    plain = Tokenizer.from_str(tokenizer(kind).to_str())
    plain.post_processor = None
    texts = [whole_text(p) if isinstance(p, ItemPlan) else p for p in pieces]
    encoding = plain.encode("".join(texts), add_special_tokens=False)
    assert expanded.input_ids.dtype == np.int32
    assert expanded.input_ids.tolist() == encoding.ids
    placements = iter(expanded.placements)
    start = 0
    for piece, text in zip(pieces, texts, strict=True):
        stop = start + len(text)
        if isinstance(piece, ItemPlan):
            held = [n for n, (a, b) in enumerate(encoding.offsets) if a < stop and b > start]
            rows = [n for n in held if encoding.ids[n] == piece.row_token_id]
            placement = next(placements)
            assert covered(placement) == rows
            assert placement.span is not None
            assert placement.span == (held[0], held[-1] + 1)
            assert placement.num_tokens == len(rows) == piece.num_tokens
            assert_maximal(placement)
        start = stop


def covered(placement: ItemPlacement) -> list[int]:
    """Return every position inside a placement's runs."""
    return [n for start, stop in placement.offsets for n in range(start, stop)]


def assert_maximal(placement: ItemPlacement) -> None:
    """Check that runs ascend, hold something and do not touch."""
    assert all(start < stop for start, stop in placement.offsets)
    assert all(a[1] < b[0] for a, b in pairwise(placement.offsets))
