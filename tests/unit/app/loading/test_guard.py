"""The policy: schemes, ports, domains, addresses, and what leads past it."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading.errors import SourceForbiddenError
from app.loading.guard import Guard, matches_domain
from app.loading.settings import LoadingSettings
from app.loading.urls import parse_url
from processors.errors import InvalidRequestError


def guard(**settings: Any) -> Guard:
    return Guard(LoadingSettings(**settings))


def test_public_targets_pass() -> None:
    """The default policy lets names and public addresses through."""
    for url in ("http://example.com/", "https://8.8.8.8:9000/", "http://[2606:4700::1111]/"):
        guard().check_target(parse_url(url))


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("http://example.com/", {"schemes": ("https",)}),
        ("https://example.com/", {"schemes": ()}),
        ("http://example.com:8080/", {"ports": (80, 443)}),
        ("http://example.com/", {"allow_domains": ("example.org",)}),
        ("http://notexample.org/", {"allow_domains": ("*.example.org", "example.org")}),
        ("http://example.org.evil/", {"allow_domains": ("*.example.org", "example.org")}),
        ("http://a.example.org/", {"allow_domains": ("example.org",)}),
        ("http://a.example.org/", {"deny_domains": ("*.example.org",)}),
        ("http://a.example.org./", {"deny_domains": ("a.example.org",)}),
        ("http://A.EXAMPLE.ORG/", {"deny_domains": ("a.example.org",)}),
        (
            "http://example.org/",
            {"allow_domains": ("example.org",), "deny_domains": ("example.org",)},
        ),
        ("http://8.8.8.8/", {"allow_domains": ("example.org",)}),
        ("http://127.0.0.1/", {"allow_domains": ("127.0.0.1",)}),
        ("http://allowed.example@127.0.0.1/", {"allow_domains": ("allowed.example",)}),
        ("http://10.0.0.1/", {}),
        ("http://[::1]/", {}),
        ("http://[::ffff:127.0.0.1]/", {}),
        ("http://[::ffff:7f00:1]/", {}),
        ("http://\uff11\uff12\uff17\u3002\uff10\u3002\uff10\u3002\uff11/", {}),
        ("http://169.254.169.254/", {"allow_private": True}),
    ],
)
def test_targets_outside_the_policy_are_forbidden(url: str, settings: dict[str, Any]) -> None:
    """Whatever way a URL dresses up, it is judged by where it leads."""
    with pytest.raises(SourceForbiddenError):
        guard(**settings).check_target(parse_url(url))


def test_messages_name_no_host() -> None:
    """A refusal tells nothing about the source or what it resolves to."""
    with pytest.raises(SourceForbiddenError) as caught:
        guard().check_target(parse_url("http://127.0.0.1/secret"))
    assert "127" not in caught.value.message
    assert "secret" not in caught.value.message


def test_one_forbidden_address_refuses_the_name() -> None:
    """A name with a public and a private address is refused as a whole."""
    addresses = [ipaddress.ip_address("8.8.8.8"), ipaddress.ip_address("127.0.0.1")]
    with pytest.raises(SourceForbiddenError):
        guard().check_addresses(addresses)
    guard(allow_private=True).check_addresses(addresses)


def test_domains_match_whole_labels() -> None:
    """`*.x` is everything below x, and not x itself."""
    assert matches_domain("a.b.example.com", ["*.example.com"])
    assert not matches_domain("example.com", ["*.example.com"])
    assert not matches_domain("badexample.com", ["*.example.com"])
    assert matches_domain("example.com", ["other", "example.com"])


octets = st.tuples(st.just(127), *[st.integers(0, 255)] * 3)
spell = st.sampled_from([str, hex, "0{:o}".format, "{:03d}".format, "0X{:X}".format])
digits = st.sampled_from(
    ["0123456789", "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19"]
)
dots = st.sampled_from([".", "\u3002", "\uff0e", "\uff61"])


@given(octets, st.lists(spell, min_size=4, max_size=4), st.integers(1, 4), digits, dots)
def test_no_spelling_of_loopback_passes(numbers, spellings, size, alphabet, dot) -> None:
    """Octal, hexadecimal, padded, shortened and full-width forms in any mixture are refused."""
    head, rest = numbers[: size - 1], numbers[size - 1 :]
    last = int.from_bytes(bytes(rest), "big")
    texts = [write(n) for write, n in zip(spellings, [*head, last], strict=False)]
    host = dot.join(texts).translate(str.maketrans("0123456789", alphabet))
    for form in (host, f"{host}.", f"user@{host}", f"{host}:8080"):
        with pytest.raises((SourceForbiddenError, InvalidRequestError)):
            guard().check_target(parse_url(f"http://{form}/x"))
