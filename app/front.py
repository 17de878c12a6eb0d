"""The application: requests are named ahead of the framework, and its busiest routes served there.

The framework's own way to an endpoint (five layers of middleware, the router, exit stacks) takes
about as long as all else that is done for an item seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.middleware import RequestMiddleware


class WholeRequestRoute(APIRoute):
    """A route whose endpoint reads the request itself; FastAPI only documents it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint as it is."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class Application(FastAPI):
    """FastAPI behind a shortcut to some of its routes.

    Args:
        direct: Routes to serve without it, included all the same for what they do not answer.
        options: FastAPI's own.
    """

    def __init__(self, direct: Iterable[WholeRequestRoute], **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self._direct = {
            (route.path, name): route for route in direct for name in route.methods or ()
        }
        self._named = RequestMiddleware(self._dispatch)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        scope["app"] = self
        await self._named(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http":
            route = self._direct.get((scope["path"], scope["method"]))
        if route is None:
            await super().__call__(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.get_route_handler()(request)
            await response(scope, receive, send)
        except ClientDisconnect:
            return  # in the middle of its body; nobody reads an answer
        except Exception as error:
            # The server closes the connection of a response that was begun.
            if "status" in scope["state"]:
                raise
            handle = self._handler_of(error)
            response = handle(request, error)
            await response(scope, receive, send)
            if handle is self.exception_handlers.get(Exception):
                raise

    def _handler_of(self, error: Exception) -> Callable[[Request, Exception], Response]:
        handlers: dict[Any, Any] = self.exception_handlers
        handler: Callable[[Request, Exception], Response] = next(
            handlers[kind] for kind in type(error).__mro__ if kind in handlers
        )
        return handler
