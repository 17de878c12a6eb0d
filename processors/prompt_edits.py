"""What some processors' own calls write into a text prompt, done to ours as they do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from processors.types import PromptEdit, RenderedPrompt

Find = Callable[[str], Iterator[tuple[int, int, object]]]
"""Yields (start, stop, what) of every placeholder in a text."""


def edit_prompt(prompt: RenderedPrompt, edits: Sequence[PromptEdit], find: Find) -> RenderedPrompt:
    """Return a prompt with everything written into it, in order.

    Args:
        prompt: Pieces of text; placeholders stand in trusted ones.
        edits: Of the model.
        find: Finds placeholders.
    """
    for edit in edits:
        spans = list(_placeholders(prompt, find))
        if edit.needs_media and not spans:
            continue
        text = prompt.text
        if edit.unless == "starts" and text.startswith(edit.text):
            continue
        if edit.unless == "contains" and edit.text in text:
            continue
        prompt = _insert(prompt, _place(edit, spans, len(text)), edit.text)
    return prompt


def _place(edit: PromptEdit, spans: Sequence[tuple[int, int]], length: int) -> int:
    if edit.place == "end":
        return length
    if edit.place == "after_last_media":
        return spans[-1][1] if spans else 0
    place = 0
    if edit.place == "after_leading_media":
        for start, stop in spans:
            if start == place:
                place = stop
    return place


def _placeholders(prompt: RenderedPrompt, find: Find) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of every placeholder, counted from the start of the prompt."""
    starts = accumulate((len(text) for text, _ in prompt.pieces), initial=0)
    for base, (text, is_trusted) in zip(starts, prompt.pieces, strict=False):
        for start, stop, _ in find(text) if is_trusted else ():
            yield base + start, base + stop


def _insert(prompt: RenderedPrompt, place: int, text: str) -> RenderedPrompt:
    """Return a prompt with trusted text put in at a place."""
    pieces: list[tuple[str, bool]] = []
    base, is_done = 0, False
    for piece, is_trusted in prompt.pieces:
        cut = place - base
        if not is_done and cut <= len(piece):
            pieces += [(piece[:cut], is_trusted), (text, True), (piece[cut:], is_trusted)]
            is_done = True
        else:
            pieces.append((piece, is_trusted))
        base += len(piece)
    if not is_done:
        pieces.append((text, True))
    return replace(prompt, pieces=tuple(piece for piece in pieces if piece[0]))
