"""DELETE /leases/{id}, POST /leases/release, POST /leases/renew: served while draining too."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.body import BodyLimits, find_body_kind, read_body
from app.front import WholeRequestRoute
from app.house import House
from app.openapi import problems
from app.respond import JsonResponse
from app.routes.deps import HouseDep, Identity, house_of, key_id_of
from app.schemas import LeaseBatch
from app.wire import parse

router = APIRouter(prefix="/leases", tags=["leases"])
batches = APIRouter(prefix="/leases", tags=["leases"], route_class=WholeRequestRoute)
MAX_BATCH_BYTES = 1 << 20
_BATCH = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": LeaseBatch.model_json_schema()}},
    }
}
_BATCH_PROBLEMS = problems(
    "malformed_json", "invalid_request", "unauthorized", "request_timeout", "body_too_large",
    "unsupported_content_type",
)  # fmt: skip


async def _read_batch(request: Request, house: House) -> LeaseBatch:
    find_body_kind(request.headers)
    limits = BodyLimits(MAX_BATCH_BYTES, house.settings.server.body_timeout_s)
    return parse(LeaseBatch, await read_body(request.headers, request.stream(), limits))


@router.delete(
    "/{lease_id}",
    status_code=204,
    responses=problems("unauthorized", "lease_not_found", "invalid_request"),
)
async def delete_lease(
    lease_id: str,
    house: HouseDep,
    key_id: Identity,
    reader: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
) -> Response:
    """Release a lease, for one reader or at once; repeating it changes nothing."""
    del key_id
    house.leasing.table.release(lease_id, reader)
    return Response(status_code=204)


@batches.post("/release", responses=_BATCH_PROBLEMS, openapi_extra=_BATCH)
async def release(request: Request) -> Response:
    """Release several leases; a status for each id."""
    house = house_of(request)
    key_id_of(request, house)
    batch = await _read_batch(request, house)
    return JsonResponse({"leases": house.leasing.table.release_many(batch.ids, batch.reader)})


@batches.post("/renew", responses=_BATCH_PROBLEMS, openapi_extra=_BATCH)
async def renew(request: Request) -> Response:
    """Renew several leases; a status for each id."""
    house = house_of(request)
    key_id_of(request, house)
    batch = await _read_batch(request, house)
    return JsonResponse({"leases": house.leasing.table.renew_many(batch.ids, batch.ttl_s)})
