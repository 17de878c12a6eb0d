"""Loading: from a Media string to encoded bytes in shared memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from app.loading.cache import ByteCache
from app.loading.encoded import decode_into, max_decoded_bytes
from app.loading.errors import SourceForbiddenError
from app.loading.fetch import Body, Fetcher
from app.loading.files import RootFolders
from app.loading.flights import Flights
from app.loading.network import Resolver
from app.loading.settings import LoadingSettings
from app.loading.source import EncodedSource, FileSource, HttpSource, parse_source
from app.loading.urls import Target, parse_url
from app.staging import StagedMedia, StagingArea, too_large
from processors.types import Modality

PROBE_FIRST_BYTES = 64 * 1024
PROBE_MAX_BYTES = 1024 * 1024
_ACCEPT = {
    Modality.IMAGE: "image/*,*/*;q=0.5",
    Modality.VIDEO: "video/*,*/*;q=0.5",
    Modality.AUDIO: "audio/*,*/*;q=0.5",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbedUrl(Generic[T]):
    """What the first bytes behind a URL told."""

    value: T | None
    """The probe's answer; None where it wanted more than `PROBE_MAX_BYTES`, or than there is."""
    nbytes: int | None
    """Bytes of the whole medium, where the server says so or it was read whole."""


class Loader:
    """Brings media into staging; an async context manager, closed before its staging area.

    Args:
        settings: Where media may come from.
        staging: Where they go.
        resolver: What resolves host names; the system's unless a test brings its own.
    """

    def __init__(
        self, settings: LoadingSettings, staging: StagingArea, resolver: Resolver | None = None
    ) -> None:
        self._staging = staging
        self._fetcher = Fetcher(settings, resolver)
        self._flights = Flights()
        self._roots = RootFolders(settings.roots)
        self._has_roots = bool(settings.roots)
        self._cache: ByteCache[StagedMedia] = ByteCache(settings.cache_bytes, settings.cache_ttl_s)
        staging.reclaim = self._cache.evict

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._flights.aclose()
        self._cache.clear()
        await self._fetcher.__aexit__(kind, error, tb)

    @property
    def num_fetching(self) -> int:
        """Fetches under way."""
        return len(self._flights)

    async def load(self, source: str, *, modality: Modality, max_bytes: int) -> StagedMedia:
        """Return a source's encoded bytes, staged and hashed; the caller releases them.

        Args:
            source: A Media string of the contract's section 1.
            modality: What is expected; decides the Accept header, nothing is checked against it.
            max_bytes: Limit of the encoded bytes.

        Raises:
            InvalidRequestError: If the source cannot be understood or found.
            SourceForbiddenError: If it may not be read from here.
            MediaUpstreamError: If its server cannot be reached, refuses or breaks off.
            MediaFetchTimeoutError: If its server is too slow.
            MediaTooLargeError: If it exceeds the limit.
            StoreFullError: If there is no room for it now.

        Cancellation: Nothing stays held; a fetch that others wait for goes on.
        """
        parsed = parse_source(source)
        if isinstance(parsed, HttpSource):
            return await self._load_url(parse_url(parsed.url), modality, max_bytes)
        if isinstance(parsed, FileSource):
            return await self._load_file(parsed, max_bytes)
        return await self._load_encoded(parsed, max_bytes)

    async def load_base64(self, text: str, *, max_bytes: int) -> StagedMedia:
        """Return the bytes of base64 that stands in a request, staged; the caller releases them.

        Raises:
            InvalidRequestError: If it is not base64.
            MediaTooLargeError: If it exceeds the limit.
            StoreFullError: If there is no room for it now.
        """
        return await self._load_encoded(EncodedSource(text, 0, is_base64=True), max_bytes)

    async def probe_url(
        self,
        url: str,
        probe: Callable[[bytes], Awaitable[T | None]],
        *,
        modality: Modality,
        max_bytes: int,
    ) -> ProbedUrl[T]:
        """Read only as much behind an http or https URL as a probe needs.

        Parts are asked for; a server that sends the whole is hung up on.

        Args:
            url: The URL.
            probe: Called with the first bytes, 64 KiB at first, twice as many each time it returns
                None, up to 1 MiB.
            modality: As for `load`.
            max_bytes: As for `load`; a server that announces more is refused.

        Raises:
            Exception: As `load`, and whatever the probe raises.
        """
        target, accept = parse_url(url), _ACCEPT[modality]
        head = bytearray()
        wanted = PROBE_FIRST_BYTES
        while True:
            part = range(len(head), wanted)
            async with self._fetcher.open(
                target, max_bytes=max_bytes, accept=accept, part=part
            ) as body:
                if not body.is_part:
                    return await _probe_whole(body, probe)
                async for chunk in body:
                    head += chunk
                    if len(head) > wanted:
                        break  # it sends more than was asked for
                nbytes = body.nbytes
            value = await probe(bytes(head))
            is_all = len(head) < wanted or len(head) == nbytes
            if value is not None or is_all or len(head) >= PROBE_MAX_BYTES:
                return ProbedUrl(value, nbytes)
            wanted = 2 * len(head)

    async def _load_url(self, target: Target, modality: Modality, max_bytes: int) -> StagedMedia:
        accept = _ACCEPT[modality]
        key = (target, accept, max_bytes)
        cached = self._cache.get(key)
        if cached is not None:
            return cached.share()
        return await self._flights.join(key, lambda: self._fetch(target, accept, max_bytes))

    async def _fetch(self, target: Target, accept: str, max_bytes: int) -> StagedMedia:
        async with self._fetcher.open(target, max_bytes=max_bytes, accept=accept) as body:
            with self._staging.buffer(expected_bytes=body.nbytes, max_bytes=max_bytes) as buffer:
                async for chunk in body:
                    await buffer.append(chunk)
                staged = await buffer.finish()
        if target.authorization is None and self._cache.can_keep(staged.nbytes, body.fresh_s):
            self._cache.put((target, accept, max_bytes), staged.share(), body.fresh_s)
        return staged

    async def _load_encoded(self, source: EncodedSource, max_bytes: int) -> StagedMedia:
        capacity = max_decoded_bytes(source, max_bytes)
        return await self._staging.fill(
            capacity,
            lambda view: decode_into(view, source, max_bytes),
            is_quick=source.is_base64,
        )

    async def _load_file(self, source: FileSource, max_bytes: int) -> StagedMedia:
        if not self._has_roots:
            raise SourceForbiddenError(
                "Files are not served here; the operator can allow folders (MMPREP_LOADING__ROOTS)."
            )
        nbytes = await self._staging.run(lambda: self._roots.measure(source.path))
        if nbytes > max_bytes:
            raise too_large(max_bytes)
        return await self._staging.fill(
            nbytes, lambda view: self._roots.read_into(view, source.path)
        )


async def _probe_whole(body: Body, probe: Callable[[bytes], Awaitable[T | None]]) -> ProbedUrl[T]:
    """Read a whole medium as far as a probe needs."""
    head = bytearray()
    wanted = PROBE_FIRST_BYTES
    async for chunk in body:
        head += chunk
        if len(head) < wanted:
            continue
        value = await probe(bytes(head))
        if value is not None or len(head) >= PROBE_MAX_BYTES:
            return ProbedUrl(value, body.nbytes)
        wanted = max(2 * wanted, len(head))
    return ProbedUrl(await probe(bytes(head)), len(head))
