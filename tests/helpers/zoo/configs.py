"""Configs with a family's real vision geometry and next to no depth."""

from contextlib import suppress
from typing import Any

from transformers import AutoConfig

DEPTHS = (
    "num_hidden_layers", "depth", "encoder_layers", "decoder_layers", "num_layers", "n_layer",
)  # fmt: skip


def shrink(config: Any) -> Any:
    """Cut a config and its parts to two layers; patch, merge and image sizes stay."""
    for key in DEPTHS:
        if isinstance(value := getattr(config, key, None), int) and value > 2:
            with suppress(AttributeError, TypeError, ValueError, NotImplementedError):
                setattr(config, key, 2)
    for key in ("layer_types", "mlp_layer_types"):
        if isinstance(types := getattr(config, key, None), list):
            with suppress(AttributeError):
                setattr(config, key, types[:2])
    for name in getattr(config, "sub_configs", None) or {}:
        if hasattr(part := getattr(config, name, None), "to_dict"):
            shrink(part)
    return config


def set_ids(config: Any, tokenizer: Any, **tokens: str) -> Any:
    """Give a config the ids of its media tokens (`image_token_id="<image>"`) and text tokens.

    The ids land on the config itself and, for the omni families, on its thinker.
    """
    holders = [config, getattr(config, "thinker_config", None)]
    for key, token in tokens.items():
        for holder in holders:
            if holder is not None:
                setattr(holder, key, tokenizer.convert_tokens_to_ids(token))
    text = config.get_text_config()
    for holder in (config, text):
        for role in ("bos", "eos", "pad"):
            setattr(holder, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    if hasattr(text, "vocab_size"):
        text.vocab_size = len(tokenizer)
    return config


def small_config(model_type: str, tokenizer: Any, /, **tokens: str) -> Any:
    """Return a model type's default config, shrunk, with the tokenizer's ids."""
    return set_ids(shrink(AutoConfig.for_model(model_type)), tokenizer, **tokens)


def full_config(model_type: str, tokenizer: Any, /, **tokens: str) -> Any:
    """Return a model type's default config with the tokenizer's ids, for configs whose depth is
    bound up with their other fields."""
    return set_ids(AutoConfig.for_model(model_type), tokenizer, **tokens)
