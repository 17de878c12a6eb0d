"""Chat messages to a prompt, so that nothing a caller types can become a media token.

Before rendering, every media token in a caller's string is replaced by an unguessable run of
digits, which no template treats specially; afterwards the rendered text is cut there and the
original spelling put back as an untrusted piece. A token may also come together from the ends of
two strings: the ends that could do so are replaced as well.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from processors import hf
from processors.errors import InvalidRequestError
from processors.info import chat_template_of
from processors.types import ChatInput, ModelInfo, RenderedPrompt

_MAX_DEPTH = 32
_MAX_HIDDEN = 100_000


class ChatRenderer:
    """Renders with one model's template and media tokens."""

    def __init__(self, model: hf.LoadedModel, info: ModelInfo) -> None:
        self._model = model
        self._template = chat_template_of(model)
        self._tokens = media_spellings(model, info)
        self._media = _any_of(self._tokens)

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """See `Engine.render`."""
        if chat.chat_template is None and self._template is None:
            raise InvalidRequestError("The model has no chat template; send 'prompt'.", "messages")
        if reserved := sorted(set(chat.template_kwargs) & hf.RESERVED_CHAT_ARGUMENTS):
            raise InvalidRequestError(f"'{reserved[0]}' cannot be set.", "chat_template_kwargs")
        guard = Guard(self._tokens)
        pieces = guard.cut(self._render(chat, guard.protect))
        if guard.saw_fragments and self._count_media(pieces) > self._count_media(
            guard.cut(self._render(chat, guard.blank))
        ):
            raise InvalidRequestError("A message's text makes up a media token.", "messages")
        return RenderedPrompt(pieces, add_special_tokens=False)

    def encode(self, prompt: RenderedPrompt) -> list[int]:
        """See `Engine.encode`."""
        if self._model.tokenizer is None or not self._model.takes_text:
            raise InvalidRequestError("The model has no tokenizer; send 'input_ids'.", "prompt")
        return hf.encode_pieces(self._model.tokenizer, prompt.pieces, prompt.add_special_tokens)

    def _render(self, chat: ChatInput, change: Callable[[str], str]) -> str:
        tools = None if chat.tools is None else [_map_strings(t, change) for t in chat.tools]
        try:
            return hf.render_chat(
                self._model,
                [_map_strings(message, change) for message in chat.messages],
                tools=tools,
                template=chat.chat_template,
                add_generation_prompt=chat.add_generation_prompt,
                variables=_map_strings(dict(chat.template_kwargs), change),
            )
        except hf.TEMPLATE_ERRORS as exc:
            message = "The chat template does not take these messages."
            raise InvalidRequestError(message, "messages") from exc

    def _count_media(self, pieces: tuple[tuple[str, bool], ...]) -> int:
        """Count media tokens in runs of trusted text; an untrusted piece ends a run."""
        return sum(len(self._media.findall(text)) for text, is_trusted in pieces if is_trusted)


class Guard:
    """Hides media tokens of a caller's strings from one rendering, and finds them again."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._tokens = tokens
        self._whole = _any_of(tokens)
        self._heads = _edges(tokens, at_start=True)
        self._tails = _edges(tokens, at_start=False)
        self._bracketing = {c for token in tokens for c in (token[0], token[-1])}
        self._bracketing -= {c for c in self._bracketing if c.isalnum()}
        self._key = "".join(str(secrets.randbelow(10)) for _ in range(32))
        self._hidden: list[str] = []
        self._ends: set[int] = set()
        self.saw_fragments = False

    def protect(self, text: str) -> str:
        """Return a caller's string with media tokens, and ends that could join to one, hidden."""
        if not self._bracketing.isdisjoint(text):
            self.saw_fragments = True
        text = self._whole.sub(lambda match: self._hide(match[0]), text)
        core = text.strip()
        start = text.find(core)
        before, after = text[:start], text[start + len(core) :]
        core = self._hide_edge(core, self._tails, at_start=True)
        core = self._hide_edge(core, self._heads, at_start=False)
        return before + core + after

    def blank(self, text: str) -> str:
        """Return a caller's string without a character that could begin or end a media token."""
        return "".join("0" if c in self._bracketing else c for c in self._whole.sub("0", text))

    def cut(self, text: str) -> tuple[tuple[str, bool], ...]:
        """Cut a rendered text into pieces; what was hidden comes back untrusted.

        An end of a string that did not join to a media token is put back into the text around it,
        so that it is tokenized as if it had never been hidden.
        """
        parts = self._split(text)
        joined = "".join(part for part, _ in parts)
        media = [match.span() for match in self._whole.finditer(joined)]
        pieces: list[tuple[str, bool]] = []
        start = 0
        for part, index in parts:
            end = start + len(part)
            is_trusted = index is None or (
                index in self._ends and all(end <= m[0] or m[1] <= start for m in media)
            )
            if pieces and pieces[-1][1] and is_trusted:
                part = pieces.pop()[0] + part
            pieces.append((part, is_trusted))
            start = end
        return tuple(pieces)

    def _split(self, text: str) -> list[tuple[str, int | None]]:
        """Return (text, index of what was hidden there or None) in order."""
        parts: list[tuple[str, int | None]] = []
        last = 0
        for match in re.finditer(f"{self._key}([0-9]{{6}})", text):
            if match.start() > last:
                parts.append((text[last : match.start()], None))
            index = int(match[1])
            parts.append((self._hidden[index], index))
            last = match.end()
        if last < len(text):
            parts.append((text[last:], None))
        return parts

    def _hide(self, text: str) -> str:
        if len(self._hidden) >= _MAX_HIDDEN:
            raise InvalidRequestError("Too many media tokens in the messages' text.", "messages")
        self._hidden.append(text)
        return f"{self._key}{len(self._hidden) - 1:06d}"

    def _hide_edge(self, text: str, edges: frozenset[str], *, at_start: bool) -> str:
        for length in range(min(len(text), max(map(len, edges), default=0)), 0, -1):
            edge = text[:length] if at_start else text[-length:]
            if edge in edges:
                hidden = self._hide(edge)
                self._ends.add(len(self._hidden) - 1)
                return hidden + text[length:] if at_start else text[:-length] + hidden
        return text


def media_spellings(model: hf.LoadedModel, info: ModelInfo) -> tuple[str, ...]:
    """Return the text of every media token of a model: placeholders, rows and framing."""
    placeholders = [spec.text for spec in info.placeholders.values()]
    if model.tokenizer is None:
        return tuple(placeholders)
    named = model.tokenizer.convert_ids_to_tokens(list(info.special_tokens.values()))
    return tuple(dict.fromkeys([*placeholders, *map(str, named)]))


@lru_cache(maxsize=64)
def _any_of(tokens: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


@lru_cache(maxsize=128)
def _edges(tokens: tuple[str, ...], *, at_start: bool) -> frozenset[str]:
    """Return the proper ends of tokens that hold more than letters and digits."""
    ends = {t[:n] if at_start else t[n:] for t in tokens for n in range(1, len(t))}
    return frozenset(end for end in ends if not end.isalnum())


def _map_strings(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:  # noqa: ANN401
    """Return a JSON value with every string in it changed, keys included."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError("The messages are nested too deeply.", "messages")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(entry, change, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(entry, change, depth + 1) for entry in value]
    return value
