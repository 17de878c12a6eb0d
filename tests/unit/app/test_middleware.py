"""Request ids, trace context and the metrics of every request, over a real ASGI application."""

from types import SimpleNamespace

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.metrics import Metrics
from app.middleware import RequestMiddleware

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _echo(request: Request) -> JSONResponse:
    bound = structlog.contextvars.get_contextvars()
    return JSONResponse({"bound": bound, "traceparent": request.state.traceparent})


async def _fail(request: Request) -> JSONResponse:
    request.state.code = "invalid_request"
    return JSONResponse({}, 400)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def client(metrics: Metrics) -> httpx2.AsyncClient:
    app = Starlette(routes=[Route("/things/{name}", _echo), Route("/fail", _fail)])
    app.add_middleware(RequestMiddleware)
    app.state.house = SimpleNamespace(metrics=metrics)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")


def _text(metrics: Metrics) -> str:
    return metrics.render()[0].decode()


async def test_given_id_is_kept_and_bound(client: httpx2.AsyncClient) -> None:
    """A valid X-Request-Id comes back and is bound for everything logged meanwhile."""
    response = await client.get("/things/a", headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.json()["bound"] == {"request_id": "abc-1"}
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.parametrize("given", ["", "a b", "x" * 129])
async def test_invalid_id_is_replaced(client: httpx2.AsyncClient, given: str) -> None:
    """An id that is empty, too long or holds a space is replaced by one of our own."""
    response = await client.get("/things/a", headers={"x-request-id": given})
    assert response.headers["x-request-id"] not in ("", given)


async def test_trace_is_continued(client: httpx2.AsyncClient) -> None:
    """The caller's trace id is passed on with a span id of our own."""
    response = await client.get("/things/a", headers={"traceparent": TRACE})
    ours = response.headers["traceparent"]
    assert ours.split("-")[1] == TRACE.split("-")[1]
    assert ours.split("-")[2] != TRACE.split("-")[2]
    assert response.json()["traceparent"] == ours


@pytest.mark.parametrize("given", [None, "junk", TRACE.upper(), "00-" + "0" * 32 + TRACE[35:]])
async def test_invalid_trace_is_ignored(client: httpx2.AsyncClient, given: str | None) -> None:
    """No trace, or an invalid one, leads to none in the answer."""
    response = await client.get("/things/a", headers={"traceparent": given} if given else {})
    assert "traceparent" not in response.headers


async def test_paths_never_become_labels(client: httpx2.AsyncClient, metrics: Metrics) -> None:
    """Routes count by template, unknown paths as one, so that labels stay a closed set."""
    await client.get("/things/secret-1")
    await client.get("/nowhere/secret-2")
    await client.get("/fail")
    text = _text(metrics)
    assert "secret" not in text
    assert 'mmprep_requests_total{code="ok",route="/things/{name}"} 1.0' in text
    assert 'mmprep_requests_total{code="other",route="other"} 1.0' in text
    assert 'mmprep_requests_total{code="invalid_request",route="/fail"} 1.0' in text
    assert "mmprep_inflight_requests 0.0" in text


def test_registries_are_apart() -> None:
    """Two applications in one process count for themselves."""
    first, second = Metrics(), Metrics()
    first.requests.labels("/livez", "ok").inc()
    assert "/livez" not in _text(second)
