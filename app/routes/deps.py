"""What routes take from the application, and the key check."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request
from pydantic import SecretStr

from app.errors import UnauthorizedError
from app.house import House


def house_of(request: Request) -> House:
    """Return the running service's parts."""
    house: House = request.app.state.house
    return house


# Coroutines, since FastAPI runs plain functions in threads.
async def get_house(request: Request) -> House:
    """Return the running service's parts."""
    return house_of(request)


HouseDep = Annotated[House, Depends(get_house)]


def identify(authorization: str | None, keys: Sequence[SecretStr]) -> str:
    """Return who asks: a short digest of the key, empty where no keys are set.

    Raises:
        UnauthorizedError: If keys are set and none matches.
    """
    if not keys:
        return ""
    scheme, _, token = (authorization or "").partition(" ")
    given = token.strip().encode() if scheme.lower() == "bearer" else b""
    found = ""
    for key in keys:
        secret = key.get_secret_value().encode()
        # Every key is compared, so that the time tells nothing of which one was close.
        if hmac.compare_digest(secret, given):
            found = hashlib.blake2b(secret, digest_size=8).hexdigest()
    if not found:
        raise UnauthorizedError("Send Authorization: Bearer with one of this server's keys.")
    return found


def key_id_of(request: Request, house: House) -> str:
    """Check the request's key; the identity it stands for.

    Raises:
        UnauthorizedError: If keys are set and none matches.
    """
    return identify(request.headers.get("authorization"), house.settings.server.api_keys)


async def authorize(request: Request, house: HouseDep) -> str:
    """Check the request's key; the identity it stands for."""
    return key_id_of(request, house)


Identity = Annotated[str, Depends(authorize)]
