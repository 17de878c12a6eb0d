"""What a Media string is taken for."""

import pytest

from app.loading.source import EncodedSource, FileSource, HttpSource, parse_source
from processors.errors import InvalidRequestError


@pytest.mark.parametrize("text", ["http://a/b", "HTTPS://a", "http:", "https:x"])
def test_urls_to_fetch(text: str) -> None:
    """Whatever starts like http is left to the URL reader."""
    assert parse_source(text) == HttpSource(text)


@pytest.mark.parametrize(
    ("text", "payload", "is_base64"),
    [
        ("data:image/png;base64,AAAA", "AAAA", True),
        ("DATA:image/png;BASE64,AAAA", "AAAA", True),
        ("data:;base64,AAAA", "AAAA", True),
        ("data:image/png;charset=utf-8; base64 ,AAAA", "AAAA", True),
        ("data:image/png;base64;charset=x,AAAA", "AAAA", True),
        ("data:,hello%20world", "hello%20world", False),
        ("data:text/plain,a,b", "a,b", False),
        ("data:base64,AAAA", "AAAA", False),
        (" data:image/png;base64,AAAA", "AAAA", True),
    ],
)
def test_data_uris(text: str, payload: str, is_base64: bool) -> None:
    """Media type and parameters are skipped; the payload stays where it is."""
    source = parse_source(text)
    assert isinstance(source, EncodedSource)
    assert source.text[source.start :] == payload
    assert source.is_base64 is is_base64


@pytest.mark.parametrize("text", ["AAAA", "", "/9j/4AAQ", "//uQ", "iVBORw0KGgo=", "a" * 100_000])
def test_everything_without_a_scheme_is_base64(text: str) -> None:
    """JPEG and MP3 begin with slashes in base64."""
    assert parse_source(text) == EncodedSource(text, 0, is_base64=True)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///data/a.jpg", "/data/a.jpg"),
        ("FILE://localhost/data/a%20b.jpg", "/data/a b.jpg"),
        ("file:///data/%C3%A9", "/data/\u00e9"),
        ("file:///data/../x", "/data/../x"),
    ],
)
def test_file_urls(text: str, path: str) -> None:
    """Paths are percent-decoded and not yet judged."""
    assert parse_source(text) == FileSource(path)


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64",
        "data:" + "x" * 2000 + ",AAAA",
        "file://host/a",
        "file:/a",
        "file://",
        "file:///a?b",
        "file:///a%00b",
        "file:///a%5Cb",
        "file:///%ff",
        "file:///" + "a" * 5000,
        "ftp://a/b",
        "javascript:alert(1)",
        "s3://bucket/key",
        "C:\\file.jpg",
        "/etc/passwd",
        "/data/image.jpg",
        "./image.jpg",
        "../image.jpg",
        "~/image.jpg",
    ],
)
def test_everything_else_is_told_what_would_be_right(text: str) -> None:
    """Unknown shapes are 400 and never taken for text."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_source(text)
    assert text[-8:] not in caught.value.message or text in ("data:image/png;base64", "file://")


def test_sources_do_not_show_what_they_hold() -> None:
    """Neither URLs nor bytes appear in a log line by accident."""
    for text in ("http://host/secret", "data:;base64,c2VjcmV0", "file:///secret"):
        shown = repr(parse_source(text))
        assert "secret" not in shown
        assert "c2VjcmV0" not in shown
