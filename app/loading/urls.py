"""One strict reading of a URL, so that what is checked is what is connected to.

Two parsers that disagree are the classic hole: nothing here is repaired, and no second parser sees
the text again. Path and query are kept byte for byte, since signed URLs break otherwise.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote_to_bytes, urljoin

import idna

from app.loading.addresses import Address
from app.loading.errors import SourceForbiddenError
from processors.errors import InvalidRequestError

MAX_URL_CHARS = 16_384
DEFAULT_PORTS = {"http": 80, "https": 443}

_BAD_CHARS = re.compile(r"[\x00-\x20\x7f-\xa0\\<>\"\u2000-\u200f\u2028-\u202f\u3000\ufeff]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?", re.DOTALL)
_USERINFO = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*")
_PORT = re.compile(r"[0-9]{1,5}")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_ODD_ADDRESS = (
    "A host that is an IP address must be spelled plainly, like 192.0.2.1 or [2001:db8::1]."
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where one GET goes."""

    scheme: str
    host: str
    """ASCII, lower case, without brackets or a trailing dot."""
    port: int
    path: bytes = field(repr=False)
    """Path and query exactly as given, `/` if empty; the fragment is gone."""
    authorization: str | None = field(default=None, repr=False)
    """Basic credentials from the URL's userinfo."""
    address: Address | None = None
    """The host, where it is an address."""

    @property
    def origin(self) -> tuple[str, str, int]:
        """What credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without credentials and fragment; base of relative references."""
        return f"{self.scheme}://{self.authority}{self.path.decode('ascii')}"


def parse_url(text: str) -> Target:
    """Read an absolute http or https URL.

    Raises:
        InvalidRequestError: If it is not a well-formed URL with a host.
        SourceForbiddenError: If the host is an IP address in a form that parsers read differently.
    """
    if len(text) > MAX_URL_CHARS:
        raise InvalidRequestError(f"A URL may have at most {MAX_URL_CHARS} characters.")
    if _BAD_CHARS.search(text):
        raise InvalidRequestError(
            "The URL holds a space, control character, quote, angle bracket or backslash; "
            "percent-encode it."
        )
    match = _URL.fullmatch(text)
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in DEFAULT_PORTS:
        raise InvalidRequestError("A URL must start with http:// or https:// and name a host.")
    userinfo, port, host_text = _split_authority(match[2])
    host, address = _read_host(host_text)
    path = match[3] if match[3].startswith("/") else f"/{match[3]}"
    return Target(
        scheme=scheme,
        host=host,
        port=DEFAULT_PORTS[scheme] if port is None else port,
        path=_NON_ASCII.sub(_percent_encode, path).encode("ascii"),
        authorization=_basic(userinfo),
        address=address,
    )


def follow(base: Target, location: str) -> Target:
    """Return where a redirect leads; credentials stay behind when the origin changes.

    Raises:
        InvalidRequestError: If the location cannot be understood.
        SourceForbiddenError: If its host is an IP address in an odd form.
    """
    # Many servers leave spaces in there, and every browser encodes them.
    target = parse_url(_resolve(base, location.strip(" ").replace(" ", "%20")))
    if target.authorization is None and target.origin == base.origin:
        return replace(target, authorization=base.authorization)
    return target


def _resolve(base: Target, location: str) -> str:
    if _BAD_CHARS.search(location):
        raise InvalidRequestError("The redirect's location is not a URL.")
    # What is complete stays as it is; only relative paths and queries need joining.
    if location.startswith("//"):
        return f"{base.scheme}:{location}"
    if location.startswith("/"):
        return f"{base.scheme}://{base.authority}{location}"
    if _URL.fullmatch(location):
        return location
    return urljoin(base.url, location)


def _percent_encode(match: re.Match[str]) -> str:
    try:
        return quote(match[0])
    except UnicodeEncodeError as error:
        raise InvalidRequestError("The URL holds a lone surrogate.") from error


def _split_authority(authority: str) -> tuple[str | None, int | None, str]:
    userinfo, sign, rest = authority.rpartition("@")
    if sign and not _USERINFO.fullmatch(userinfo):
        raise InvalidRequestError("The URL's user name or password must be percent-encoded.")
    host, port = rest, ""
    if rest.startswith("["):
        host, bracket, port = rest.partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise InvalidRequestError("The URL's IPv6 host must stand in brackets.")
        host, port = f"{host}]", port[1:]
    elif ":" in rest:
        host, _, port = rest.partition(":")
    if port and not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise InvalidRequestError("The URL's port must be a number from 1 to 65535.")
    return (userinfo if sign else None), (int(port) if port else None), host


def _basic(userinfo: str | None) -> str | None:
    if not userinfo:
        return None
    user, _, password = userinfo.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(pair).decode("ascii")


def _read_host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        return _read_ipv6(text[1:-1])
    host = text
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
        except idna.IDNAError as error:
            raise InvalidRequestError("The URL's host is not a valid name.") from error
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidRequestError("The URL's host is not a valid name.")
    if not _NUMBER.fullmatch(labels[-1]):
        return host, None
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError as error:
        raise SourceForbiddenError(_ODD_ADDRESS) from error
    return str(address), address


def _read_ipv6(text: str) -> tuple[str, Address]:
    if "%" in text:
        raise SourceForbiddenError("An IPv6 host with a zone is not allowed.")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError as error:
        raise InvalidRequestError("The URL's IPv6 host is not an address.") from error
    return str(address), address
