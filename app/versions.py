"""Versions of what changes numbers, by distribution name."""

from __future__ import annotations

import functools
from importlib import metadata

NAMES = (
    "mmprep", "transformers", "torch", "torchvision", "tokenizers", "pillow", "av", "simplejpeg",
    "soxr", "numpy", "safetensors",
)  # fmt: skip


@functools.cache
def versions() -> dict[str, str]:
    """Return the installed versions; read from metadata, nothing is imported."""
    return {name: metadata.version(name) for name in NAMES}
