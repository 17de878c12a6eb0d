"""The one place that talks to transformers: loading, and calls through its processor protocol.

Everything else sees a `LoadedModel` and plain tensors. Hugging Face objects carry no types, hence
the alias `HfObject`.

Source: `ProcessorMixin` (transformers 5.24): `_merge_kwargs`, `prepare_inputs_layout`,
`_process_images` / `_process_videos` / `_process_audio`.
"""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jinja2
import numpy as np
import torch
import torchvision
import transformers
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    BatchFeature,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.processing_utils import OmniModalProcessorMixin, ProcessorMixin
from transformers.utils import logging as hf_logging
from transformers.video_utils import VideoMetadata

from processors.bare_tokenizer import COMPOSERS
from processors.configured import configured_ids
from processors.errors import ModelLoadError
from processors.types import Modality, ModelSpec, ReplacementPart

HfObject: TypeAlias = Any
"""An object of transformers; it ships no types."""

HF_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RuntimeError,  # torch's own, NotImplementedError included
    ArithmeticError,
    ImportError,
    NameError,  # of a branch that a processor's code did not foresee
    StrictDataclassError,  # a keyword argument of the wrong type
)
"""What transformers and torch raise for values they cannot take; they have no common base."""

GROUP_OF: Mapping[Modality, str] = {
    Modality.IMAGE: "images_kwargs",
    Modality.VIDEO: "videos_kwargs",
    Modality.AUDIO: "audio_kwargs",
}
"""transformers' name of each modality's group of keyword arguments."""

TEMPLATE_ERRORS = (*HF_ERRORS, jinja2.TemplateError, RecursionError)
"""What rendering a chat template may raise for messages that it does not take."""

RESERVED_CHAT_ARGUMENTS = frozenset({
    "conversation", "chat_template", "tools", "add_generation_prompt", "tokenize", "return_dict",
    "return_tensors", "return_assistant_tokens_mask", "load_audio_from_video", "processor_kwargs",
    "sanitize_control_tokens", "messages", "padding", "truncation", "max_length",
    "tokenizer_kwargs",
})  # fmt: skip
"""Names of template variables that `apply_chat_template` would take for its own arguments."""

_NEVER_TENSORS = ["video_metadata", "text_replacement_offsets"]
_LOAD_ERRORS = (*HF_ERRORS, OSError, SyntaxError)


def versions() -> dict[str, str]:
    """Return the versions of the libraries here that change numbers."""
    return {
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "transformers": transformers.__version__,
    }


@dataclass(frozen=True)
class LoadedModel:
    """A model directory's processor, tokenizer and config."""

    processor: HfObject
    """What executes items; its image processor is of the spec's backend."""
    planner: HfObject
    """What plans items: the same, always of the torchvision backend (it takes meta tensors)."""
    tokenizer: HfObject | None
    config: HfObject
    takes_text: bool = True
    """False where the directory has no tokenizer: then it knows the config's media tokens alone."""

    @property
    def model_type(self) -> str:
        """The `model_type` of the config."""
        return str(getattr(self.config, "model_type", "") or "unknown")

    @property
    def architecture(self) -> str:
        """The first of the config's architectures."""
        named = getattr(self.config, "architectures", None) or [type(self.processor).__name__]
        return str(named[0])

    @cached_property
    def sub_processors(self) -> dict[Modality, HfObject]:
        """The processor's parts by the modality they take."""
        parts = {
            Modality.IMAGE: getattr(self.processor, "image_processor", None),
            Modality.VIDEO: getattr(self.processor, "video_processor", None),
            Modality.AUDIO: getattr(self.processor, "_audio_processor", None),
        }
        return {modality: part for modality, part in parts.items() if part is not None}

    def ids_of_parts(self, parts: Sequence[ReplacementPart]) -> tuple[ReplacementPart, ...]:
        """Return parts of a replacement with their ids, where the tokenizer has no fast form."""
        tokenizer = self.tokenizer
        if tokenizer is not None and not self.takes_text:
            known = tokenizer.get_vocab()
            return tuple(
                replace(part, ids=(known[part.text],)) if part.text in known else part
                for part in parts
            )
        if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is not None:
            return tuple(parts)
        return tuple(
            replace(part, ids=tuple(tokenizer(part.text, add_special_tokens=False)["input_ids"]))
            for part in parts
        )

    def token_id(self, token: str | None) -> int | None:
        """Return the vocabulary id of a string that is one token, else None."""
        if token is None or self.tokenizer is None:
            return None
        found = self.tokenizer.get_vocab().get(token)
        return None if found is None else int(found)


