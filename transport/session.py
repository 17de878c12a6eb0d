"""HTTP for the client: one call, its retries, its body read into memory once; sync and async."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import numpy as np

from transport.device import CudaMemory, DeviceMemory
from transport.errors import ClientError, DocumentError, ServiceUnreachableError
from transport.protocol import RetryPolicy, api_error
from transport.segments import DEFAULT_DIRECTORY
from transport.wire import Pool


def _from_environment(name: str, default: str | None) -> Callable[[], Any]:
    return lambda: os.environ.get(f"MMPREP_CLIENT_{name}", default)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client reaches the service; two have an environment variable of their own."""

    base_url: str = field(default_factory=_from_environment("BASE_URL", "http://127.0.0.1:8000"))
    """`MMPREP_CLIENT_BASE_URL`."""
    api_key: str | None = field(default_factory=_from_environment("API_KEY", None), repr=False)
    """`MMPREP_CLIENT_API_KEY`."""
    uds: str | None = None
    """Path of a unix socket to connect to instead of the URL's host and port."""
    timeout_s: float = 120.0
    """For a response to begin, and for each read."""
    connect_timeout_s: float = 5.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_answer_bytes: int = 4 << 30
    """Largest body that is read."""
    shm_directory: str = DEFAULT_DIRECTORY
    """Where this process sees the service's segments."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs this process sees (`visible_gpus()`); sent as proof for `cuda_ipc`."""
    open_memory: Callable[[Pool], DeviceMemory] = CudaMemory.open
    """Maps a pool of device memory."""


def with_base_url(options: ClientOptions | None, base_url: str | None) -> ClientOptions:
    """Return options, their defaults where none are given, with a base URL where one is."""
    options = options or ClientOptions()
    return options if base_url is None else replace(options, base_url=base_url)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, ready to be sent as often as it takes."""

    method: str
    url: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    files: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer."""

    status: int
    content_type: str
    body: memoryview
    """Private and writable."""


class _Body:
    """Collects a body into memory that is allocated once, where its length is announced."""

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        announced = response.headers.get("content-length", "")
        self._buffer = np.empty(self._checked(int(announced or 0)), np.uint8)
        self._nbytes = 0

    def add(self, chunk: bytes) -> None:
        stop = self._nbytes + len(chunk)
        if stop > self._buffer.nbytes:
            larger = np.empty(self._checked(max(stop, 2 * self._buffer.nbytes)), np.uint8)
            larger[: self._nbytes] = self._buffer[: self._nbytes]
            self._buffer = larger
        self._buffer[self._nbytes : stop] = np.frombuffer(chunk, np.uint8)
        self._nbytes = stop

    def view(self) -> memoryview:
        return self._buffer[: self._nbytes].data

    def _checked(self, nbytes: int) -> int:
        if nbytes > self._max_bytes:
            raise DocumentError("the answer is larger than this client's limit")
        return nbytes


def _reply(response: httpx2.Response, body: _Body) -> Reply:
    view = body.view()
    if response.status_code >= 400:
        raise api_error(response.status_code, response.headers, bytes(view[: 1 << 20]))
    return Reply(response.status_code, response.headers.get("content-type", ""), view)


def _unreachable(exc: httpx2.TransportError) -> ServiceUnreachableError:
    if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServiceUnreachableError("the service cannot be reached")
    if isinstance(exc, httpx2.TimeoutException):
        return ServiceUnreachableError("the service took too long to answer", retryable=False)
    return ServiceUnreachableError("the connection broke before the answer was whole")


def _http_options(options: ClientOptions) -> dict[str, Any]:
    headers = {"Accept-Encoding": "identity"}
    if options.api_key:
        headers["Authorization"] = f"Bearer {options.api_key}"
    timeout = httpx2.Timeout(options.timeout_s, connect=options.connect_timeout_s)
    # A proxy of the environment has no business between two services of one deployment.
    return {
        "base_url": options.base_url,
        "headers": headers,
        "timeout": timeout,
        "trust_env": False,
    }


def _request_options(call: Call) -> dict[str, Any]:
    return {
        "params": dict(call.params) or None,
        "headers": dict(call.headers),
        "content": call.content,
        "files": call.files,
    }


class Session:
    """Sends calls and waits for them."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        transport = httpx2.HTTPTransport(uds=options.uds) if options.uds else None
        self._http = httpx2.Client(transport=transport, **_http_options(options))

    def send(self, call: Call) -> Reply:
        """Send a call, again where the service asks for it or no answer came.

        Raises:
            ApiError: If the service answered with a problem, and waiting does not help.
            ServiceUnreachableError: If no whole answer came.
            DocumentError: If the answer is larger than the client takes.
        """
        attempt = 1
        while True:
            try:
                return self._send_once(call)
            except ClientError as error:
                wait_s = self._options.retry.wait_s(attempt, error)
                if wait_s is None:
                    raise
            time.sleep(wait_s)
            attempt += 1

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send_once(self, call: Call) -> Reply:
        try:
            with self._http.stream(call.method, call.url, **_request_options(call)) as response:
                body = _Body(response, self._options.max_answer_bytes)
                for chunk in response.iter_raw():
                    body.add(chunk)
        except httpx2.TransportError as exc:
            raise _unreachable(exc) from exc
        return _reply(response, body)


class AsyncSession:
    """Sends calls and awaits them."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        transport = httpx2.AsyncHTTPTransport(uds=options.uds) if options.uds else None
        self._http = httpx2.AsyncClient(transport=transport, **_http_options(options))

    async def send(self, call: Call) -> Reply:
        """Send a call as `Session.send` does.

        Raises:
            ApiError: If the service answered with a problem, and waiting does not help.
            ServiceUnreachableError: If no whole answer came.
            DocumentError: If the answer is larger than the client takes.
        """
        attempt = 1
        while True:
            try:
                return await self._send_once(call)
            except ClientError as error:
                wait_s = self._options.retry.wait_s(attempt, error)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)
            attempt += 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send_once(self, call: Call) -> Reply:
        try:
            streaming = self._http.stream(call.method, call.url, **_request_options(call))
            async with streaming as response:
                body = _Body(response, self._options.max_answer_bytes)
                async for chunk in response.aiter_raw():
                    body.add(chunk)
        except httpx2.TransportError as exc:
            raise _unreachable(exc) from exc
        return _reply(response, body)
