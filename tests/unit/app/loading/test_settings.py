"""Settings of loading: spelled as the environment spells them, checked at start."""

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.loading.settings import LoadingSettings


def test_lists_are_separated_by_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment holds plain text, not JSON."""

    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="MMPREP_", env_nested_delimiter="__")
        loading: LoadingSettings = LoadingSettings()

    for name, value in {
        "SCHEMES": "https",
        "ALLOW_DOMAINS": "Example.com, *.example.org.",
        "PORTS": "443,8443",
        "ALLOW_PRIVATE": "10.0.0.0/8, fd00::/8",
        "ROOTS": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"MMPREP_LOADING__{name}", value)
    loading = Settings().loading
    assert loading.schemes == ("https",)
    assert loading.allow_domains == ("example.com", "*.example.org")
    assert loading.ports == (443, 8443)
    assert loading.allow_private == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("fd00::/8"),
    )
    assert loading.roots == (tmp_path,)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("False", False), ("off", False), ("", False)]
)
def test_private_addresses_are_opened_by_a_word(text: str, value: bool) -> None:
    """True and false are words as everywhere."""
    assert LoadingSettings(allow_private=text).allow_private is value


@pytest.mark.parametrize(
    "wrong",
    [
        {"schemes": "ftp"},
        {"allow_domains": "exa mple.com"},
        {"allow_domains": "*"},
        {"deny_domains": "http://example.com"},
        {"ports": "0"},
        {"ports": "80,http"},
        {"allow_private": "10.0.0.1/8"},
        {"allow_private": "everything"},
        {"roots": "relative"},
        {"roots": "/no/such/folder"},
        {"headers": {"Authorization": "x"}},
        {"headers": {"X Y": "x"}},
        {"headers": {"X": "a\r\nb"}},
        {"user_agent": "a\nb"},
        {"ca_bundle": "/no/such/file"},
        {"connect_timeout_s": 0},
        {"max_redirects": -1},
        {"no_such_setting": 1},
    ],
)
def test_what_cannot_work_stops_the_start(wrong: dict[str, Any]) -> None:
    """Every mistake is found when the settings are read."""
    with pytest.raises(ValidationError):
        LoadingSettings(**wrong)


def test_a_proxys_password_is_not_shown() -> None:
    """Settings are printed at start."""
    settings = LoadingSettings(proxy="http://me:secret@proxy:3128")
    assert "secret" not in repr(settings)
    assert "secret" not in str(settings.model_dump(mode="json"))
