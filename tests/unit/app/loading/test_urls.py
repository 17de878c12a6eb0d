"""Strict URLs: what is read, what is refused, and that nothing is rewritten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading.errors import SourceForbiddenError
from app.loading.urls import MAX_URL_CHARS, follow, parse_url
from processors.errors import InvalidRequestError

MALFORMED = [
    "",
    "http",
    "http:",
    "http:/",
    "http://",
    "http:///path",
    "http:host/path",
    "http:/host/path",
    "//host/path",
    "://host",
    "ht tp://host",
    " http://host",
    "http://host ",
    "http://ho st/",
    "http://host/a b",
    "http://host\\@other/",
    "http:\\\\host\\path",
    "http://host\t.example/",
    "http://host\n/",
    "http://host/\r\nX: y",
    "http://host/\x00",
    "http://host/\x7f",
    "http://host/\u2028",
    "http://host/\u200b",
    "http://\u00a0host/",
    "http://a@b@host/",
    "http://us[er@host/",
    "http://user%@host/",
    "http://host:port/",
    "http://host:0/",
    "http://host:65536/",
    "http://host:-1/",
    "http://host:+80/",
    "http://host:80:80/",
    "http://host:\u0661/",
    "http://host:8 0/",
    "http://ho%73t/",
    "http://-host/",
    "http://host-/",
    "http://a..b/",
    "http://.host/",
    "http://host../",
    "http://./",
    "http://ho$t/",
    "http://ho_st\u2100.com/",
    "http://" + "a" * 64 + ".com/",
    "http://" + "a." * 127 + "com/",
    "http://[::1",
    "http://::1/",
    "http://[::1]x/",
    "http://[::1]x:80/",
    "http://[]/",
    "http://[::g]/",
    "http://[127.0.0.1]/",
    "http://[1::2::3]/",
    "http://host/\ud800",
    'http://host/"',
    "http://host/<a>",
    "ftp://host/",
    "gopher://host/",
    "javascript:alert(1)",
]
ODD_ADDRESSES = [
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0177.0.0.1/",
    "http://0x7f.0.0.1/",
    "http://127.0.0.01/",
    "http://127.0.0.0x1/",
    "http://127.0.0.1.1/",
    "http://256.256.256.256/",
    "http://1.2.3.999999999999/",
    "http://host.1/",
    "http://host.0x7f/",
    "http://0/",
    "http://0x/",
    "http://00000000000000000000000000000177.1/",
    "http://\uff11\uff12\uff17.1/",
    "http://[fe80::1%eth0]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1%25lo]/",
    "http://[::%1]/",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_malformed_urls_are_refused(url: str) -> None:
    """Nothing is repaired: what is not a plain URL is a 400."""
    with pytest.raises(InvalidRequestError):
        parse_url(url)


@pytest.mark.parametrize("url", ODD_ADDRESSES)
def test_odd_spellings_of_addresses_are_forbidden(url: str) -> None:
    """Octal, hexadecimal, decimal and short forms, and zones, are never read."""
    with pytest.raises(SourceForbiddenError):
        parse_url(url)


def test_a_url_without_end_is_refused() -> None:
    """The length is bounded before anything is looked at."""
    with pytest.raises(InvalidRequestError, match="characters"):
        parse_url("http://host/" + "a" * MAX_URL_CHARS)


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://Example.COM", "example.com", 80, b"/"),
        ("HTTPS://example.com.:8443/x", "example.com", 8443, b"/x"),
        ("http://host:/a?b#c", "host", 80, b"/a?b"),
        ("http://host?q", "host", 80, b"/?q"),
        ("http://8.8.8.8/", "8.8.8.8", 80, b"/"),
        ("http://8.8.8.8./", "8.8.8.8", 80, b"/"),
        ("http://[2606:4700::0:1111]:81/", "2606:4700::1111", 81, b"/"),
        ("http://m\u00fcnchen.example/", "xn--mnchen-3ya.example", 80, b"/"),
        ("http://\u4f8b\u3048.jp/", "xn--r8jz45g.jp", 80, b"/"),
        ("http://\uff18.\uff18.\uff18.\uff18/", "8.8.8.8", 80, b"/"),
        ("http://8\u30028\u30028\u30028/", "8.8.8.8", 80, b"/"),
        ("http://my_bucket.host/", "my_bucket.host", 80, b"/"),
        ("http://host/\u00e9?\u00fc", "host", 80, b"/%C3%A9?%C3%BC"),
        ("http://host/#@evil/", "host", 80, b"/"),
        ("http://host/@evil", "host", 80, b"/@evil"),
    ],
)
def test_well_formed_urls_are_read(url: str, host: str, port: int, path: bytes) -> None:
    """Host and port come out normalised."""
    target = parse_url(url)
    assert (target.host, target.port, target.path) == (host, port, path)


def test_path_and_query_are_kept_byte_for_byte() -> None:
    """A signature over the URL must still hold."""
    path = "/b/../a%2f%2F//x;v=1/./%7e~?X-Sig=a%2Bb%3d&empty=&a=1&a=2&{|}^`?"
    assert parse_url(f"https://host{path}").path == path.encode()


def test_credentials_become_basic_and_are_not_shown() -> None:
    """Userinfo is sent as Authorization and appears in no text of the target."""
    target = parse_url("https://me:s%40cret@host/secret?token=1")
    assert target.authorization == "Basic bWU6c0BjcmV0"
    assert "bWU6" not in repr(target)
    assert "token" not in repr(target)
    assert "me" not in target.url
    assert target.authority == "host"


def test_the_host_header_has_a_port_only_where_it_is_not_the_default() -> None:
    """Servers compare it literally."""
    assert parse_url("https://host:443/").authority == "host"
    assert parse_url("https://host:80/").authority == "host:80"
    assert parse_url("http://[2606:4700::1]:81/").authority == "[2606:4700::1]:81"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x?y", "http://host:81/x?y"),
        ("x", "http://host:81/dir/x"),
        ("?q", "http://host:81/dir/file?q"),
        ("//other/x", "http://other/x"),
        ("https://other", "https://other/"),
        ("../up", "http://host:81/up"),
        ("/a/../b?", "http://host:81/a/../b?"),
        ("http://other/a/../b%2f?", "http://other/a/../b%2f?"),
        (" /a b ", "http://host:81/a%20b"),
    ],
)
def test_redirects_resolve_against_their_origin(location: str, url: str) -> None:
    """Relative and absolute locations lead where they say."""
    assert follow(parse_url("http://host:81/dir/file?old"), location).url == url


def test_credentials_follow_to_the_same_origin_only() -> None:
    """A redirect elsewhere, to another port or scheme, sees no credentials."""
    base = parse_url("https://me:pw@host/")
    assert follow(base, "/x").authorization == base.authorization
    for elsewhere in ("https://other/", "http://host/", "https://host:444/"):
        assert follow(base, elsewhere).authorization is None


@pytest.mark.parametrize(
    "location", ["", "file:///etc/passwd", "http://[", "a\tb", "\\\\x", "ftp://x"]
)
def test_useless_locations_are_refused(location: str) -> None:
    """Empty locations lead back; everything that is no http URL is refused."""
    base = parse_url("http://host/a")
    if not location:
        assert follow(base, location).url == base.url
        return
    with pytest.raises(InvalidRequestError):
        follow(base, location)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the parser fail in a way of its own, and what it reads is stable."""
    for url in (text, f"http://{text}", f"http://host{text}", f"http://[{text}]/"):
        try:
            target = parse_url(url)
        except (InvalidRequestError, SourceForbiddenError):
            continue
        again = parse_url(target.url)
        assert (again.host, again.port, again.path) == (target.host, target.port, target.path)


@given(st.text(max_size=40))
def test_any_location_is_followed_or_refused(text: str) -> None:
    """No Location header makes the parser fail in a way of its own."""
    base = parse_url("http://me:pw@host:81/dir/file?old")
    for location in (text, f"//{text}", f"http://{text}", f"x{text}", f"http:{text}"):
        try:
            target = follow(base, location)
        except (InvalidRequestError, SourceForbiddenError):
            continue
        if target.origin != base.origin:
            assert target.authorization != base.authorization
