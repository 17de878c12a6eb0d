"""From body bytes to a validated request, and from `Accept` to a representation."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from app.errors import ItemErrors, MalformedJsonError, NotAcceptableError
from app.schemas import MEDIA_TAGS
from processors.errors import InvalidRequestError, MmprepError, UnsupportedOptionError

JSON_TYPE = "application/json"
BINARY_TYPE = "application/vnd.mmprep.safetensors"
MAX_ERRORS = 16
"""Problems of one body that are told; a hostile body could hold millions."""

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], body: bytes | memoryview) -> M:
    """Return a body as a wire model.

    Blocking: CPU time grows with the body (about a millisecond per MB); run large ones in a thread.

    Raises:
        MalformedJsonError: If the body is not JSON.
        ItemErrors: With an InvalidRequestError per field that is wrong, at most `MAX_ERRORS`.
    """
    try:
        return model.model_validate_json(body if isinstance(body, bytes) else bytes(body))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        if details[0]["type"] == "json_invalid":
            raise MalformedJsonError("The body is not valid JSON in UTF-8.") from None
        raise ItemErrors(
            [_field_error(d["loc"], d["type"], d["msg"]) for d in details[:MAX_ERRORS]]
        ) from None


def _field_error(location: tuple[int | str, ...], kind: str, message: str) -> MmprepError:
    param = ""
    for step in location:
        if step in MEDIA_TAGS and param.endswith("]"):
            continue
        param += f"[{step}]" if isinstance(step, int) else f".{step}" if param else str(step)
    if kind == "extra_forbidden":
        return InvalidRequestError("There is no such field.", param[:200])
    if kind == "literal_error" and param.split(".")[0].split("[")[0] in ("format", "transport"):
        return UnsupportedOptionError(f"{message}.", param)
    return InvalidRequestError(f"{message}.", param[:200])


def accepts(header: str | None) -> str:
    """Return the representation an Accept header asks for: `JSON_TYPE` or `BINARY_TYPE`.

    The best quality wins, JSON where they are equal; no header and `*/*` mean JSON.

    Raises:
        NotAcceptableError: If neither is acceptable.
    """
    if not header:
        return JSON_TYPE
    best, best_quality = "", 0.0
    for name in (JSON_TYPE, BINARY_TYPE):
        quality = _quality(header, name)
        if quality > best_quality:
            best, best_quality = name, quality
    if not best:
        raise NotAcceptableError(f"The answer is {JSON_TYPE} or {BINARY_TYPE}.", "Accept")
    return best


def _quality(header: str, name: str) -> float:
    """Return the quality of a media type under an Accept header, the most specific range first."""
    main, _, _ = name.partition("/")
    found: dict[str, float] = {}
    for entry in header.lower().split(","):
        kind, *params = (part.strip() for part in entry.split(";"))
        quality = 1.0
        for param in params:
            key, _, value = param.partition("=")
            if key.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        found[kind] = max(found.get(kind, 0.0), quality)
    for pattern in (name, f"{main}/*"):
        if pattern in found:
            return found[pattern]
    # `*/*` means JSON: a client that can read anything has not asked for the binary document.
    return found.get("*/*", 0.0) if name == JSON_TYPE else 0.0
