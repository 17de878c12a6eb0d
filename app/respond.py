"""JSON responses by orjson."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    """A JSON body; numpy arrays are taken as they are."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - whatever JSON can say
        """Return the body's bytes."""
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
