"""GET and HEAD /features/{hash}: one item's document from the store, never recomputed."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request, Response

from app.errors import FeatureNotFoundError, RangeNotSatisfiableError
from app.house import House
from app.openapi import Responses, problems
from app.respond import JsonResponse
from app.routes.deps import HouseDep, Identity
from app.schemas import EncodingName
from app.store import Stored
from app.streaming import StreamedResponse
from transport.errors import LeaseNotFoundError

router = APIRouter(tags=["features"])
MEDIA_TYPE = "application/vnd.safetensors"
Dtype = Literal["float32", "bfloat16", "float16"]
MAX_WAIT_MS = 60_000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_ANSWERS: Responses = {
    200: {"description": "The item's safetensors document", "content": {MEDIA_TYPE: {}}},
    202: {"description": "The features are still being made"},
    206: {"description": "A range of the document", "content": {MEDIA_TYPE: {}}},
    304: {"description": "Not modified"},
    **problems(
        "invalid_request", "unauthorized", "lease_not_found", "feature_not_found", "lease_expired",
        "range_not_satisfiable", "media_too_large", "store_full",
    ),
}  # fmt: skip


@router.head(
    "/features/{item_hash}",
    responses=_ANSWERS,
    response_class=Response,
    operation_id="head_features",
)
@router.get(
    "/features/{item_hash}",
    responses=_ANSWERS,
    response_class=Response,
    operation_id="get_features",
)
async def features(
    request: Request,
    house: HouseDep,
    key_id: Identity,
    item_hash: str,
    dtype: Dtype = "float32",
    encoding: EncodingName = "plain",
    wait_ms: Annotated[int, Query(ge=0, le=MAX_WAIT_MS)] = 0,
    lease: Annotated[str | None, Query(max_length=128)] = None,
) -> Response:
    """Return an item's document; 202 while it is made, 404 once it is gone."""
    del key_id
    _check_lease(house, item_hash, lease)
    key = (item_hash, dtype, encoding)
    try:
        async with asyncio.timeout(wait_ms / 1000):
            await house.deriver.wait(key)
    except TimeoutError:
        return JsonResponse({"status": "pending"}, 202)
    found = house.store.find(key) or house.deriver.base_of(key)
    if found is None:
        raise FeatureNotFoundError("No such features are in the store; post the request again.")
    if found.key == key:
        house.store.arena.pin(found.region)
        return _document(request, house, found)
    derived = await house.deriver.have(key)
    if derived is None:
        raise FeatureNotFoundError("No such features are in the store; post the request again.")
    return _document(request, house, derived)


def _check_lease(house: House, item_hash: str, lease: str | None) -> None:
    """Where features are private, a hash alone opens nothing and tells nothing.

    Not even whether its features are there: the answer is the same either way. A lease over one
    variant opens what is derived from it too.

    Raises:
        LeaseNotFoundError: If no lease is given, or one that does not cover these features.
        LeaseExpiredError: If it ended or expired.
    """
    if not house.settings.store.private:
        return
    if lease is None:
        raise LeaseNotFoundError("These features are read with the lease of their answer.", "lease")
    keys = [(item_hash, d, e) for d in get_args(Dtype) for e in get_args(EncodingName)]
    regions = [region for key in keys if (region := house.store.region_of(key)) is not None]
    house.leasing.table.require(lease, regions)


def _document(request: Request, house: House, stored: Stored) -> Response:
    """Answer with a document that is pinned once; the response takes the pin over."""
    try:
        response = _respond(request, house, stored)
    except BaseException:
        house.store.arena.unpin(stored.region)
        raise
    if not isinstance(response, StreamedResponse):
        house.store.arena.unpin(stored.region)
    return response


def _respond(request: Request, house: House, stored: Stored) -> Response:
    etag = f'"{stored.key[0]}-{stored.key[1]}-{stored.key[2]}"'
    headers = {
        "etag": etag,
        "cache-control": "private, immutable, max-age=31536000",
        "accept-ranges": "bytes",
    }
    if (
        etag in request.headers.get("if-none-match", "")
        or request.headers.get("if-none-match") == "*"
    ):
        return Response(status_code=304, headers=headers)
    nbytes = stored.region.nbytes
    wanted = _range(request.headers.get("range"), nbytes)
    start, stop = wanted or (0, nbytes)
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{nbytes}"
    return StreamedResponse(
        [house.store.view(stored)[start:stop]],
        headers=headers,
        media_type=MEDIA_TYPE,
        status_code=200 if wanted is None else 206,
        executor=house.executor,
        stalled_s=house.settings.transport.stalled_reader_s,
        on_end=lambda _: house.store.arena.unpin(stored.region),
    )


def _range(header: str | None, nbytes: int) -> tuple[int, int] | None:
    """Return the half-open range asked for; None for the whole, as for what is no single range.

    Raises:
        RangeNotSatisfiableError: If it lies outside the document.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or found[1] == found[2] == "":
        return None
    if found[1]:
        start = int(found[1])
        stop = min(int(found[2]) + 1 if found[2] else nbytes, nbytes)
    else:
        start, stop = max(0, nbytes - int(found[2])), nbytes
    if start >= stop:
        raise RangeNotSatisfiableError(f"The document has {nbytes} bytes.", "Range")
    return start, stop
