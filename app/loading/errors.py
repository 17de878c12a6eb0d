"""Errors of loading a medium from where the request says it is.

    MmprepError
    ├── SourceForbiddenError     source_forbidden
    ├── MediaUpstreamError       media_upstream_failed
    └── MediaFetchTimeoutError   media_fetch_timeout

Too many bytes are `MediaTooLargeError`, a source that cannot be understood `InvalidRequestError`,
both of `processors.errors`.
"""

from __future__ import annotations

from processors.errors import MmprepError


class SourceForbiddenError(MmprepError):
    """Raised when a source, or an address it leads to, is not allowed."""

    code = "source_forbidden"


class MediaUpstreamError(MmprepError):
    """Raised when a medium's server cannot be reached, refuses, or answers brokenly."""

    code = "media_upstream_failed"

    def __init__(self, message: str, param: str = "", *, retryable: bool = False) -> None:
        super().__init__(message, param)
        self.retryable = retryable


class MediaFetchTimeoutError(MmprepError):
    """Raised when a medium's server is too slow to connect, to answer or to send."""

    code = "media_fetch_timeout"
