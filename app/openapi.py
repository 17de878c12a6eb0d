"""What the OpenAPI document says beyond FastAPI's own: problems, bodies, examples."""

from __future__ import annotations

from typing import Any

from app.errors import CODES, PROBLEM_TYPE
from app.schemas import PreprocessRequest
from app.wire import BINARY_TYPE, JSON_TYPE

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable", "request_id", "errors"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": list(CODES)},
        "param": {"type": ["string", "null"]},
        "retryable": {"type": "boolean"},
        "retry_after_ms": {"type": ["integer", "null"]},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "code": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "detail": {"type": "string"},
                },
            },
        },
        "error": {"type": "object"},
    },
}

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT = {"type": "integer"}
_RANGE = {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}
_OBJECT = {"type": "object"}
ITEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "modality": {"type": "string", "enum": ["image", "video", "audio"]},
        "index": _COUNT,
        "status": {
            "type": "string",
            "enum": ["computed", "cached", "known", "planned", "pending", "passthrough"],
        },
        "token_id": {"type": ["integer", "null"]},
        "offsets": {"type": "array", "items": _RANGE},
        "span": {**_RANGE, "type": ["array", "null"]},
        "num_tokens": _COUNT,
        "hash": _TEXT_OR_NULL,
        "content_digest": _TEXT_OR_NULL,
        "exact": {"type": "boolean"},
        "tensors": {"type": "object", "additionalProperties": _OBJECT},
        "location": {"type": ["object", "null"]},
        "source": _OBJECT,
        "caller_hash": {
            **_TEXT,
            "description": "Of preprocessed entries alone: the hash that the caller gave.",
        },
    },
}
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "request_id": _TEXT,
        "model": _TEXT,
        "instance": _TEXT,
        "fingerprint": _TEXT,
        "prompt_fingerprint": _TEXT_OR_NULL,
        "input_ids": {"type": ["array", "null"], "items": _COUNT},
        "items": {"type": "array", "items": ITEM_SCHEMA},
        "lease": {"type": ["object", "null"]},
        "warnings": {"type": "array", "items": _OBJECT},
        "timings_ms": {"type": "object", "additionalProperties": {"type": "number"}},
        "position_ids": {"type": ["object", "null"]},
        "mm_token_type_ids": {"type": ["object", "null"]},
        "position_delta": {"type": ["number", "null"]},
        "prompt": _TEXT,
    },
}

Responses = dict[int | str, dict[str, Any]]


def problems(*codes: str) -> Responses:
    """Return the `responses` of a route that can fail with these codes."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, "internal"):
        by_status.setdefault(CODES[code].status, []).append(code)
    return {
        status: {
            "description": ", ".join(names),
            "content": {PROBLEM_TYPE: {"schema": PROBLEM_SCHEMA}},
        }
        for status, names in sorted(by_status.items())
    }


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions where OpenAPI looks for them: inside itself."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any, depth: int) -> Any:  # noqa: ANN401 - JSON
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).rsplit("/", 1)[-1]
            if name in definitions:
                # A list of frames holds media again; deeper than that nothing is described.
                found = resolve(definitions[name], depth + 1) if depth < 4 else {}
                return found | {k: v for k, v in node.items() if k != "$ref"}
            return {k: resolve(v, depth) for k, v in node.items()}
        return [resolve(v, depth) for v in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema, 0)
    return resolved


def preprocess_body() -> dict[str, Any]:
    """Return the `openapi_extra` of POST /preprocess."""
    schema = _inlined(PreprocessRequest.model_json_schema())
    return {
        "requestBody": {
            "required": True,
            "content": {
                JSON_TYPE: {"schema": schema},
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["request"],
                        "properties": {"request": schema},
                        "additionalProperties": {"type": "string", "format": "binary"},
                    }
                },
            },
        }
    }


def preprocess_answers() -> Responses:
    """Return the `responses` of POST /preprocess."""
    return {
        200: {
            "description": "Expanded ids, items, and features or where they are",
            "content": {
                JSON_TYPE: {"schema": ANSWER_SCHEMA},
                BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **problems(*(code for code in CODES if code not in ("lease_not_found", "lease_expired"))),
    }
