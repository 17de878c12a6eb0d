"""Collecting media from lists and chat parts."""

import pytest

from app.errors import TooManyItemsError
from app.items import collect
from app.schemas import PreprocessRequest, WireMedia
from processors.errors import InvalidRequestError
from processors.types import Modality


def test_null_entries_are_skipped_and_params_keep_the_place() -> None:
    """Indices count items, params name the place in the request."""
    request = PreprocessRequest(prompt="x", images=["a", None, "b"], audios=["c"])
    items = collect(request, max_items=8).items
    assert [(i.modality, i.index, i.param) for i in items] == [
        (Modality.IMAGE, 0, "images[0]"),
        (Modality.IMAGE, 1, "images[2]"),
        (Modality.AUDIO, 0, "audios[0]"),
    ]


def test_too_many_items_names_both_numbers() -> None:
    """The limit is told."""
    request = PreprocessRequest(prompt="x", images=["a", "b", "c"])
    with pytest.raises(TooManyItemsError, match="3 items; at most 2"):
        collect(request, max_items=2)


def chat(*parts: object) -> PreprocessRequest:
    return PreprocessRequest(messages=[{"role": "user", "content": list(parts)}])


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://h/x", "detail": "low"}},
            Modality.IMAGE,
        ),
        ({"type": "image_url", "image_url": "http://h/x"}, Modality.IMAGE),
        ({"type": "image", "image": "http://h/x"}, Modality.IMAGE),
        ({"type": "image", "url": "http://h/x"}, Modality.IMAGE),
        ({"type": "video_url", "video_url": {"url": "http://h/x"}}, Modality.VIDEO),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, Modality.AUDIO),
        ({"type": "image", "upload": "f", "options": {"alpha": "drop"}}, Modality.IMAGE),
    ],
)
def test_chat_parts_become_items_in_order(part: dict[str, object], modality: Modality) -> None:
    """Every spelling of a media part gives one item and one bare part for the template."""
    collected = collect(chat({"type": "text", "text": "hi"}, part), max_items=8)
    assert [i.modality for i in collected.items] == [modality]
    assert collected.chat is not None
    assert collected.chat.messages[0]["content"] == [
        {"type": "text", "text": "hi"},
        {"type": modality.value},
    ]


def test_options_beside_a_string_are_kept() -> None:
    """A part's options and uuid travel with its media."""
    part = {
        "type": "image_url",
        "image_url": "https://h/x",
        "uuid": "u",
        "options": {"alpha": "keep"},
    }
    (item,) = collect(chat(part), max_items=8).items
    assert isinstance(item.media, WireMedia)
    assert item.media.url == "https://h/x"
    assert item.options.alpha == "keep"
    assert item.uuid == "u"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image"}, "needs 'image'"),
        ({"type": "imag", "image": "x"}, "type is one of"),
        ({"type": "image", "image": "x", "colour": 1}, "has no 'colour'"),
        ({"type": "image_url", "image_url": {"uri": "x"}}, "uri"),
        ({"type": "text", "text": 5}, "needs a text"),
        (5, "object with a type"),
    ],
)
def test_broken_parts_say_what_would_be_right(part: object, words: str) -> None:
    """Messages name the part and the mend."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        collect(chat(part), max_items=8)
    assert caught.value.param.startswith("messages[0].content[0]")


def test_what_was_loaded_is_not_kept_as_text() -> None:
    """Sources are let go of; what else was said of a medium stays."""
    tensors = {"safetensors": "QUJD"}
    request = PreprocessRequest.model_validate(
        {
            "prompt": "",
            "images": ["QUJD", {"data": "QUJD", "uuid": "u", "options": {"alpha": "keep"}}],
            "audios": [{"format": "processor_output", "tensors": tensors, "hash": "h"}],
        }
    )
    items = collect(request, max_items=9).items
    for item in items:
        item.forget_source()
    assert "QUJD" not in repr(items)
    assert (items[1].uuid, items[1].options.alpha) == ("u", "keep")
    assert items[2].preprocessed is not None
    assert items[2].preprocessed.hash == "h"
