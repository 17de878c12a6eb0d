"""Many loads at once over servers of every temper, with callers that give up at any moment."""

import asyncio
import base64
import random

from app.loading.errors import MediaFetchTimeoutError, MediaUpstreamError
from processors.errors import InvalidRequestError, MediaTooLargeError
from processors.types import Modality
from tests.helpers.loading import Loading, run_loader
from tests.helpers.origin import Origin, Request, run_origin, send, send_raw
from transport.errors import StoreFullError

GOOD = bytes(range(256)) * 500
REFUSALS = (
    InvalidRequestError,
    MediaFetchTimeoutError,
    MediaTooLargeError,
    MediaUpstreamError,
    StoreFullError,
    asyncio.CancelledError,
)


def prepare(origin: Origin) -> list[str]:
    """Give a server its tempers; return sources, good and bad."""

    async def cut(_: Request, writer: asyncio.StreamWriter) -> None:
        await send_raw(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + GOOD[:500])

    async def slow(_: Request, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(GOOD), 10_000):
            writer.write(GOOD[start : start + 10_000] if start else b"HTTP/1.0 200 OK\r\n\r\n")
            await asyncio.sleep(0)

    async def silent(_: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    origin.answers |= {"/cut": cut, "/slow": slow, "/silent": silent}
    origin.answers["/big"] = lambda _, writer: send(writer, bytes(3 << 20))
    return [
        origin.serve("/good", GOOD),
        origin.redirect("/redirect", "/good"),
        *(origin.url(path) for path in ("/cut", "/slow", "/silent", "/big")),
        base64.b64encode(GOOD).decode(),
        "data:;base64," + base64.b64encode(GOOD * 4).decode(),
        "not a source!",
    ]


async def one(loading: Loading, source: str, give_up_after: int) -> None:
    """Load a source, cancelled after some turns of the loop unless it is done by then."""
    load = loading.loader.load(source, modality=Modality.IMAGE, max_bytes=2 << 20)
    task = asyncio.create_task(load)
    for _ in range(give_up_after):
        await asyncio.sleep(0)
    if give_up_after:
        task.cancel()
    try:
        with await task as staged:
            assert bytes(staged.view()[:256]) in (GOOD[:256], bytes(256), GOOD[10_000:10_256])
    except REFUSALS:
        pass


async def test_no_temper_and_no_cancellation_leaks() -> None:
    """After three hundred loads everything is free and the loader works."""
    chance = random.Random(7)
    async with run_origin() as origin:
        sources = prepare(origin)
        async with run_loader(
            nbytes=4 << 20, read_timeout_s=0.2, max_connections=12, max_connections_per_host=8
        ) as loading:
            await asyncio.gather(
                *(
                    one(loading, chance.choice(sources), chance.choice([0, 0, 1, 5, 20, 80]))
                    for _ in range(300)
                )
            )
            await loading.staging.run(lambda: None)
            await asyncio.sleep(0)
            assert loading.loader.num_fetching == 0
            assert loading.held_bytes == 0
            staged = await loading.loader.load(
                sources[0], modality=Modality.IMAGE, max_bytes=1 << 20
            )
            with staged:
                assert bytes(staged.view()) == GOOD
