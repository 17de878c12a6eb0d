"""What the API process is told of a loaded model: `ModelInfo` with its fingerprints."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from processors import hf
from processors.context import StageContext
from processors.hashing import fingerprint
from processors.kwargs import FORBIDDEN
from processors.media_tokens import find_placeholders
from processors.stage import Stage
from processors.types import Modality, ModelInfo, ModelSpec

PIXEL_POLICY: Mapping[str, str] = {
    "orientation": "exif applied",
    "alpha": "composited on white unless an option says otherwise",
    "depth": "16 bit scaled to 8",
}
"""How decoding treats what image formats leave open; part of the fingerprint."""

_NUMERIC_PACKAGES = ("pillow", "av", "soxr", "numpy")


def build_info(
    context: StageContext,
    stages: Mapping[Modality, Stage],
    special_tokens: Mapping[str, int],
    warnings: tuple[str, ...],
    load_s: float,
) -> ModelInfo:
    """Describe a loaded model, ready to be sent to the API process."""
    model, family, spec = context.model, context.family, context.spec
    inputs = fingerprint_inputs(model, spec, stages)
    tokenizer = model.tokenizer if model.takes_text else None
    tokenizer_json = _serialise_tokenizer(tokenizer)
    if not model.takes_text:
        warnings = (*warnings, f"Model '{spec.name}': it has no tokenizer; send token ids.")
    return ModelInfo(
        name=spec.name,
        family=model.model_type,
        architecture=model.architecture,
        modalities=tuple(stages),
        placeholders=find_placeholders(model, family),
        special_tokens=special_tokens,
        features={modality: stage.feature_names for modality, stage in stages.items()},
        accepted_kwargs={modality: accepted_names(model, modality) for modality in stages},
        fingerprint=fingerprint(inputs),
        fingerprint_inputs=inputs,
        prompt_fingerprint=_prompt_fingerprint(model, tokenizer_json),
        tokenizer_json=tokenizer_json,
        adds_special_tokens=tokenizer is not None
        and hf.adds_special_tokens(model.processor, tokenizer),
        bos_token=getattr(tokenizer, "bos_token", None),
        has_chat_template=chat_template_of(model) is not None,
        model_dtype=_model_dtype(model.config),
        positions=family.positions,
        position_config=family.position_config(model.config) if family.position_config else {},
        prompt_edits=() if family.edits is None else family.edits(model.processor),
        stateful_prompt=family.prefix is not None,
        compact=tuple(modality for modality, stage in stages.items() if stage.has_compact),
        warnings=warnings,
        load_s=load_s,
    )


def accepted_names(model: hf.LoadedModel, modality: Modality) -> tuple[str, ...]:
    """Return the keyword arguments that callers may set for a modality, sorted."""
    part = model.sub_processors[modality]
    return tuple(sorted(hf.typed_kwargs(model.processor, part, modality) - FORBIDDEN))


def fingerprint_inputs(
    model: hf.LoadedModel, spec: ModelSpec, stages: Mapping[Modality, Stage]
) -> dict[str, Any]:
    """Return everything that decides features for given media and keyword arguments.

    Never the model's name, path, tokenizer or host, nor whether a fast kernel may run.
    """
    return {
        "processor": type(model.processor).__name__,
        "parts": {
            modality.value: {
                "class": type(stage.part).__name__,
                "values": plain(stage.defaults),
                "call": plain(stage.merged(stage.server_kwargs)),
            }
            for modality, stage in stages.items()
        },
        "video_fps": spec.video_fps,
        "versions": hf.versions() | _package_versions(),
        "numerics": _numerics(spec),
        "pixels": dict(PIXEL_POLICY),
    }


def plain(value: object) -> Any:  # noqa: ANN401 - JSON values
    """Return a value with everything that JSON does not know written as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    entries = getattr(value, "__dict__", None)
    return plain(entries) if entries else str(value)


def chat_template_of(model: hf.LoadedModel) -> str | None:
    """Return the template that chat messages are rendered with, or None without one."""
    for owner in (model.processor, model.tokenizer):
        template: object = getattr(owner, "chat_template", None)
        if isinstance(template, Mapping):
            template = template.get("default")
        if isinstance(template, str):
            return str(template)
    return None


def _serialise_tokenizer(tokenizer: hf.HfObject | None) -> bytes | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else str(backend.to_str()).encode()


def _prompt_fingerprint(model: hf.LoadedModel, tokenizer_json: bytes | None) -> str | None:
    if model.tokenizer is None or not model.takes_text:
        return None
    tokenizer = model.tokenizer
    vocabulary = tokenizer_json.decode() if tokenizer_json else sorted(tokenizer.get_vocab())
    return fingerprint(
        {
            "tokenizer": vocabulary,
            "special_tokens": plain(tokenizer.special_tokens_map),
            "chat_template": chat_template_of(model),
        }
    )


def _model_dtype(config: hf.HfObject) -> str | None:
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _numerics(spec: ModelSpec) -> str:
    if spec.image_backend == "pil":
        return "pil"
    return "tv-cpu-u8" if spec.device == "cpu" else "cuda"


def _package_versions() -> dict[str, str]:
    found = {}
    for name in _NUMERIC_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
