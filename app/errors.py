"""The one table from error code to HTTP status, and the problem document made from it.

Leaves live where they are raised (`processors.errors`, `transport.errors`, `app.loading.errors`,
`app.jobs`, and here for the HTTP edge); all of them carry a `code` of this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from processors.errors import MmprepError
from transport.errors import TransportError

CodedError = MmprepError | TransportError
"""Any error that has a `code`, a `message` and a `param`."""

PROBLEM_TYPE = "application/problem+json"
DOCS_BASE = "urn:mmprep:error:"


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """What a code means on the wire."""

    status: int
    title: str
    retryable: bool = False
    retry_after_s: int | None = None


CODES: dict[str, CodeInfo] = {
    "malformed_json": CodeInfo(400, "The request body is not valid JSON"),
    "invalid_request": CodeInfo(400, "The request is not valid"),
    "placeholder_mismatch": CodeInfo(400, "Placeholders and media differ in number"),
    "unsupported_option": CodeInfo(400, "An option is unknown or cannot be had"),
    "prompt_too_long": CodeInfo(400, "The expanded prompt is too long"),
    "unauthorized": CodeInfo(401, "A valid API key is needed"),
    "source_forbidden": CodeInfo(403, "A medium's source is not allowed"),
    "not_found": CodeInfo(404, "There is no such resource"),
    "model_not_found": CodeInfo(404, "The model is not served"),
    "lease_not_found": CodeInfo(404, "The lease is unknown"),
    "feature_not_found": CodeInfo(404, "The feature is not in the store"),
    "method_not_allowed": CodeInfo(405, "The method is not allowed here"),
    "not_acceptable": CodeInfo(406, "No acceptable representation"),
    "request_timeout": CodeInfo(408, "The request body came too slowly", retryable=True),
    "uuid_conflict": CodeInfo(409, "The uuid stands for other content"),
    "lease_expired": CodeInfo(410, "The lease has expired"),
    "fingerprint_mismatch": CodeInfo(412, "The processor's fingerprint differs"),
    "body_too_large": CodeInfo(413, "The request body is too large"),
    "media_too_large": CodeInfo(413, "A medium is too large"),
    "too_many_items": CodeInfo(413, "The request holds too many items"),
    "unsupported_content_type": CodeInfo(415, "The body's content type is not supported"),
    "unsupported_media_type": CodeInfo(415, "A medium's type is not supported"),
    "range_not_satisfiable": CodeInfo(416, "The range lies outside the document"),
    "media_decode_failed": CodeInfo(422, "A medium could not be decoded"),
    "overloaded": CodeInfo(429, "The service is at its limit", retryable=True, retry_after_s=1),
    "store_full": CodeInfo(429, "The feature store is full", retryable=True, retry_after_s=1),
    "internal": CodeInfo(500, "An internal error occurred"),
    "media_upstream_failed": CodeInfo(502, "A medium's server failed"),
    "draining": CodeInfo(503, "The service is shutting down", retryable=True, retry_after_s=5),
    "worker_crashed": CodeInfo(503, "A worker process died", retryable=True, retry_after_s=1),
    "transport_unavailable": CodeInfo(
        503, "No requested transport can be had now", retryable=True, retry_after_s=1
    ),
    "media_fetch_timeout": CodeInfo(504, "A medium's server was too slow", retryable=True),
    "deadline_exceeded": CodeInfo(504, "The request's deadline passed", retryable=True),
}
"""Every code of the contract's section 7, in its order of status."""


class MalformedJsonError(MmprepError):
    """Raised when a body is not JSON."""

    code = "malformed_json"


class UnauthorizedError(MmprepError):
    """Raised when a key is needed and missing or wrong."""

    code = "unauthorized"


class NotFoundError(MmprepError):
    """Raised for a path that does not exist."""

    code = "not_found"


class ModelNotFoundError(MmprepError):
    """Raised when the model named is not served."""

    code = "model_not_found"


class MethodNotAllowedError(MmprepError):
    """Raised for a method that a path does not have."""

    code = "method_not_allowed"


class NotAcceptableError(MmprepError):
    """Raised when `Accept` excludes every representation."""

    code = "not_acceptable"


class FeatureNotFoundError(MmprepError):
    """Raised when neither bytes nor features of a hash or uuid are held."""

    code = "feature_not_found"


class UuidConflictError(MmprepError):
    """Raised when bytes come with a uuid that stands for other bytes."""

    code = "uuid_conflict"


class FingerprintMismatchError(MmprepError):
    """Raised when the caller expects another processor than the one served."""

    code = "fingerprint_mismatch"


class TooManyItemsError(MmprepError):
    """Raised when a request holds more items than the limit."""

    code = "too_many_items"


class RangeNotSatisfiableError(MmprepError):
    """Raised when a byte range lies outside its document."""

    code = "range_not_satisfiable"


class OverloadedError(MmprepError):
    """Raised when a request would exceed the bounded queue."""

    code = "overloaded"


class DrainingError(MmprepError):
    """Raised for new work while the service drains."""

    code = "draining"


class TransportUnavailableError(MmprepError):
    """Raised when every transport asked for exists but none can be had at the moment."""

    code = "transport_unavailable"


class ItemErrors(Exception):  # noqa: N818 - a group, told by its leaves
    """Several items of one request failed in the same stage; never sent as such.

    The first in request order answers for all, and all stand in the problem's `errors`.
    """

    def __init__(self, errors: list[CodedError]) -> None:
        super().__init__(errors)
        self.errors = errors


def problem(
    error: CodedError, request_id: str, others: list[CodedError] | None = None
) -> dict[str, Any]:
    """Return the problem document of an error.

    Args:
        error: The error that answers.
        request_id: The request's id, as in the response header.
        others: All errors of the request in request order, `error` included; default: just it.

    Returns:
        The members of contract section 7, ready for JSON.
    """
    info = CODES[error.code]
    message = error.message if error.code != "internal" else INTERNAL_WORDS
    retryable = getattr(error, "retryable", info.retryable)
    kind = "invalid_request_error" if info.status < 500 else "server_error"
    return {
        "type": DOCS_BASE + error.code,
        "title": info.title,
        "status": info.status,
        "detail": message,
        "code": error.code,
        "param": error.param or None,
        "retryable": retryable,
        "retry_after_ms": None if info.retry_after_s is None else info.retry_after_s * 1000,
        "request_id": request_id,
        "errors": [
            {
                "code": e.code,
                "param": e.param or None,
                "detail": e.message if e.code != "internal" else INTERNAL_WORDS,
            }
            for e in (others or [error])
        ],
        "error": {
            "message": message,
            "type": kind,
            "param": error.param or None,
            "code": error.code,
        },
    }


INTERNAL_WORDS = "An internal error occurred; it was logged with this request id."
