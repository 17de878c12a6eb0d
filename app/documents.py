"""What an item's own document says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def item_metadata(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return a document's `__metadata__`: the tensors' description, so that it reads alone."""
    return {"item": orjson.dumps({"tensors": tensors}).decode()}
