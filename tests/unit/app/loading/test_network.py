"""The order in which addresses are tried."""

import ipaddress

import pytest

from app.loading.network import alternate_families


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("1.1.1.1", "1.1.1.1"),
        ("::1 ::2 ::3 1.1.1.1 2.2.2.2", "::1 1.1.1.1 ::2 2.2.2.2 ::3"),
        ("1.1.1.1 ::1 2.2.2.2", "1.1.1.1 ::1 2.2.2.2"),
        ("1.1.1.1 2.2.2.2", "1.1.1.1 2.2.2.2"),
    ],
)
def test_families_take_turns(given: str, expected: str) -> None:
    """The system's preference stays within a family and for the first address."""
    addresses = [ipaddress.ip_address(text) for text in given.split()]
    assert [str(a) for a in alternate_families(addresses)] == expected.split()
