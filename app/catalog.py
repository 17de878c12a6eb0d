"""The models served: what a worker told of each, and the encoder of its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.errors import ModelNotFoundError
from processors.prompt import PromptEncoder
from processors.types import ModelInfo, ModelSpec


class ServedModel:
    """One served model and the encoder of its prompts, which threads share."""

    def __init__(self, spec: ModelSpec, info: ModelInfo) -> None:
        self.spec = spec
        self.info = info
        self.encoder = PromptEncoder(info)


class Catalog:
    """Served models by name and alias; the first is the default."""

    def __init__(self, specs: Sequence[ModelSpec], infos: Sequence[ModelInfo]) -> None:
        by_name = {info.name: info for info in infos}
        self.models = tuple(ServedModel(spec, by_name[spec.name]) for spec in specs)
        self._by_name = {
            name: model for model in self.models for name in (model.spec.name, *model.spec.aliases)
        }

    def find(self, name: str | None) -> ServedModel:
        """Return a model by name or alias, the first one for None.

        Raises:
            ModelNotFoundError: If no model has that name.
        """
        if name is None:
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            served = ", ".join(model.spec.name for model in self.models)
            raise ModelNotFoundError(f"This model is not served; served are: {served}.", "model")
        return model


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Return a model's entry in GET /models."""
    info = model.info
    return {
        "name": info.name,
        "aliases": list(model.spec.aliases),
        "family": info.family,
        "architecture": info.architecture,
        "modalities": [m.value for m in info.modalities],
        "placeholders": {m.value: p.text for m, p in info.placeholders.items()},
        "special_tokens": dict(info.special_tokens),
        "features": {m.value: list(names) for m, names in info.features.items()},
        "compact": [m.value for m in info.compact],
        "positions": info.positions,
        "limits": dict(info.limits),
        "accepted_kwargs": {m.value: list(names) for m, names in info.accepted_kwargs.items()},
        "fingerprint": info.fingerprint,
        "fingerprint_inputs": dict(info.fingerprint_inputs),
        "prompt_fingerprint": info.prompt_fingerprint,
        "warnings": list(info.warnings),
    }
