"""Replacement texts as run-length coded parts, and which of their tokens are encoder rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from processors.types import ReplacementPart


def code_runs(text: str, tokens: Iterable[str]) -> tuple[ReplacementPart, ...]:
    """Cut a replacement text into runs of media tokens and the text between them.

    Args:
        text: What a placeholder becomes, in full.
        tokens: The media tokens that may repeat.

    Returns:
        Parts whose texts, repeated and joined, are `text`.

    Example:
        "<a><p><p><p></a>", ["<p>"] -> ("<a>" once, "<p>" three times, "</a>" once).
    """
    longest_first = sorted(set(tokens), key=len, reverse=True)
    if not longest_first:
        return (ReplacementPart(text),) if text else ()
    runs = re.compile("|".join(f"(?:{re.escape(token)})+" for token in longest_first))
    parts: list[ReplacementPart] = []
    last = 0
    for run in runs.finditer(text):
        if run.start() > last:
            parts.append(ReplacementPart(text[last : run.start()]))
        token = next(t for t in longest_first if run[0].startswith(t) and not len(run[0]) % len(t))
        parts.append(ReplacementPart(token, len(run[0]) // len(token)))
        last = run.end()
    if last < len(text):
        parts.append(ReplacementPart(text[last:]))
    return tuple(parts)


def count_token(parts: Sequence[ReplacementPart], token: str) -> int:
    """Return how often a token stands in coded parts."""
    return sum(part.times for part in parts if part.text == token)


def find_row_token(
    parts: Sequence[ReplacementPart], candidates: Iterable[str]
) -> tuple[str | None, int]:
    """Return the first candidate that occurs in the parts, with its count, or (None, 0)."""
    for token in candidates:
        if count := count_token(parts, token):
            return token, count
    return None, 0
