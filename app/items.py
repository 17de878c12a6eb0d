"""The media of a request, in placeholder order, and the chat messages they stood in.

Everything here is pure: a validated request goes in, `RequestItem`s and a `ChatInput` come out.
Chat parts follow OpenAI's and transformers' spellings; whatever a part holds beyond its media is an
error, so that a typing mistake is never silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.errors import TooManyItemsError
from app.schemas import Media, PreprocessRequest, WireMedia, WirePreprocessed
from processors.errors import InvalidRequestError
from processors.types import ChatInput, MediaOptions, Modality

LISTS = (("images", Modality.IMAGE), ("videos", Modality.VIDEO), ("audios", Modality.AUDIO))
_PART_KEYS = {
    "image_url": ("image_url", Modality.IMAGE),
    "image": ("image", Modality.IMAGE),
    "input_image": ("image_url", Modality.IMAGE),
    "video_url": ("video_url", Modality.VIDEO),
    "video": ("video", Modality.VIDEO),
    "audio_url": ("audio_url", Modality.AUDIO),
    "audio": ("audio", Modality.AUDIO),
    "input_audio": ("input_audio", Modality.AUDIO),
}
VIDEO_MARK = "video:"
"""What the source of an image starts with that stands for a video's frames."""
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_SOURCE_KEYS = frozenset({"url", "data", "upload", "hash", "frames"})
_PART_EXTRAS = frozenset({"uuid", "options"})
_IGNORED = {
    "image_url": frozenset({"detail"}),
    "input_image": frozenset({"detail"}),
    "input_audio": frozenset({"format"}),
}
"""What OpenAI's clients send along and no processor reads."""
NO_OPTIONS = MediaOptions()
_Medium = str | WireMedia | WirePreprocessed
_media: TypeAdapter[Any] = TypeAdapter(Media)


@dataclass(slots=True)
class RequestItem:
    """One medium as requested."""

    modality: Modality
    index: int
    """Place within its modality, `null` entries not counted."""
    param: str
    """Its place in the request, for messages: `images[2]`, `messages[0].content[1]`."""
    media: str | WireMedia | WirePreprocessed
    shows_video: bool = False
    """Whether the medium of an image is a video, shown as its frames."""

    def forget_source(self) -> None:
        """Let go of the text of a medium that was loaded: base64 is larger than the medium."""
        media = self.media
        if isinstance(media, str):
            self.media = ""
        elif isinstance(media, WireMedia):
            self.media = media.model_copy(update=dict.fromkeys(("url", "data", "frames")))
        else:
            tensors = media.tensors.model_copy(update={"safetensors": ""})
            self.media = media.model_copy(update={"tensors": tensors})

    @property
    def options(self) -> MediaOptions:
        """The medium's options, none where it is a bare string."""
        given = self.media.options if isinstance(self.media, WireMedia) else None
        return MediaOptions(**given.model_dump()) if given is not None else NO_OPTIONS

    @property
    def preprocessed(self) -> WirePreprocessed | None:
        """What the caller gives in place of a medium, if it does."""
        return self.media if isinstance(self.media, WirePreprocessed) else None

    @property
    def uuid(self) -> str | None:
        """The caller's alias for the content, if it gave one."""
        return self.media.uuid if isinstance(self.media, WireMedia) else None


@dataclass(frozen=True, slots=True)
class Collected:
    """What `collect` finds."""

    items: tuple[RequestItem, ...]
    chat: ChatInput | None

    @property
    def preprocessed(self) -> tuple[RequestItem, ...]:
        """The entries that are preprocessed, at most one of each modality."""
        return tuple(item for item in self.items if item.preprocessed is not None)

    def count(self, modality: Modality) -> int:
        """Return how many items of a modality there are."""
        return sum(item.modality is modality for item in self.items)


def collect(request: PreprocessRequest, *, max_items: int) -> Collected:
    """Return a request's media in placeholder order per modality, and its chat if it is one.

    Raises:
        InvalidRequestError: If a chat part cannot be understood, or a preprocessed entry is not
            its modality's only one.
        TooManyItemsError: If there are more items than the limit.
    """
    if request.messages is not None:
        collected = _collect_chat(request)
        collected = replace(collected, items=tuple(map(_find_video, collected.items)))
    else:
        items = [
            RequestItem(modality, index, f"{name}[{place}]", media)
            for name, modality in LISTS
            for index, (place, media) in enumerate(
                (p, m) for p, m in enumerate(getattr(request, name) or ()) if m is not None
            )
        ]
        collected = Collected(tuple(map(_find_video, items)), None)
    check_count(len(collected.items), max_items)
    for item in collected.preprocessed:
        _check_preprocessed(item, collected)
    return collected


