"""Loaders on real shared memory, and resolvers with given answers."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from blockbuster import blockbuster_ctx

from app.loading.addresses import Address
from app.loading.loader import Loader
from app.loading.network import Resolver
from app.loading.settings import LoadingSettings
from app.staging import StagingArea
from transport.arena import Arena

STAGING_BYTES = 8 << 20


@dataclass
class FixedResolver:
    """Answers each look-up of a name with its next list of addresses; the last one stays."""

    answers: dict[str, list[Sequence[str]]]
    lookups: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.lookups.append(host)
        found = self.answers[host]
        return [ipaddress.ip_address(a) for a in (found.pop(0) if len(found) > 1 else found[0])]


@dataclass
class Loading:
    """A loader with its memory."""

    loader: Loader
    staging: StagingArea
    arena: Arena

    @property
    def held_bytes(self) -> int:
        return self.arena.statistics().held_bytes


@asynccontextmanager
async def run_staging(nbytes: int = STAGING_BYTES) -> AsyncIterator[tuple[StagingArea, Arena]]:
    """Run a staging area; everything must have been let go at the end."""
    with Arena(secrets.token_hex(8), [nbytes], purpose="staging") as arena:
        staging = StagingArea(arena)
        try:
            yield staging, arena
        finally:
            await staging.aclose()
        assert arena.statistics().held_bytes == 0


@asynccontextmanager
async def run_loader(
    resolver: Resolver | None = None, *, nbytes: int = STAGING_BYTES, **settings: Any
) -> AsyncIterator[Loading]:
    """Run a loader that may reach this machine unless the settings say otherwise.

    Any call of the application that would block the event loop fails the test.
    """
    settings = {"allow_private": True, **settings}
    async with (
        run_staging(nbytes) as (staging, arena),
        Loader(LoadingSettings(**settings), staging, resolver) as loader,
    ):
        with blockbuster_ctx("app"):
            yield Loading(loader, staging, arena)
        assert loader.num_fetching == 0
