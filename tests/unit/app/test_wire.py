"""Parsing bodies and Accept headers."""

import pytest

from app.errors import ItemErrors, MalformedJsonError, NotAcceptableError
from app.schemas import PreprocessRequest
from app.wire import BINARY_TYPE, JSON_TYPE, MAX_ERRORS, accepts, parse
from processors.errors import MmprepError


def errors_of(body: bytes) -> list[MmprepError]:
    with pytest.raises(ItemErrors) as caught:
        parse(PreprocessRequest, body)
    return caught.value.errors


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"prompt": "a"} x'])
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    """Broken JSON has its own code."""
    with pytest.raises(MalformedJsonError):
        parse(PreprocessRequest, body)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"prompt": 5}', "prompt", "invalid_request"),
        (b'{"prompt": "a", "foo": 1}', "foo", "invalid_request"),
        (b'{"images": [{"ur": "x"}]}', "images[0].ur", "invalid_request"),
        (b'{"images": ["a", 7]}', "images[1]", "invalid_request"),
        (b'{"images": [{"url": "x", "options": {"alpha": "red"}}]}', "images[0].options.alpha",
         "invalid_request"),
        (b'{"transport": "rdma"}', "transport", "unsupported_option"),
        (b'{"format": "vllm"}', "format", "unsupported_option"),
        (b'{"input_ids": [-1]}', "input_ids", "invalid_request"),
        (b"[]", "", "invalid_request"),
    ],
)  # fmt: skip
def test_every_field_error_names_its_place(body: bytes, param: str, code: str) -> None:
    """The client finds the field without guessing, and never sees its input again."""
    first = errors_of(body)[0]
    assert (first.param.startswith(param), first.code) == (True, code)


def test_the_number_of_errors_told_is_bounded() -> None:
    """A body of a million mistakes gets a short answer."""
    body = b'{"images": [' + b",".join([b"7"] * 1000) + b"]}"
    assert len(errors_of(body)) == MAX_ERRORS


def test_two_prompts_are_refused_with_both_names() -> None:
    """Exactly one of prompt, input_ids, messages."""
    (error,) = errors_of(b'{"prompt": "a", "input_ids": [1]}')
    assert "prompt and input_ids" in error.message


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, JSON_TYPE),
        ("*/*", JSON_TYPE),
        ("application/*", JSON_TYPE),
        (BINARY_TYPE, BINARY_TYPE),
        (f"{BINARY_TYPE}, application/json;q=0.5", BINARY_TYPE),
        (f"{BINARY_TYPE};q=0.5, */*", JSON_TYPE),
        ("text/html, */*;q=0.1", JSON_TYPE),
    ],
)
def test_accept_chooses_the_representation(header: str | None, expected: str) -> None:
    """Quality decides; JSON where nothing else is asked for."""
    assert accepts(header) == expected


@pytest.mark.parametrize("header", ["text/html", "application/json;q=0", "image/png;q=x"])
def test_an_impossible_accept_is_told(header: str) -> None:
    """406 where neither representation will do."""
    with pytest.raises(NotAcceptableError):
        accepts(header)