def _find_video(item: RequestItem) -> RequestItem:
    """Return an item with the mark of a video shown as images taken off its source."""
    if item.modality is not Modality.IMAGE:
        return item
    media = item.media
    if isinstance(media, str) and media.startswith(VIDEO_MARK):
        return replace(item, media=media[len(VIDEO_MARK) :], shows_video=True)
    if isinstance(media, WireMedia):
        for name in ("url", "data"):
            source = getattr(media, name)
            if source is not None and source.startswith(VIDEO_MARK):
                bare = media.model_copy(update={name: source[len(VIDEO_MARK) :]})
                return replace(item, media=bare, shows_video=True)
    return item


def check_count(num_items: int, max_items: int) -> None:
    """Refuse more items than the limit.

    Raises:
        TooManyItemsError: With both numbers.
    """
    if num_items > max_items:
        raise TooManyItemsError(
            f"The request holds {num_items} items; at most {max_items} are served."
        )


def _check_preprocessed(item: RequestItem, collected: Collected) -> None:
    """Refuse a preprocessed entry beside another one of its modality, or in the wrong list."""
    entry, modality = item.preprocessed, item.modality
    if collected.count(modality) > 1:
        raise InvalidRequestError(
            f"A preprocessed entry is the only {modality.value} of its request.", item.param
        )
    if entry is not None and entry.modality not in (None, modality.value):
        raise InvalidRequestError(
            f"This is the place of {modality.value}s.", f"{item.param}.modality"
        )


def _collect_chat(request: PreprocessRequest) -> Collected:
    items: list[RequestItem] = []
    counts = dict.fromkeys(Modality, 0)
    messages = []
    for number, message in enumerate(request.messages or ()):
        param = f"messages[{number}]"
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError("A message needs a role that is a string.", f"{param}.role")
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for place, part in enumerate(content):
                reduced, media = _read_part(part, f"{param}.content[{place}]")
                parts += reduced
                for modality, source in media:
                    at = f"{param}.content[{place}]"
                    items.append(RequestItem(modality, counts[modality], at, source))
                    counts[modality] += 1
            message = {**message, "content": parts}
        elif content is not None and not isinstance(content, str):
            raise InvalidRequestError(
                "A message's content is a string or a list of parts.", f"{param}.content"
            )
        messages.append(message)
    chat = ChatInput(
        tuple(messages),
        add_generation_prompt=request.add_generation_prompt,
        chat_template=request.chat_template,
        template_kwargs=request.chat_template_kwargs or {},
        tools=None if request.tools is None else tuple(request.tools),
    )
    return Collected(tuple(items), chat)


def _read_part(
    part: object, param: str
) -> tuple[list[dict[str, Any]], list[tuple[Modality, _Medium]]]:
    """Return the parts a template sees and the media, if any, of one content part."""
    if isinstance(part, str):
        return [{"type": "text", "text": part}], []
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise InvalidRequestError("A content part is an object with a type.", param)
    if kind in _TEXT_TYPES:
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError("A text part needs a text that is a string.", f"{param}.text")
        return [{"type": "text", "text": text}], []
    if kind not in _PART_KEYS:
        raise InvalidRequestError(
            f"A part's type is one of text, {', '.join(_PART_KEYS)}.", f"{param}.type"
        )
    key, modality = _PART_KEYS[kind]
    media = _read_media(part, kind, key, param)
    return [{"type": modality.value}], [(modality, media)]


def _read_media(part: Mapping[str, Any], kind: str, key: str, param: str) -> _Medium:
    unknown = set(part) - _PART_EXTRAS - _SOURCE_KEYS - {"type", key}
    if unknown:
        raise InvalidRequestError(f"A {kind} part has no {min(unknown)!r}.", param)
    value = part.get(key)
    if isinstance(value, Mapping):
        fields = {k: v for k, v in value.items() if k not in _IGNORED.get(kind, ())}
    elif isinstance(value, list):
        fields = {"frames": value}
    elif isinstance(value, str):
        fields = {}
    else:
        fields = {k: part[k] for k in _SOURCE_KEYS if k in part}
        if not fields and "uuid" not in part:
            raise InvalidRequestError(f"A {kind} part needs {key!r} with its media.", param)
    extras = {k: part[k] for k in _PART_EXTRAS if part.get(k) is not None}
    if isinstance(value, str):
        if not extras:
            return value
        fields = {"url" if "://" in value[:16] or value.startswith("data:") else "data": value}
    try:
        media: _Medium = _media.validate_python({**fields, **extras})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(p) for p in first["loc"] if p != "object")
        raise InvalidRequestError(f"{where or key}: {first['msg']}.", f"{param}.{key}") from error
    return media
