"""Errors of the store, the leases and the hand-over of features.

The server's half carries a stable `code` of the contract's section 7 and a `param`, as the errors
of `processors` do, so that one table maps both to a status. The client's half is what a consumer
catches.

    TransportError
    ├── StoreFullError         store_full (429): leased or pinned regions are in the way
    ├── ItemTooLargeError      media_too_large (413): would not fit into the empty store
    ├── LeaseNotFoundError     lease_not_found (404): not a lease of this instance
    ├── LeaseExpiredError      lease_expired (410): its time ran out or its regions are gone
    ├── SegmentError           transport_unavailable: shared memory cannot be had or opened
    ├── DocumentError          invalid_request: not a well-formed safetensors document
    └── ClientError
        ├── FeatureLost        the features a location names are not there any more: post again
        ├── ApiError           the service answered with a problem document
        └── ServiceUnreachableError   no answer at all
"""

from __future__ import annotations


class TransportError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: What is wrong and what would be right; safe to show to a caller.
        param: Place in the request, if one is to blame.
    """

    code = "internal"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class StoreFullError(TransportError):
    """Raised when leased, pinned or half-written regions leave no room; try again later."""

    code = "store_full"


class ItemTooLargeError(TransportError):
    """Raised when a reservation would not even fit into the empty store."""

    code = "media_too_large"


class LeaseNotFoundError(TransportError):
    """Raised for a lease id this instance never issued."""

    code = "lease_not_found"


class LeaseExpiredError(TransportError):
    """Raised when a lease has ended and cannot be renewed."""

    code = "lease_expired"


class SegmentError(TransportError):
    """Raised when a shared-memory segment cannot be made or opened."""

    code = "transport_unavailable"


class DocumentError(TransportError):
    """Raised when bytes are not a well-formed safetensors document."""

    code = "invalid_request"


class ClientError(TransportError):
    """Base of what a consumer of features catches."""


# The contract names this outcome; a suffix would give it a second name.
class FeatureLost(ClientError):  # noqa: N818
    """Raised when the features of a location are gone or were replaced; post the request again."""

    code = "feature_not_found"


class ServiceUnreachableError(ClientError):
    """Raised when the service gave no whole answer.

    Attributes:
        retryable: Whether sending again makes sense: False where it took too long.
    """

    code = "transport_unavailable"

    def __init__(self, message: str, param: str = "", retryable: bool = True) -> None:
        super().__init__(message, param)
        self.args = (message, param, retryable)
        self.retryable = retryable


class ApiError(ClientError):
    """Raised when the service answered with a problem document.

    Attributes:
        status: HTTP status.
        code: Stable code of the contract's section 7.
        retryable: Whether the same request may succeed later.
        retry_after_s: Seconds the service asked to wait, if it did.
    """

    def __init__(
        self,
        message: str,
        param: str = "",
        status: int = 0,
        code: str = "internal",
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, param)
        # All arguments stand in `args`, so that the error survives pickling.
        self.args = (message, param, status, code, retryable, retry_after_s)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
