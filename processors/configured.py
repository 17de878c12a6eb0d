"""Token ids that a model's config names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TEXT_TOKENS = frozenset({
    "bos", "eos", "pad", "unk", "cls", "sep", "mask", "decoder_start", "end_of_utterance",
    "end_of_turn", "tts_text_start", "tts_text_end", "tts_text_pad", "forced_bos", "forced_eos",
})  # fmt: skip
"""Tokens that have no part in media, by their names without `_token`."""
_CONFIGURED = re.compile(r"(.+?)_token(_id|_index)")


def configured_ids(config: Any) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - a transformers config
    """Yield (name, id) of the media tokens of a config and its parts, the outermost first."""
    parts = [config]
    while parts:
        part = parts.pop(0)
        for name, value in vars(part).items():
            match = _CONFIGURED.fullmatch(name)
            if match and type(value) is int and value >= 0 and match[1] not in TEXT_TOKENS:
                yield f"{match[1]}_token", value
            elif hasattr(value, "model_type") and name != "text_config":
                parts.append(value)
