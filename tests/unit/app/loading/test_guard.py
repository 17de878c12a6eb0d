"""The policy: schemes, ports, domains, addresses, and what leads past it."""

import ipaddress
from typing import Any

import pytest

from app.loading.errors import SourceForbiddenError
from app.loading.guard import Guard, matches_domain
from app.loading.settings import LoadingSettings
from app.loading.urls import parse_url


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
