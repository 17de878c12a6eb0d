"""The embedded demo model: a Qwen2.5-VL directory with everything but weights."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def demo_model_path() -> Path:
    """Return the directory of the embedded Qwen2.5-VL demo model.

    It holds the config, the processor's config with the real vision geometry, a small byte-level
    BPE with the family's special tokens, and a chat template; there are no weights.
    `python -m processors.demo.make` writes it.
    """
    return Path(str(files(__package__).joinpath("qwen2_5_vl")))


def demo_image_path() -> Path:
    """Return a small JPEG to try the service with."""
    return Path(str(files(__package__).joinpath("media/demo.jpg")))
