"""Errors that planning, decoding and processing raise.

Every leaf carries a stable `code` of the contract's section 7; `app.errors` maps codes to HTTP
status. `param` names the place in the request, relative to the item (`""` is the item itself); the
caller prefixes it (`images[2]`). Messages say what is wrong and what would be right, and never
repeat media bytes, sources, paths or another library's exception text.

    MmprepError
    ├── InvalidRequestError          invalid_request
    ├── UnsupportedOptionError       unsupported_option
    ├── PlaceholderMismatchError     placeholder_mismatch
    ├── PromptTooLongError           prompt_too_long
    ├── MediaTooLargeError           media_too_large
    ├── UnsupportedMediaTypeError    unsupported_media_type
    ├── MediaDecodeError             media_decode_failed
    ├── PlanMismatchError            internal: executed shapes differ from the planned ones
    └── ModelLoadError               a model directory that cannot be served (start-up only)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processors.types import ItemPlan


class MmprepError(Exception):
    """Base of all errors that have a code on the wire."""

    code = "internal"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidRequestError(MmprepError):
    """Raised when a field is well-formed but makes no sense."""

    code = "invalid_request"


class UnsupportedOptionError(MmprepError):
    """Raised when an option or keyword argument is unknown, forbidden, or not built."""

    code = "unsupported_option"


class PlaceholderMismatchError(MmprepError):
    """Raised when a prompt holds more or fewer placeholders than there are items."""

    code = "placeholder_mismatch"


class PromptTooLongError(MmprepError):
    """Raised when the expanded prompt exceeds its limit; nothing is ever truncated."""

    code = "prompt_too_long"


class MediaTooLargeError(MmprepError):
    """Raised when a medium, by header or while decoding, exceeds a limit."""

    code = "media_too_large"


class UnsupportedMediaTypeError(MmprepError):
    """Raised when bytes are recognised but not served, or are of another modality."""

    code = "unsupported_media_type"


class MediaDecodeError(MmprepError):
    """Raised when bytes are unrecognised, empty, cut or corrupt."""

    code = "media_decode_failed"


class PlanMismatchError(MmprepError):
    """Raised when executing an item gives other shapes than its plan; never the client's fault."""

    code = "internal"


class ModelLoadError(MmprepError):
    """Raised when a model directory cannot be served, with the reason; stops the start."""

    code = "internal"


class FramesMissing(Exception):  # noqa: N818 - not a failure: the item goes on under a new plan
    """Raised when a medium decodes to fewer frames or other samples than its header promised."""

    def __init__(self, plan: ItemPlan) -> None:
        super().__init__(plan)
        self.plan = plan
        """The plan of what does decode, exact, with its warning."""
