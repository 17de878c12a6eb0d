"""Which IP addresses a media source may lead to.

Only globally reachable unicast addresses pass. The tables are written out rather than taken from
`ipaddress.is_global`, whose answers differ between Python releases, and addresses that carry an
IPv4 address inside (mapped, NAT64) are judged by the one inside.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


NEVER = _networks(
    "0.0.0.0/8",  # this host
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved and broadcast
    "::/128",  # unspecified
    "ff00::/8",  # multicast
)
"""Refused whatever the settings say: nothing there can serve a medium."""

METADATA = _networks(
    "169.254.169.254/32",  # most clouds
    "169.254.170.0/24",  # container credentials
    "168.63.129.16/32",  # a cloud's host agent, on an address that looks public
    "100.100.100.200/32",
    "192.0.0.192/32",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
)
"""Instance metadata and credentials; allowed only where a setting lists the very range."""

PRIVATE = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",  # shared by carriers
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",  # site-local, long deprecated
)
"""Reachable from inside only; what `allow_private` opens."""

SPECIAL = _networks(
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "2001::/23",  # protocol assignments, Teredo, ORCHID
    "2001:db8::/32",
    "2002::/16",  # 6to4: any IPv4 address may hide inside
    "3fff::/20",
)
"""Documentation, benchmarks, tunnels: nothing that is meant to be fetched from."""

GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == net.version and address in net for net in networks)


def unwrap(address: Address) -> Address:
    """Return the IPv4 address that a mapped or NAT64 address stands for, else the address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Return whether an address is global unicast and neither special nor metadata."""
    address = unwrap(address)
    if _within(address, (*NEVER, *METADATA, *PRIVATE, *SPECIAL)):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None or address not in GLOBAL_IPV6:
            return False
        return (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP
    return True


def is_allowed(address: Address, allow_private: bool | Sequence[Network]) -> bool:
    """Return whether an address may be connected to.

    Args:
        address: As the resolver gave it or the URL spells it.
        allow_private: False: public addresses only; True: private, loopback and link-local ones
            too, metadata excepted; networks: what lies in them too.
    """
    if is_public(address):
        return True
    inner = unwrap(address)
    if _within(inner, NEVER) or getattr(inner, "scope_id", None) is not None:
        return False
    if isinstance(allow_private, bool):
        return allow_private and _within(inner, PRIVATE) and not _within(inner, METADATA)
    return _within(inner, allow_private)
