"""Addresses: what is public, what settings open, what nothing opens."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading.addresses import is_allowed, is_public, unwrap

# fmt: off
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "2606:4700::1111", "2001:4860:4860::8888", "64:ff9b::8.8.8.8",
]
NEVER = [
    "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "ff02::1", "ff0e::1", "::ffff:0.0.0.0", "::ffff:224.0.0.1", "64:ff9b::224.0.0.1",
]
METADATA = [
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192",
    "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254",
]
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "100.64.0.1", "100.127.255.255", "169.254.1.1", "::1", "fc00::1", "fd12:3456::1",
    "fe80::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1",
]
SPECIAL = [
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1",
    "2001:db8::1", "3fff::1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "64:ff9b:1::a00:1", "::127.0.0.1", "100::1", "5f00::1", "2001:4860::200:5efe:127.0.0.1",
    "4000::1", "2001:10::1",
]
# fmt: on


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_pass(text: str) -> None:
    """Global unicast is what fetching is for, NAT64 of it included."""
    assert is_public(address(text))
    assert is_allowed(address(text), allow_private=False)


@pytest.mark.parametrize("text", [*NEVER, *METADATA, *PRIVATE, *SPECIAL])
def test_everything_else_is_refused_by_default(text: str) -> None:
    """No form of a non-public address passes without a setting."""
    assert not is_allowed(address(text), allow_private=False)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_can_be_opened(text: str) -> None:
    """`allow_private` opens loopback, private, shared and link-local addresses."""
    assert is_allowed(address(text), allow_private=True)


@pytest.mark.parametrize("text", [*NEVER, *METADATA, *SPECIAL])
def test_opening_private_addresses_opens_nothing_else(text: str) -> None:
    """Metadata, multicast and the like stay closed."""
    assert not is_allowed(address(text), allow_private=True)


@pytest.mark.parametrize("text", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_network_opens_its_own_addresses_only(text: str) -> None:
    """Listing a network opens what lies in it, mapped or not."""
    networks = (ipaddress.ip_network("10.1.0.0/16"),)
    assert is_allowed(address(text), networks)
    assert not is_allowed(address("10.2.0.1"), networks)
    assert not is_allowed(address("127.0.0.1"), networks)


def test_a_network_can_open_metadata_but_never_multicast() -> None:
    """What an operator lists explicitly is meant, but nothing can be fetched from a group."""
    everything = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    assert is_allowed(address("169.254.169.254"), everything)
    assert not is_allowed(address("224.0.0.1"), everything)
    assert not is_allowed(address("::"), everything)


def test_a_zone_is_never_allowed() -> None:
    """An address with a zone names an interface of this machine."""
    assert not is_allowed(address("fe80::1%eth0"), allow_private=True)
    assert not is_public(address("2606:4700::1%1"))


@given(st.integers(0, 2**32 - 1))
def test_no_wrapping_makes_an_ipv4_address_more_public(number: int) -> None:
    """Mapped and NAT64 forms are judged exactly as the address inside."""
    inner = ipaddress.IPv4Address(number)
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        wrapped = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | number)
        assert unwrap(wrapped) == inner
        for allow in (False, True):
            assert is_allowed(wrapped, allow) == is_allowed(inner, allow)


@given(st.ip_addresses())
def test_what_passes_is_global_by_the_standard_library_too(
    found: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Our tables are at least as strict as `ipaddress`."""
    if is_public(found):
        inner = unwrap(found)
        assert inner.is_global
        assert not any((inner.is_private, inner.is_multicast, inner.is_reserved))
