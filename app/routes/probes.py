"""GET /livez, /readyz, /health, /metrics: quick under full load, nothing but memory is read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.respond import JsonResponse
from app.routes.deps import house_of

router = APIRouter(tags=["probes"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer while the event loop turns."""
    return {"status": "live"}


@router.get("/readyz", responses={503: {"description": "Not ready, with the reason"}})
async def readyz(request: Request) -> Response:
    """Answer 200 while workers are warm and the service does not drain."""
    house = house_of(request)
    ready, status = house.readiness()
    return JsonResponse({"status": status}, 200 if ready else 503)


@router.get("/health", responses={503: {"description": "Not ready, with the reason"}})
async def health(request: Request) -> Response:
    """Answer readiness with the facts behind it: workers, queue, store."""
    house = house_of(request)
    ready, status = house.readiness()
    return JsonResponse({"status": status, **house.facts()}, 200 if ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    body, media_type = house_of(request).metrics.render()
    return Response(body, media_type=media_type)