def load(spec: ModelSpec) -> LoadedModel:
    """Load a model directory, offline, without its code unless the spec trusts it.

    Raises:
        ModelLoadError: If anything needed is missing or broken.
    """
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelLoadError(
            f"Model '{spec.name}' asks for '{spec.device}'; there is no CUDA here."
        )
    trust = {"trust_remote_code": spec.trust_remote_code}
    try:
        with _quiet():
            processor, config = _load_parts(spec.path, trust)
            planner = processor
            if spec.image_backend == "pil" and hasattr(processor, "image_processor"):
                processor = copy.copy(planner)
                processor.image_processor = AutoImageProcessor.from_pretrained(
                    spec.path, backend="pil", **trust
                )
    except _LOAD_ERRORS as exc:
        reason = f"{type(exc).__name__}: {exc}".splitlines()[0]
        raise ModelLoadError(f"Model '{spec.name}' cannot be loaded: {reason}") from exc
    is_bare = isinstance(processor, transformers.PreTrainedTokenizerBase)
    tokenizer = processor if is_bare else getattr(processor, "tokenizer", None)
    takes_text = not isinstance(tokenizer, _MediaTokens)
    return LoadedModel(processor, planner, tokenizer, config, takes_text)


def _load_parts(path: str, trust: Mapping[str, bool]) -> tuple[HfObject, HfObject]:
    """Return a directory's processor and config."""
    values, _ = PretrainedConfig.get_config_dict(path)
    composer = COMPOSERS.get((values.get("architectures") or [""])[0])
    if composer is None:
        config = AutoConfig.from_pretrained(path, **trust)
        name = PROCESSOR_MAPPING_NAMES.get(config.model_type)
        if name is None or _has_tokenizer(path) or not dict(configured_ids(config)):
            return AutoProcessor.from_pretrained(path, **trust), config
        return _load_without_tokenizer(getattr(transformers, name), path, config), config
    config = PretrainedConfig.from_dict(values)
    config.model_type = str(values.get("model_type", ""))
    tokenizer = AutoTokenizer.from_pretrained(path, config=config, **trust)
    return composer(_make, tokenizer, values), config


class _MediaTokens(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Stands in for a tokenizer that a directory does not have; knows no text."""


def _has_tokenizer(path: str) -> bool:
    """Return whether a directory has a tokenizer's files; hub ids are not looked at."""
    folder = Path(path)
    return not folder.is_dir() or any(
        any(folder.glob(pattern))
        for pattern in ("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken", "tekken*")
    )


def _load_without_tokenizer(processor_class: HfObject, path: str, config: HfObject) -> HfObject:
    """Load a processor around the media tokens that its config names."""
    ids = dict(configured_ids(config))
    names = {name: f"<|{name}|>" for name in ids}
    vocabulary = {names[name]: token_id for name, token_id in ids.items()}
    tokenizer = _MediaTokens(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary)))),
        extra_special_tokens=names,
    )
    loader = {"_load_tokenizer_from_pretrained": classmethod(lambda *_, **__: tokenizer)}
    # Under its own name, which is part of the fingerprint and of some processors' decisions.
    own: HfObject = type(processor_class.__name__, (processor_class,), loader)
    return own.from_pretrained(path)


