"""Processors that do not say per item what a placeholder becomes: through their own call, alone.

One image and one placeholder go in; what the call made of the placeholder is read from the ids.
Whether that holds among other text and other images is checked at load, and where it does not, the
model is refused: nothing is ever split by guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from processors import hf
from processors.errors import ModelLoadError

_OF_THE_PROMPT = frozenset({
    "input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels",
    "position_ids", "offset_mapping", "special_tokens_mask",
})  # fmt: skip
"""Outputs of a processor's call that describe the prompt, not an item."""

WARNING = "images go through the processor's own call, one at a time"


class WholeCall:
    """Runs one image through a processor's own call, in place of the protocol."""

    def __init__(self, placeholder: str) -> None:
        self._placeholder = placeholder

    def __call__(
        self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged
    ) -> hf.Processed:
        """Return the image's features and what its placeholder became.

        Raises one of `hf.HF_ERRORS` for more than one image, for meta tensors, and where the
        processor refuses.
        """
        if len(media) != 1 or getattr(media[0], "is_meta", False):
            raise ValueError("one image with data at a time")
        outputs = hf.call_whole(processor, [self._placeholder], media, merged)
        ids = _without_added(processor.tokenizer, _ids_of(outputs))
        text = str(processor.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        features = {name: v for name, v in outputs.items() if name not in _OF_THE_PROMPT}
        return features, [text]

    def check(self, processor: hf.HfObject, images: Sequence[torch.Tensor]) -> None:
        """Compare two images in one prompt, apart and adjacent, with what each became alone.

        Raises:
            ModelLoadError: If the call makes something else of them together.
            One of `hf.HF_ERRORS`, if it refuses them.
        """
        merged: Mapping[str, Any] = {"images_kwargs": {}}
        alone = [self(processor, [image], merged)[1][0] for image in images]
        for template in ("a {} b {}\nc", "{}{}", "{}x{}"):
            prompt = template.format(self._placeholder, self._placeholder)
            together = _ids_of(hf.call_whole(processor, [prompt], images, merged))
            expected = _ids_of(processor.tokenizer(template.format(*alone)))
            if together != expected:
                raise ModelLoadError(
                    f"{type(processor).__name__} does not say what a placeholder becomes, and what "
                    "it becomes depends on the text or the images beside it."
                )


def _ids_of(outputs: Mapping[str, Any]) -> list[int]:
    ids = torch.as_tensor(outputs["input_ids"]).flatten()
    return [int(i) for i in ids]


def _without_added(tokenizer: hf.HfObject, ids: list[int]) -> list[int]:
    """Return ids without the BOS and the like that the tokenizer adds around every text."""
    added, plain = (_ids_of(tokenizer("a", add_special_tokens=on)) for on in (True, False))
    extra = len(added) - len(plain)
    first = next(i for i in range(extra + 1) if added[i : i + len(plain)] == plain)
    return ids[first : len(ids) - (extra - first)]
