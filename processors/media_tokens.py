"""Which tokens of a vocabulary mean media: placeholders, rows, framing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from processors.configured import TEXT_TOKENS, configured_ids
from processors.context import MediaTokens
from processors.family import FamilySpec
from processors.hf import HfObject, LoadedModel
from processors.types import Modality, PlaceholderSpec

_LOOKS_LIKE_MEDIA = re.compile(
    r"image|img|vision|video|audio|media|patch|tile|slice|row_\d+_col|frame|speech|sound",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(.+)_token")
_TOKEN_ATTRIBUTE = {
    Modality.IMAGE: "image_token",
    Modality.VIDEO: "video_token",
    Modality.AUDIO: "audio_token",
}


def find_placeholders(model: LoadedModel, family: FamilySpec) -> dict[Modality, PlaceholderSpec]:
    """Return the placeholder of each modality that the processor has one for."""
    found = {}
    for modality in model.sub_processors:
        own = getattr(model.processor, _TOKEN_ATTRIBUTE[modality], None)
        # Where it differs from the token that repeats (Qianfan-OCR).
        token = getattr(model.processor, f"{modality.value}_placeholder_token", own)
        if isinstance(token, str) and token:
            found[modality] = PlaceholderSpec(
                token, model.token_id(token), family.patterns.get(modality)
            )
    return found


def find_special_tokens(model: LoadedModel, family: FamilySpec) -> dict[str, int]:
    """Return every media token of a model by name: the config's, the processor's, lookalikes.

    Tokens that only the vocabulary knows are named by their own text.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        return {}
    ids: dict[str, int] = {}
    for name, token_id in configured_ids(model.config):
        if tokenizer.convert_ids_to_tokens(token_id) is not None:
            ids.setdefault(name, token_id)
    for name, token in _named_tokens(tokenizer, model.processor):
        if (found := model.token_id(token)) is not None:
            ids.setdefault(name, found)
    known = set(ids.values())
    for token_id, added in tokenizer.added_tokens_decoder.items():
        text = added.content
        if token_id not in known and (_LOOKS_LIKE_MEDIA.search(text) or text in family.framing):
            ids[text] = int(token_id)
    return ids


def find_media_tokens(
    model: LoadedModel, family: FamilySpec, special_tokens: Mapping[str, int]
) -> MediaTokens:
    """Return what may repeat in a replacement text, and the candidates for encoder rows."""
    if model.tokenizer is None:
        return MediaTokens((), dict.fromkeys(Modality, ()))
    texts = {
        name: str(model.tokenizer.convert_ids_to_tokens(token_id))
        for name, token_id in special_tokens.items()
    }
    rows = {}
    for modality in model.sub_processors:
        kinds = [modality.value, "vision", *(m.value for m in Modality)]
        configured = [texts.get(f"{kind}_token") for kind in kinds]
        own = getattr(model.processor, _TOKEN_ATTRIBUTE[modality], None)
        candidates = [family.row_tokens.get(modality), configured[0], own, *configured[1:]]
        rows[modality] = tuple(dict.fromkeys(c for c in candidates if isinstance(c, str)))
    return MediaTokens(tuple(dict.fromkeys(texts.values())), rows)


def _named_tokens(*owners: HfObject) -> Iterator[tuple[str, str]]:
    for owner in owners:
        names = {**vars(owner), **(getattr(owner, "special_tokens_map", None) or {})}
        for name, value in names.items():
            token = value if isinstance(value, str) else getattr(value, "content", None)
            match = _NAMED.fullmatch(name)
            if match and isinstance(token, str) and token and match[1] not in TEXT_TOKENS:
                yield name, token
