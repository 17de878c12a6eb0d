"""W3C trace context: parsed, checked and passed on."""

from __future__ import annotations

import re
import secrets

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def continue_trace(header: str | None) -> str | None:
    """Return the traceparent of this hop: the caller's trace, a span id of our own.

    None where the caller sent none, or an invalid one, which the specification says to ignore.
    """
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return None
    return f"00-{found[1]}-{secrets.token_hex(8)}-{found[3]}"
