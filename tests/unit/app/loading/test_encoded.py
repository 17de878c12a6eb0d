"""Base64 and percent-encoding: what is accepted, what is bounded."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading.encoded import MAX_PERCENT_CHARS, decode_into, max_decoded_bytes
from app.loading.source import EncodedSource
from processors.errors import InvalidRequestError, MediaTooLargeError


def decode(text: str, *, is_base64: bool = True, start: int = 0, max_bytes: int = 1 << 20) -> bytes:
    source = EncodedSource(text, start, is_base64=is_base64)
    view = memoryview(bytearray(max_decoded_bytes(source, max_bytes)))
    return bytes(view[: decode_into(view, source, max_bytes)])


@given(st.binary(max_size=300), st.randoms())
def test_every_usual_spelling_is_read(data: bytes, random) -> None:
    """Standard, url-safe, unpadded, wrapped and percent-encoded base64 all give the bytes."""
    text = base64.b64encode(data).decode()
    wrapped = base64.encodebytes(data).decode().replace("\n", random.choice(["\n", "\r\n", " \t"]))
    for spelling in (
        text,
        text.rstrip("="),
        base64.urlsafe_b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        wrapped,
        f" {text}\n",
        quote(text, safe=""),
        quote(text, safe="").lower() if text.isdigit() else quote(text, safe="/"),
    ):
        assert decode(spelling) == data
    assert decode(f"data:;base64,{text}", start=13) == data


@given(st.binary(max_size=300))
def test_percent_encoding_is_undone(data: bytes) -> None:
    """A data URI without base64 is percent-encoded bytes; a plus stays a plus."""
    assert decode(quote(data), is_base64=False) == data
    assert decode("a+b%2B", is_base64=False) == b"a+b+"


@pytest.mark.parametrize(
    "text",
    ["A", "AAAAA", "AA=A", "AAAA====", "A===", "===", "AAA*", "AAAA\x00", "\u00e9AAA", "AA\ud800A",
     "image.jpg", "hello world!", "AAAA%", "AAAA%41", "{}", "<svg/>"],
)  # fmt: skip
def test_what_is_not_base64_is_refused(text: str) -> None:
    """A guess would turn mistakes into decoding failures."""
    with pytest.raises(InvalidRequestError) as caught:
        decode(text)
    assert text not in caught.value.message


@given(st.text(max_size=50))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text fails in another way, encoded or not."""
    for is_base64 in (True, False):
        try:
            decode(text, is_base64=is_base64)
        except InvalidRequestError:
            continue


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_limit_is_exact(size: int, limit: int) -> None:
    """As many bytes as the limit pass, one more does not."""
    for encode in (
        base64.b64encode,
        lambda d: base64.b64encode(d).rstrip(b"="),
        base64.encodebytes,
    ):
        text = encode(bytes(size)).decode()
        if size <= limit:
            assert decode(text, max_bytes=limit) == bytes(size)
        else:
            with pytest.raises(MediaTooLargeError):
                decode(text, max_bytes=limit)


def test_the_limit_is_looked_at_before_decoding() -> None:
    """The length of the text tells enough."""
    with pytest.raises(MediaTooLargeError):
        max_decoded_bytes(EncodedSource("A" * 10_000, 0, is_base64=True), 1000)
    with pytest.raises(MediaTooLargeError):
        max_decoded_bytes(EncodedSource("A" * (MAX_PERCENT_CHARS + 1), 0, is_base64=False), 1 << 30)


def test_white_space_without_end_is_refused() -> None:
    """White space may take no more than a tenth."""
    with pytest.raises(MediaTooLargeError):
        decode("AAAA" + " " * 100_000, max_bytes=3)
