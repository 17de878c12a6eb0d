"""Settings of loading media: what may be fetched, and how patiently."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from app.loading.addresses import Network

_RESERVED_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "proxy-authorization",
        "range",
        "te",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_DOMAIN = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]+")


class LoadingSettings(BaseModel):
    """Where media may come from and what fetching them may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schemes: Annotated[tuple[Literal["http", "https"], ...], NoDecode] = ("http", "https")
    """URL schemes that may be fetched; empty turns fetching off."""
    allow_domains: Annotated[tuple[str, ...], NoDecode] = ()
    """`example.com` (that host) or `*.example.com` (all below it); empty allows all."""
    deny_domains: Annotated[tuple[str, ...], NoDecode] = ()
    """Like `allow_domains`, and stronger."""
    ports: Annotated[tuple[int, ...], NoDecode] = ()
    """Ports that may be connected to; empty allows all."""
    allow_private: Annotated[bool | tuple[Network, ...], NoDecode] = False
    """True, or networks (`10.1.0.0/16`): addresses that may be reached though not public.

    True never opens metadata services; a network that holds them does.
    """
    roots: Annotated[tuple[Path, ...], NoDecode] = ()
    """Folders below which `file://` may read; none turns it off."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Seconds for resolving and connecting."""
    read_timeout_s: float = Field(10.0, gt=0)
    """Seconds without a byte from the server."""
    total_timeout_s: float = Field(60.0, gt=0)
    """Seconds for one medium, redirects included, waiting for a free connection excluded."""
    min_bytes_per_s: int = Field(1024, ge=0)
    """Average rate below which a server is cut off; 0 turns the rule off."""
    min_rate_grace_s: float = Field(10.0, ge=0)
    """Seconds before the average rate counts."""
    max_redirects: int = Field(5, ge=0, le=20)
    retries: int = Field(1, ge=0, le=10)
    """Further attempts where connecting failed; nothing had been sent then."""
    max_connections: int = Field(64, ge=1)
    """Fetches at once."""
    max_connections_per_host: int = Field(16, ge=1)
    user_agent: str = "mmprep"
    headers: dict[str, str] = Field(default_factory=dict)
    """Further headers, sent to every server; never put credentials here."""
    ca_bundle: Path | None = None
    """PEM file of certificate authorities to trust instead of the system's."""
    proxy: SecretStr | None = None
    """HTTP proxy URL. It resolves names by itself, so addresses behind names are not checked."""
    cache_bytes: int = Field(0, ge=0)
    """Bytes of fetched media kept for reuse where `Cache-Control` allows it; 0 keeps none."""
    cache_ttl_s: float = Field(60.0, gt=0)
    """Seconds a cached medium is used at most."""

    @field_validator("schemes", "allow_domains", "deny_domains", "ports", "roots", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("allow_private", mode="before")
    @classmethod
    def _read_networks(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lower() in {"true", "1", "yes", "on"}:
            return True
        if value.lower() in {"false", "0", "no", "off", ""}:
            return False
        return tuple(ipaddress.ip_network(part.strip()) for part in value.split(","))

    @field_validator("allow_domains", "deny_domains")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        domains = tuple(domain.lower().rstrip(".") for domain in value)
        bad = [d for d in domains if not _DOMAIN.fullmatch(d)]
        if bad:
            msg = f"not a domain: {bad[0]!r}; write example.com or *.example.com (IDNs in ASCII)"
            raise ValueError(msg)
        return domains

    @field_validator("ports")
    @classmethod
    def _in_range(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not all(0 < port < 65536 for port in value):
            msg = "ports are numbers from 1 to 65535"
            raise ValueError(msg)
        return value

    @field_validator("roots")
    @classmethod
    def _are_folders(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for root in value:
            if not root.is_absolute() or not root.is_dir():
                msg = f"{root} is not an absolute path of a folder"
                raise ValueError(msg)
        return value

    @field_validator("headers")
    @classmethod
    def _are_safe(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(text)):
                msg = f"{name!r} is not a valid header"
                raise ValueError(msg)
            if name.lower() in _RESERVED_HEADERS:
                msg = f"{name} cannot be set here; these headers go to every server"
                raise ValueError(msg)
        return value

    @field_validator("user_agent")
    @classmethod
    def _is_header(cls, value: str) -> str:
        if not _HEADER_VALUE.fullmatch(value):
            msg = "must be printable ASCII"
            raise ValueError(msg)
        return value

    @field_validator("ca_bundle")
    @classmethod
    def _is_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            msg = f"{value} is not a file"
            raise ValueError(msg)
        return value
