"""What the zoo says of a family, and the registry of them."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from processors.types import Modality
from tests.helpers.zoo.media import SAMPLE_RATE_HZ, video_metadata


@dataclass(frozen=True)
class Sample:
    """A prompt with placeholders and its media, in placeholder order per modality."""

    text: str
    images: Sequence[Image.Image] = ()
    videos: Sequence[np.ndarray] = ()
    audios: Sequence[np.ndarray] = ()


@dataclass(frozen=True)
class Family:
    """One family: how to build it and how Hugging Face wants to be called."""

    name: str
    architecture: str
    build: Callable[[], tuple[Any, Any]]
    """Returns (processor, config)."""
    prompts: dict[Modality, str]
    """What stands in a prompt for one item of each modality, framing tokens included."""
    written: str = ""
    """The placeholder of an image that Hugging Face's call writes before the prompt by itself."""
    alone: tuple[Modality, ...] = ()
    """Modalities that the joint Hugging Face call takes only without the others."""
    nested_images: bool = False
    """Whether images go in as one list per prompt."""
    listed_text: bool = False
    """Whether the prompt goes in as a list."""
    has_text: bool = True
    max_items: dict[Modality, int] = field(default_factory=dict)
    """Items of a modality that one prompt can hold, where there is a bound."""
    sample_rate_hz: int = SAMPLE_RATE_HZ
    fixed_call: dict[str, Any] = field(default_factory=dict)
    """Further arguments that every call needs."""
    video_call: dict[str, Any] = field(default_factory=dict)
    """Further arguments that a call with videos needs."""
    joint_call: bool = True
    """False where the processor cannot be called with text and media together."""
    requires: tuple[str, ...] = ()
    """Packages beyond the server's own that the processor needs."""

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities that the family takes."""
        return tuple(self.prompts)

    @property
    def missing(self) -> tuple[str, ...]:
        """The required packages that are not installed."""
        return tuple(package for package in self.requires if find_spec(package) is None)

    def call(self, sample: Sample) -> dict[str, Any]:
        """Return the keyword arguments of the joint Hugging Face call for a sample."""
        kwargs: dict[str, Any] = {"return_tensors": "pt", **self.fixed_call}
        if self.has_text:
            kwargs["text"] = [sample.text] if self.listed_text else sample.text
        if sample.images:
            kwargs["images"] = [list(sample.images)] if self.nested_images else list(sample.images)
        if sample.videos:
            kwargs |= self.video_call
            kwargs["videos"] = list(sample.videos)
            kwargs["do_sample_frames"] = False
            kwargs["video_metadata"] = [
                video_metadata(v.shape[0], v.shape[2], v.shape[1]) for v in sample.videos
            ]
        if sample.audios:
            kwargs["audio"] = list(sample.audios)
        return kwargs

    def run(self, processor: Any, sample: Sample) -> Any:
        """Make the joint Hugging Face call, without transformers' own deprecation warnings."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "__array_", DeprecationWarning)
            return processor(**self.call(sample))

    def save(self, directory: Path) -> None:
        """Build the family and write its config, processor and tokenizer into a directory."""
        processor, config = self.build()
        config.architectures = [self.architecture]
        config.save_pretrained(directory)
        processor.save_pretrained(directory)


FAMILIES: dict[str, Family] = {}
"""Every family of the zoo by name; filled by the modules of this package."""

Builder = Callable[[], tuple[Any, Any]]


def family(
    architecture: str,
    *,
    image: str | None = None,
    video: str | None = None,
    audio: str | None = None,
    name: str | None = None,
    **facts: Any,
) -> Callable[[Builder], Builder]:
    """Register a builder under its own name; `image`, `video` and `audio` are its prompts."""

    def register(build: Builder) -> Builder:
        given = {Modality.IMAGE: image, Modality.VIDEO: video, Modality.AUDIO: audio}
        prompts = {modality: text for modality, text in given.items() if text is not None}
        key = name or build.__name__
        FAMILIES[key] = Family(key, architecture, build, prompts, **facts)
        return build

    return register
