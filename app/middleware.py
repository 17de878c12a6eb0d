"""Request ids, trace context, the line at a request's end, and its metrics; pure ASGI."""

from __future__ import annotations

import re
import time
from collections.abc import MutableMapping
from functools import cached_property
from random import getrandbits
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.tracing import continue_trace

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
PROBES = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""Asked every few seconds; their requests are counted and not logged."""


class RequestMiddleware:
    """Gives every request an id and tells of it once, when it ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = given if _REQUEST_ID.fullmatch(given) else f"{getrandbits(64):016x}"
        trace = continue_trace(headers.get("traceparent"))
        state["traceparent"] = trace
        # Not the loop's clock: uvloop's goes in steps of 1 ms.
        start = time.perf_counter()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                out = [h for h in message.get("headers", ()) if h[0] != b"x-request-id"]
                out.append((b"x-request-id", state["request_id"].encode()))
                if trace is not None:
                    out.append((b"traceparent", trace.encode()))
                message = {**message, "headers": out}
            await send(message)

        metrics = scope["app"].state.house.metrics
        metrics.inflight.inc()
        # What libraries log on the way carries the id too.
        bound = structlog.contextvars.bind_contextvars(request_id=state["request_id"])
        try:
            await self._app(scope, receive, send_named)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            metrics.inflight.dec()
            self._tell(scope, state, time.perf_counter() - start, trace)

    @cached_property
    def _log(self) -> Any:  # noqa: ANN401 - structlog's
        """The logger, bound at the first request: logging is set up by then."""
        return structlog.get_logger("mmprep").bind()

    def _tell(
        self,
        scope: Scope,
        state: MutableMapping[str, Any],
        seconds: float,
        trace: str | None,
    ) -> None:
        house = scope["app"].state.house
        status = state.get("status", 0)
        route = getattr(scope.get("route"), "path", "other")
        code = state.get("code", "ok" if 200 <= status < 400 else "other" if status else "gone")
        house.metrics.observe_request(route, code, seconds)
        if route in PROBES:
            return
        self._log.info(
            "request",
            request_id=state["request_id"],
            route=route,
            status=status,
            code=code,
            seconds=round(seconds, 4),
            trace=trace,
            timings_ms=state.get("timings_ms"),
        )
