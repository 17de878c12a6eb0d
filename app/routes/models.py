"""GET /models: what is served, by whom, and where features lie."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.catalog import describe_model
from app.house import House
from app.openapi import problems
from app.respond import JsonResponse
from app.routes.deps import HouseDep, Identity
from app.versions import versions

router = APIRouter(tags=["models"])


def describe(house: House) -> dict[str, Any]:
    """Return the body of GET /models."""
    return {
        "models": [describe_model(model) for model in house.catalog.models],
        "versions": versions(),
        "instance": house.instance,
        "consumer": dict(house.consumer),
        "segments": [{"name": n, "nbytes": b} for n, b in house.store.arena.segments],
        "pools": [] if house.devices is None else [house.devices.describe()],
    }


@router.get("/models", responses=problems("unauthorized"))
async def models(house: HouseDep, who: Identity) -> JsonResponse:
    """Describe the served models, their fingerprints, and what a consumer must share."""
    del who
    return JsonResponse(describe(house))
