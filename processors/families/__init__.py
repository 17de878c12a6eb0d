"""What the generic engine cannot learn from a processor, one small file per family."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from processors.family import FamilySpec

GENERIC = FamilySpec()


@cache
def _registry() -> Mapping[str, FamilySpec]:
    specs: dict[str, FamilySpec] = {}
    for module in pkgutil.iter_modules(__path__):
        spec: FamilySpec = importlib.import_module(f"{__name__}.{module.name}").SPEC
        specs.update(dict.fromkeys(spec.model_types, spec))
    return specs


def family_of(model_type: str) -> FamilySpec:
    """Return the family of a `model_type`; the generic one where no file speaks of it."""
    return _registry().get(model_type, GENERIC)
