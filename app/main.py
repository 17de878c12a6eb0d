"""The application: routes, middleware, problem handlers, and the house they work in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.config import Settings, SettingsError
from app.devices import Devices
from app.errors import (
    CODES,
    PROBLEM_TYPE,
    CodedError,
    ItemErrors,
    MethodNotAllowedError,
    NotFoundError,
    problem,
)
from app.front import Application, WholeRequestRoute
from app.house import open_house
from app.respond import JsonResponse
from app.routes import features, leases, models, preprocess, probes
from app.versions import versions
from processors.errors import InvalidRequestError, MmprepError, ModelLoadError
from transport.errors import TransportError


def create_app(settings: Settings, devices: Devices = Devices()) -> FastAPI:  # noqa: B008 - frozen
    """Return the application; its lifespan opens and closes what it owns."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                house = await stack.enter_async_context(open_house(settings, devices))
            except (SettingsError, ModelLoadError) as error:
                app.state.start_error = error
                raise
            house.metrics.watch(house)
            app.state.house = house
            yield

    direct = [*preprocess.router.routes, *leases.batches.routes]
    app = Application(
        [route for route in direct if isinstance(route, WholeRequestRoute)],
        title="mmprep",
        summary="Multimodal preprocessing for LLM engines",
        version=versions()["mmprep"],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.start_error = None
    modules = (preprocess, features, leases, models, probes)
    for router in (*(module.router for module in modules), leases.batches):
        app.include_router(router)
    for kind, handler in (
        (MmprepError, _coded),
        (TransportError, _coded),
        (ItemErrors, _items),
        (HTTPException, _http),
        (RequestValidationError, _validation),
        (Exception, _unforeseen),
    ):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]  # narrower than Exception
    return app


def _answer(request: Request, errors: list[CodedError]) -> JsonResponse:
    first = errors[0]
    info = CODES[first.code]
    request.state.code = first.code
    headers = {}
    if info.retry_after_s is not None:
        headers["retry-after"] = str(info.retry_after_s)
    if first.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if first.code == "internal":
        structlog.get_logger("mmprep").error(
            "internal_error", request_id=request.state.request_id, exc_info=first
        )
    document = problem(first, request.state.request_id, errors)
    return JsonResponse(document, info.status, headers, media_type=PROBLEM_TYPE)


def _coded(request: Request, error: CodedError) -> JsonResponse:
    return _answer(request, [error])


def _items(request: Request, error: ItemErrors) -> JsonResponse:
    return _answer(request, error.errors)


def _http(request: Request, error: HTTPException) -> JsonResponse:
    if error.status_code == 405:
        response = _answer(request, [MethodNotAllowedError("This path does not have that method.")])
        response.headers.update(error.headers or {})
        return response
    return _answer(request, [NotFoundError("There is no such path.")])


def _validation(request: Request, error: RequestValidationError) -> JsonResponse:
    details: list[dict[str, Any]] = list(error.errors())
    found: list[CodedError] = [
        InvalidRequestError(f"{d['msg']}.", ".".join(str(p) for p in d["loc"][1:])) for d in details
    ]
    return _answer(request, found)


def _unforeseen(request: Request, error: Exception) -> JsonResponse:
    internal = MmprepError("unforeseen")
    internal.__cause__ = error
    return _answer(request, [internal])
