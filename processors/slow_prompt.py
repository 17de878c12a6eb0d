"""Text prompts of models whose tokenizer has no fast form: encoded in a worker, expanded as ids.

Text at either end of what a placeholder becomes may join with the prompt's own. It is moved out
into the prompt, around the placeholder, before that is encoded; what is left begins and ends with
tokens that join with nothing, and its ids come with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from processors.types import ItemPlan, RenderedPrompt, ReplacementPart
from processors.waiting import WaitingItem

Pieces = Sequence[tuple[str, bool] | tuple[str, WaitingItem | None]]
"""Text with whether it is trusted, and placeholders with their item (None: a surplus one)."""


def spread(
    pieces: Pieces, plans: Sequence[ItemPlan], is_token: Callable[[ReplacementPart], bool]
) -> tuple[tuple[tuple[str, bool], ...], list[ItemPlan]]:
    """Return a prompt's pieces with the ends of replacements around placeholders, and the plans.

    Args:
        pieces: The prompt, cut at its placeholders.
        plans: Of every item.
        is_token: Tells a part that is one token, however it is written, from text.

    Returns:
        The pieces, trusted neighbours joined; and the plans without what was moved, in order.
    """
    cores: dict[int, ItemPlan] = {}
    written: list[tuple[str, bool]] = []
    for text, what in pieces:
        if isinstance(what, bool):
            written.append((text, what))
            continue
        before = after = ""
        if what is not None:
            before, core, after = _ends(what.plan, is_token)
            cores[id(what.plan)] = core
        written.append((before + text + after, True))
    joined: list[tuple[str, bool]] = []
    for text, is_trusted in written:
        if joined and joined[-1][1] and is_trusted:
            joined[-1] = (joined[-1][0] + text, True)
        elif text:
            joined.append((text, is_trusted))
    return tuple(joined), [cores.get(id(plan), plan) for plan in plans]


def _ends(plan: ItemPlan, is_token: Callable[[ReplacementPart], bool]) -> tuple[str, ItemPlan, str]:
    """Return a replacement's first text, its plan without its ends, and its last text."""
    parts = plan.replacement or ()
    tokens = [n for n, part in enumerate(parts) if is_token(part)]
    if not tokens:
        return "", plan, ""
    first, last = tokens[0], tokens[-1] + 1
    core = replace(plan, replacement=parts[first:last])
    return _text_of(parts[:first]), core, _text_of(parts[last:])


def _text_of(parts: Sequence[ReplacementPart]) -> str:
    return "".join(part.text * part.times for part in parts)


def without_second_bos(prompt: RenderedPrompt, bos: str | None, *, adds: bool) -> RenderedPrompt:
    """Return a prompt to which nothing is added where the model's call does not, or it has BOS."""
    if not adds or (bos and prompt.text.startswith(bos)):
        return replace(prompt, add_special_tokens=False)
    return prompt
