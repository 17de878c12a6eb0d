"""POST /preprocess: read the body, run the pipeline, stream the answer."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.answer import Answer, binary_parts, json_parts, respond
from app.body import BodyLimits, find_body_kind, read_body
from app.call import Call
from app.front import WholeRequestRoute
from app.house import House
from app.jobs import DeadlineExceededError
from app.media import Uploads
from app.multipart import read_multipart
from app.openapi import preprocess_answers, preprocess_body
from app.routes.deps import house_of, key_id_of
from app.schemas import PreprocessRequest
from app.server import WATCH_KEY
from app.timing import Timings
from app.wire import BINARY_TYPE, accepts, parse

router = APIRouter(tags=["preprocess"], route_class=WholeRequestRoute)
QUICK_BODY_BYTES = 1 << 20
QUICK_BODY_COMMAS = 1024
"""Bodies of this size with no more commas are parsed on the loop, in 0.2 ms at most: as long as a
hop to a thread and back."""
SHORT_ANSWER = 8192
"""Tokens of an answer that is put together on the loop, in less than a hop to a thread."""
SHORT_ANSWER_ITEMS = 8


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """Raised inside when the client has closed its connection; nobody reads the answer."""


class PreprocessResponse(Response):
    """Does one request's work when it is called, so that admission lasts until the last byte."""

    def __init__(self, house: House, request: Request, key_id: str) -> None:
        super().__init__()
        self._house = house
        self._request = request
        self._key_id = key_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; errors before the first byte go to the problem handler."""
        house = self._house
        received = asyncio.get_running_loop().time()
        timings = Timings()
        media_type = accepts(self._request.headers.get("accept"))
        with house.admission.enter():
            parsed, uploads = await self._read()
            try:
                call = self._open(parsed, received, timings)
                # The call lets go of what it has loaded.
                del parsed
                response = await self._work_in_time(call, uploads, media_type)
            except ClientGone:
                house.log.info("client_gone", request_id=self._request.state.request_id)
                return
            finally:
                uploads.release()
            await response(scope, receive, send)

    async def _read(self) -> tuple[PreprocessRequest, Uploads]:
        body, uploads = await self._read_body()
        try:
            if _is_quick(body):
                return parse(PreprocessRequest, body), uploads
            # While it is parsed, a body is there twice: few at a time.
            async with self._house.parsing:
                parsed = await asyncio.get_running_loop().run_in_executor(
                    self._house.executor, parse, PreprocessRequest, body
                )
                del body
                return parsed, uploads
        except BaseException:
            uploads.release()
            raise

    async def _read_body(self) -> tuple[bytes, Uploads]:
        settings, request = self._house.settings, self._request
        limits = BodyLimits(settings.limits.body_bytes, settings.server.body_timeout_s)
        if find_body_kind(request.headers) == "json":
            return await read_body(request.headers, request.stream(), limits), Uploads({})
        body = await read_multipart(
            request.headers,
            request.stream(),
            limits,
            self._house.staging,
            max_parts=settings.limits.items + 2,
        )
        return body.request, Uploads(body.parts)

    def _open(self, parsed: PreprocessRequest, received: float, timings: Timings) -> Call:
        house = self._house
        state = self._request.state
        if parsed.request_id is not None:
            state.request_id = parsed.request_id
        base_url = house.settings.transport.advertise_url
        if not base_url and "ref" in parsed.transports:
            base_url = str(self._request.base_url)
        return house.pipeline.open(
            parsed,
            state.request_id,
            received,
            timings,
            key_id=self._key_id,
            base_url=(base_url or "").rstrip("/"),
        )

    async def _work_in_time(self, call: Call, uploads: Uploads, media_type: str) -> Response:
        """Return the response, unless its time is up or the client leaves.

        Raises:
            DeadlineExceededError: If it took too long.
            ClientGone: If the client closed the connection.
        """
        is_gone = False

        def leave() -> None:
            nonlocal is_gone
            is_gone = True
            if not limit.expired():
                limit.reschedule(0)

        try:
            async with asyncio.timeout_at(call.deadline) as limit:
                with self._request.scope[WATCH_KEY](leave):
                    return await self._work(call, uploads, media_type)
        except TimeoutError as error:
            if is_gone:
                raise ClientGone from error
            raise DeadlineExceededError(
                "The deadline passed before the answer was ready; raise deadline_ms or send less."
            ) from error

    async def _work(self, call: Call, uploads: Uploads, media_type: str) -> Response:
        house = self._house
        answer = await house.pipeline.run(call, uploads)
        self._request.state.timings_ms = answer.timings_ms
        house.metrics.observe_answer(answer)
        try:
            if answer.num_tokens <= SHORT_ANSWER and len(answer.items) <= SHORT_ANSWER_ITEMS:
                parts = self._parts(answer, media_type)
            else:
                parts = await asyncio.get_running_loop().run_in_executor(
                    house.executor, self._parts, answer, media_type
                )
        except BaseException:
            answer.close(complete=False)
            raise
        return respond(
            answer,
            parts,
            media_type,
            executor=house.executor,
            stalled_s=house.settings.transport.stalled_reader_s,
        )

    def _parts(self, answer: Answer, media_type: str) -> list[Any]:
        if media_type == BINARY_TYPE:
            return list(binary_parts(answer, self._house.store))
        return list(json_parts(answer, self._house.store, self._house.settings.limits.inline_bytes))


def _is_quick(body: bytes) -> bool:
    """Return whether a body is parsed quickly: long strings are, many values are not."""
    if len(body) > QUICK_BODY_BYTES:
        return False
    place = -1
    for _ in range(QUICK_BODY_COMMAS + 1):
        # Twenty times as fast as counting where there are few.
        place = body.find(b",", place + 1)
        if place < 0:
            return True
    return False


@router.post(
    "/preprocess",
    responses=preprocess_answers(),
    openapi_extra=preprocess_body(),
    response_class=Response,
)
async def preprocess(request: Request) -> Response:
    """Expand a prompt and process its media: ids, offsets, features or where they are."""
    house = house_of(request)
    return PreprocessResponse(house, request, key_id_of(request, house))