def _make(name: str, *args: HfObject, **kwargs: HfObject) -> HfObject:
    return getattr(transformers, name)(*args, **kwargs)


def typed_kwargs(processor: HfObject, part: HfObject, modality: Modality) -> frozenset[str]:
    """Return the names of the keyword arguments that a processor types for a modality."""
    group = GROUP_OF[modality]
    typed = processor.valid_processor_kwargs.__annotations__[group].__annotations__
    own = getattr(getattr(part, "valid_kwargs", None), "__annotations__", {})
    return frozenset(typed) | frozenset(own)


def default_values(part: HfObject) -> dict[str, Any]:
    """Return a sub-processor's effective values, plain, without names of classes and places."""
    values = part.to_dict()
    for name in (
        "processor_class",
        "_processor_class",
        "auto_map",
        "name_or_path",
        "_name_or_path",
    ):
        values.pop(name, None)
    return dict(values)


def merge_kwargs(
    processor: HfObject, modality: Modality, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge a modality's keyword arguments over the processor's own, as its call would.

    Returns:
        Keyword arguments by group (`images_kwargs`, ...), and the processor's own beside them.

    Raises one of `HF_ERRORS` where transformers refuses a value.
    """
    tokenizer = getattr(processor, "tokenizer", None)
    merged = processor._merge_kwargs(
        tokenizer_init_kwargs=tokenizer.init_kwargs if tokenizer is not None else {},
        return_tensors="pt",
        **{GROUP_OF[modality]: dict(kwargs)},
    )
    return dict(merged)


def adds_special_tokens(processor: HfObject, tokenizer: HfObject) -> bool:
    """Return whether a processor's own call adds BOS or the like to a plain text."""
    merge = getattr(processor, "_merge_kwargs", None)
    merged = merge(tokenizer_init_kwargs=tokenizer.init_kwargs) if merge is not None else {}
    adds = merged.get("text_kwargs", {}).get("add_special_tokens", True)
    return bool(adds and tokenizer("")["input_ids"])


def lay_out_images(processor: HfObject, images: Sequence[HfObject]) -> HfObject:
    """Nest images as the processor's call does before it processes them."""
    return processor.prepare_inputs_layout(images=list(images))[0]


@dataclass(frozen=True)
class Clip:
    """The frames chosen from one video, and what its processor wants to know of them."""

    frames: torch.Tensor
    """uint8 of shape (T, 3, H, W), any strides, real or meta."""
    frame_indices: tuple[int, ...]
    """Where the frames stand in the video."""
    num_frames: int
    """Frames of the video, or of the part of it that was chosen from."""
    fps: float
    duration_s: float

    def metadata(self) -> VideoMetadata:
        """Return transformers' description; a new one each time, since processors write to it."""
        size = (int(self.frames.shape[-1]), int(self.frames.shape[-2]))
        return describe_video(self.frame_indices, self.num_frames, self.fps, self.duration_s, size)


def describe_video(
    frame_indices: Sequence[int],
    num_frames: int,
    fps: float,
    duration_s: float,
    size: tuple[int | None, int | None] = (None, None),
) -> VideoMetadata:
    """Return transformers' description of a video; `size` is (width, height)."""
    return VideoMetadata(
        total_num_frames=num_frames,
        fps=fps,
        width=size[0],
        height=size[1],
        duration=duration_s,
        video_backend="pyav",
        frames_indices=list(frame_indices),
    )


Merged: TypeAlias = Mapping[str, Any]
"""What `merge_kwargs` returned."""

Processed: TypeAlias = tuple[dict[str, Any], list[str]]
"""Features by name, and one replacement text per item."""


def process_images(processor: HfObject, images: Sequence[HfObject], merged: Merged) -> Processed:
    """Process images through the protocol.

    Args:
        processor: The transformers processor.
        images: uint8 tensors (3, H, W), any strides, real or meta; or what a PIL backend takes.
        merged: Keyword arguments from `merge_kwargs`.

    Raises one of `HF_ERRORS` where transformers cannot.
    """
    features, replacements = processor._process_images(
        lay_out_images(processor, images), **merged["images_kwargs"]
    )
    return dict(features), list(replacements)


def process_videos(
    processor: HfObject,
    clips: Sequence[Clip],
    merged: Merged,
    audio: tuple[HfObject, Mapping[str, Any]] | None = None,
) -> Processed:
    """Process videos through the protocol; frames are taken as they are.

    Args:
        processor: The transformers processor.
        clips: The videos.
        merged: Keyword arguments from `merge_kwargs`.
        audio: For omni models, the waveform and the audio features of the only clip's track, whose
            tokens then stand among the video's.

    Raises one of `HF_ERRORS` where transformers cannot.
    """
    videos = [clip.frames for clip in clips]
    group = {
        **merged["videos_kwargs"],
        "do_sample_frames": False,
        "video_metadata": [clip.metadata() for clip in clips],
        "return_metadata": True,
    }
    if isinstance(processor, OmniModalProcessorMixin):
        group.pop("load_audio_from_video", None)
        features, replacements = processor._process_videos(
            videos,
            audio=None if audio is None else [audio[0]],
            processed_audio=None if audio is None else audio[1],
            video_to_audio_indices=None if audio is None else [0],
            **{
                **merged,
                "videos_kwargs": group,
                "load_audio_from_video": audio is not None,
            },
        )
    else:
        features, replacements = processor._process_videos(videos, **group)
    return dict(features), list(replacements)


def process_audio(processor: HfObject, clips: Sequence[np.ndarray], merged: Merged) -> Processed:
    """Process waveforms through the protocol.

    Args:
        processor: The transformers processor.
        clips: float32 mono of shape (S,), at the processor's rate.
        merged: Keyword arguments from `merge_kwargs`.

    Raises one of `HF_ERRORS` where transformers cannot.
    """
    group = {"sampling_rate": processor._audio_processor.sampling_rate, **merged["audio_kwargs"]}
    features, replacements = processor._process_audio(list(clips), **group)
    return dict(features), list(replacements)


def replacements_of(
    processor: HfObject,
    modality: Modality,
    inputs: Mapping[str, Any],
    count: int,
    merged: Merged,
) -> list[str] | None:
    """Return what the placeholders of items become whose sub-processor's output is given.

    Args:
        processor: The transformers processor.
        modality: Of the items.
        inputs: The sub-processor's output for all of them.
        count: How many there are.
        merged: Keyword arguments from `merge_kwargs`.

    Returns:
        One text per item; None for processors without text.

    Raises one of `HF_ERRORS` where the output given does not tell.
    """
    name = modality.value
    if getattr(processor, f"{name}_token", None) is None:
        return None
    replace = getattr(processor, f"replace_{name}_token")
    arguments: Mapping[str, Any] = merged[GROUP_OF[modality]]
    if modality is Modality.VIDEO and takes_audio_in_video(processor):
        arguments = {
            **merged,
            "load_audio_from_video": False,
            "video_to_audio_indices": [None] * count,
        }
    return [str(replace(inputs, **{f"{name}_idx": i}, **arguments)) for i in range(count)]


def with_part(processor: HfObject, modality: Modality, part: HfObject) -> HfObject:
    """Return a shallow copy of a processor with another part for a modality."""
    changed = copy.copy(processor)
    name = f"{modality.value}_processor"
    if modality is Modality.AUDIO and not hasattr(processor, name):
        name = "feature_extractor"
    setattr(changed, name, part)
    return changed


def with_text_unseen(processor: HfObject, modality: Modality) -> HfObject:
    """Return a shallow copy of a processor that writes replacement texts unseen by torch's modes.

    Some texts are written by whoever looks at pixels for their size alone (LLaVA's by way of a
    numpy array); that texts do not depend on pixels is what planning rests on.
    """
    name = f"replace_{modality.value}_token"
    write = getattr(processor, name, None)
    if write is None:
        return processor

    def unseen(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with torch._C.DisableTorchFunction():
            return write(*args, **kwargs)

    changed = copy.copy(processor)
    setattr(changed, name, unseen)
    return changed


def takes_audio_in_video(processor: HfObject) -> bool:
    """Return whether a processor can put a video's own audio among its tokens."""
    return isinstance(processor, OmniModalProcessorMixin)


def sample_frames(
    part: HfObject,
    arguments: Mapping[str, Any],
    *,
    num_frames: int,
    fps: float,
    duration_s: float,
    size: tuple[int | None, int | None],
) -> list[int]:
    """Return the frames that a video processor's own rule chooses; `size` is (height, width).

    Raises one of `HF_ERRORS` where the rule cannot choose.
    """
    metadata = VideoMetadata(
        total_num_frames=num_frames,
        fps=fps,
        width=size[1],
        height=size[0],
        duration=duration_s,
        video_backend="pyav",
    )
    return [int(index) for index in part.sample_frames(metadata=metadata, **arguments)]


def call_default(part: HfObject, name: str) -> Any:  # noqa: ANN401
    """Return the default of an argument of a sub-processor's call, or None."""
    parameter = inspect.signature(type(part).__call__).parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def unused_names(processor: HfObject) -> frozenset[str]:
    """Return the outputs that a processor drops; some classes forgot to make it a property."""
    names = getattr(processor, "unused_input_names", ())
    return frozenset(names() if callable(names) else names)


def has_image_protocol(processor: HfObject) -> bool:
    """Return whether a processor says per image what a placeholder becomes, or needs none."""
    if not isinstance(processor, ProcessorMixin):
        return False
    if getattr(processor, "image_token", None) is None:
        return True
    return type(processor).replace_image_token is not ProcessorMixin.replace_image_token


def call_whole(
    processor: HfObject, text: list[str], images: Sequence[HfObject], merged: Merged
) -> dict[str, Any]:
    """Call a processor with text and images, as its users do: with PIL's.

    Raises one of `HF_ERRORS` where it refuses.
    """
    kwargs = {k: v for k, v in merged["images_kwargs"].items() if k != "return_tensors"}
    pictures = [
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        if isinstance(image, torch.Tensor)
        else image
        for image in images
    ]
    return dict(processor(text=text, images=pictures, images_kwargs=kwargs, return_tensors="pt"))


def to_tensors(features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Turn what a sub-processor left as lists into tensors, as the processor's call does."""
    batch = BatchFeature(dict(features), tensor_type="pt", skip_tensor_conversion=_NEVER_TENSORS)
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' loading chatter; its warnings of odd configs are not the operator's."""
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)


def render_chat(
    model: LoadedModel,
    messages: list[dict[str, Any]],
    *,
    tools: list[Any] | None,
    template: str | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    """Render messages with the processor's own template, or a given one, in jinja's sandbox.

    Raises one of `TEMPLATE_ERRORS` where the template refuses them.
    """
    text = model.processor.apply_chat_template(
        messages,
        chat_template=template,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
        **variables,
    )
    return str(text)


def encode_pieces(
    tokenizer: HfObject, pieces: Sequence[tuple[str, bool]], add_special_tokens: bool
) -> list[int]:
    """Tokenize pieces of a prompt; in untrusted ones no special token is recognised."""
    ids: list[int] = []
    for text, is_trusted in pieces:
        ids += tokenizer(text, add_special_tokens=False, split_special_tokens=not is_trusted)[
            "input_ids"
        ]
    return list(tokenizer.build_inputs_with_special_tokens(ids)) if add_special_tokens else ids
