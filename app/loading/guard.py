"""The policy on where media may be fetched from: schemes, ports, domains, addresses.

Pure: no name is resolved and nothing is opened here. `Guard.check_target` judges what a URL says,
before anything is resolved; `Guard.check_addresses` what its name resolves to, before anything is
connected. Both are asked again for every hop of a redirect.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.loading.addresses import Address, is_allowed
from app.loading.errors import SourceForbiddenError
from app.loading.settings import LoadingSettings
from app.loading.urls import Target

_ADDRESS_REFUSED = (
    "The source's address is not a public one; the operator can allow it "
    "(MMPREP_LOADING__ALLOW_PRIVATE)."
)


class Guard:
    """Judges targets and addresses by the settings."""

    def __init__(self, settings: LoadingSettings) -> None:
        self._schemes = frozenset(settings.schemes)
        self._ports = frozenset(settings.ports)
        self._allow = settings.allow_domains
        self._deny = settings.deny_domains
        self._allow_private = settings.allow_private

    def check_target(self, target: Target) -> None:
        """Pass a target whose scheme, port, domain and literal address are allowed.

        Raises:
            SourceForbiddenError: Otherwise.
        """
        if target.scheme not in self._schemes:
            raise SourceForbiddenError(f"Sources with {target.scheme}:// are not allowed here.")
        if self._ports and target.port not in self._ports:
            raise SourceForbiddenError("The source's port is not allowed here.")
        if matches_domain(target.host, self._deny) or (
            self._allow and not matches_domain(target.host, self._allow)
        ):
            raise SourceForbiddenError("The source's host is not allowed here.")
        if target.address is not None:
            self.check_addresses((target.address,))

    def check_addresses(self, addresses: Iterable[Address]) -> None:
        """Pass addresses all of which may be connected to.

        One forbidden address among public ones refuses them all: a name that answers with both is
        either an attack or a mistake.

        Raises:
            SourceForbiddenError: Otherwise.
        """
        if not all(is_allowed(address, self._allow_private) for address in addresses):
            raise SourceForbiddenError(_ADDRESS_REFUSED)


def matches_domain(host: str, patterns: Iterable[str]) -> bool:
    """Return whether a host is one of the domains.

    `example.com` stands for that host alone, `*.example.com` for everything below it.
    """
    return any(
        host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
        for pattern in patterns
    )
