"""Model directories with a tokenizer in place of a processor: one is made from the config.

InternVL's original repositories tile images in code of their own. Their converted form in
transformers does the same by a processor, which is composed here with the original's numbers; a
prompt carries the original's placeholder, `<image>`.

Source: `InternVLProcessor` and `GotOcr2ImageProcessor` (transformers 5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Make: TypeAlias = Callable[..., Any]
"""(name of a transformers class, arguments) -> the object."""

Composer: TypeAlias = Callable[[Make, Any, Mapping[str, Any]], Any]
"""(make, tokenizer, config) -> a processor."""

_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def _internvl(make: Make, tokenizer: Any, config: Mapping[str, Any]) -> Any:  # noqa: ANN401
    edge = int(config.get("force_image_size") or config["vision_config"]["image_size"])
    patch = int(config["vision_config"].get("patch_size", 14))
    ratio = float(config.get("downsample_ratio", 0.5))
    size = {"height": edge, "width": edge}
    image_processor = make(
        "GotOcr2ImageProcessor",
        size=size,
        crop_to_patches=bool(config.get("dynamic_image_size", True)),
        min_patches=int(config.get("min_dynamic_patch", 1)),
        max_patches=int(config.get("max_dynamic_patch", 12)),
        use_thumbnail=bool(config.get("use_thumbnail", True)),
        **_IMAGENET,
    )
    tokens = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    processor = make(
        "InternVLProcessor",
        image_processor,
        tokenizer,
        make("InternVLVideoProcessor", size=size),
        image_seq_length=int((edge // patch) ** 2 * ratio**2),
        chat_template=tokenizer.chat_template,
    )
    processor.image_placeholder_token = "<image>"  # noqa: S105 - no password
    processor.video_processor = None  # a video is shown to it as images
    return processor


COMPOSERS: Mapping[str, Composer] = {"InternVLChatModel": _internvl}
"""By the first of the config's architectures."""
