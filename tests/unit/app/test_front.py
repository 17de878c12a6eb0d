"""The shortcut past the framework answers as the framework's own way does."""

from types import SimpleNamespace

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from app.front import Application, WholeRequestRoute
from app.metrics import Metrics
from processors.errors import InvalidRequestError, MmprepError

router = APIRouter(route_class=WholeRequestRoute)


class Begun(Response):
    """A response that fails when it has begun."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise InvalidRequestError("too late")


@router.post("/{what}")
async def answer(request: Request) -> Response:
    match request.url.path:
        case "/coded":
            raise InvalidRequestError("not so")
        case "/broken":
            raise KeyError("nobody foresaw this")
        case "/begun":
            return Begun()
    return PlainTextResponse(f"{await request.body()!r} for {request.state.request_id}")


def _coded(request: Request, error: MmprepError) -> JSONResponse:
    request.state.code = error.code
    return JSONResponse({"code": error.code}, 400)


def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    request.state.code = "internal"
    return JSONResponse({"code": "internal"}, 500)


def application(*direct: str) -> tuple[Application, Metrics]:
    """Return an application that serves some paths directly, and all of them in the end."""
    app = Application([WholeRequestRoute(path, answer, methods=["POST"]) for path in direct])
    app.include_router(router)
    app.add_exception_handler(MmprepError, _coded)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _unforeseen)
    metrics = Metrics()
    app.state.house = SimpleNamespace(metrics=metrics)
    return app, metrics


async def post(app: FastAPI, path: str, method: str = "POST") -> httpx2.Response:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, content=b"body", headers={"x-request-id": "mine"})


@pytest.mark.parametrize("path", ["/fine", "/coded", "/broken"])
async def test_both_ways_answer_the_same(path: str) -> None:
    """Answers, problems and faults are the same, named by the request's id, and counted alike."""
    direct, framework = application(path), application()
    answers = [await post(app, path) for app, _ in (direct, framework)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].content == answers[1].content
    assert {a.headers["x-request-id"] for a in answers} == {"mine"}
    code = {"/fine": "ok", "/coded": "invalid_request", "/broken": "internal"}[path]
    for (_, metrics), label in ((direct, path), (framework, "/{what}")):
        counted = f'mmprep_requests_total{{code="{code}",route="{label}"}} 1.0'
        assert counted in metrics.render()[0].decode()


async def test_only_the_method_of_a_route_is_served_directly() -> None:
    """Other methods of a direct path are the framework's to refuse."""
    app, _ = application("/fine")
    assert (await post(app, "/fine", "GET")).status_code == 405


@pytest.mark.parametrize("path", ["/broken", "/begun"])
async def test_faults_reach_the_server(path: str) -> None:
    """What was not foreseen, or comes when the answer has begun, is the server's to cut off."""
    app, _ = application(path)
    transport = httpx2.ASGITransport(app=app)
    with pytest.raises((KeyError, InvalidRequestError)):
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.post(path)
