"""The load stage: every item's encoded bytes in shared memory, or what stands for them.

Sources are loaded all at once and equal ones once. If any fails, the stage is finished for all and
every failure is told, the first in request order answering.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.errors import CodedError, FeatureNotFoundError, ItemErrors, UuidConflictError
from app.items import RequestItem
from app.loading.loader import Loader
from app.records import Records
from app.schemas import WireMedia, WirePreprocessed
from app.staging import StagedMedia
from processors.errors import InvalidRequestError, MmprepError
from processors.hashing import digest_of_frames
from processors.types import Modality
from transport.errors import TransportError

MAX_KEY_CHARS = 8192
"""Of a source that is looked for among the others: longer ones hold the medium itself, and hashing
the text takes longer than decoding it."""
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoadedItem:
    """An item with its bytes, or with what the server knows it by."""

    item: RequestItem
    media: tuple[StagedMedia, ...]
    """Encoded bytes: one medium, or a video's frames; empty where only a name was given."""
    digest: bytes | None
    """Content digest, 32 bytes; None for an item named by its hash, and for a preprocessed entry
    until its tensors are read."""
    item_hash: str | None = None
    """The hash the caller named the item by."""
    url: str | None = None
    """Of an image that is only planned: read as far as its header, when it is planned."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Encoded bytes per medium."""

    media_bytes: int
    video_bytes: int

    def of(self, modality: Modality) -> int:
        """Return the limit of one medium of a modality."""
        return self.video_bytes if modality is Modality.VIDEO else self.media_bytes


class Uploads:
    """The file parts of one request; every one must be used."""

    def __init__(self, parts: Mapping[str, StagedMedia]) -> None:
        self._parts = parts
        self._used: set[str] = set()

    def take(self, name: str, param: str) -> StagedMedia:
        """Return a part by name.

        Raises:
            InvalidRequestError: If there is no such part.
        """
        part = self._parts.get(name)
        if part is None:
            raise InvalidRequestError("No file part of this request has that name.", param)
        self._used.add(name)
        return part

    def check_all_used(self) -> None:
        """Refuse a request that carries parts it never names.

        Raises:
            InvalidRequestError: Naming how many.
        """
        unused = len(self._parts) - len(self._used)
        if unused:
            raise InvalidRequestError(
                f'{unused} file part(s) are used by no {{"upload": ...}} of the request.'
            )

    def release(self) -> None:
        """Let go of all parts."""
        for part in self._parts.values():
            part.release()


class Holdings:
    """Media that stay readable by their item's hash for a while (`plan_hash`)."""

    def __init__(self, ttl_s: float, clock: Clock = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._held: dict[str, tuple[float, tuple[StagedMedia, ...], bytes]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, item_hash: str, media: tuple[StagedMedia, ...], digest: bytes) -> None:
        """Keep an item's media; a renewed hold lives its whole time again."""
        previous = self._held.pop(item_hash, None)
        media = tuple(m.share() for m in media) if previous is None else previous[1]
        self._held[item_hash] = (self._clock() + self._ttl_s, media, digest)

    def find(self, item_hash: str) -> tuple[tuple[StagedMedia, ...], bytes] | None:
        """Return shares of an item's media and its digest, None where they are not held."""
        held = self._held.get(item_hash)
        if held is None or held[0] <= self._clock():
            return None
        return tuple(m.share() for m in held[1]), held[2]

    def expire(self, *, all_of_them: bool = False) -> None:
        """Let go of what has outlived its time."""
        now = self._clock()
        for item_hash in [
            h for h, (until, _, _) in self._held.items() if all_of_them or until <= now
        ]:
            for medium in self._held.pop(item_hash)[1]:
                medium.release()


class MediaStage:
    """Loads the items of requests.

    Args:
        loader: Fetches and decodes sources into staging.
        records: Resolves uuids and hashes.
        holdings: Media kept by hash.
        limits: Bytes per medium.
    """

    def __init__(
        self, loader: Loader, records: Records, holdings: Holdings, limits: MediaLimits
    ) -> None:
        self._loader = loader
        self._records = records
        self._holdings = holdings
        self._limits = limits

    async def load(
        self, items: Sequence[RequestItem], uploads: Uploads, salt: str, *, headers_only: bool
    ) -> list[LoadedItem]:
        """Return every item with its bytes or name, in the order given.

        The caller releases each medium of the result. With `headers_only`, images by URL are left
        for the planner, which reads no more of them than their headers.

        Raises:
            ItemErrors: With every item that failed, in request order.

        Cancellation: Loads under way are cancelled and their bytes let go.
        """
        loads = [item for item in items if not _is_named_by_hash(item)]
        left = iter(await self._load_all(loads, uploads, salt, headers_only=headers_only))
        return _settle(
            items,
            [self._find_by_hash(item) if _is_named_by_hash(item) else next(left) for item in items],
        )

    async def _load_all(
        self, items: Sequence[RequestItem], uploads: Uploads, salt: str, *, headers_only: bool
    ) -> list[LoadedItem | BaseException]:
        """Return what came of every load; equal sources are loaded once."""
        if len(items) == 1:
            # A single item needs no task of its own.
            try:
                return [await self._load_item(items[0], uploads, salt, headers_only=headers_only)]
            except (MmprepError, TransportError) as error:
                return [error]
        shared: dict[Hashable, asyncio.Task[LoadedItem]] = {}
        tasks: list[asyncio.Task[LoadedItem]] = []
        repeats: list[bool] = []
        for item in items:
            key = _source_key(item)
            repeats.append(key is not None and key in shared)
            task = shared.get(key) if key is not None else None
            if task is None:
                load = self._load_item(item, uploads, salt, headers_only=headers_only)
                task = asyncio.create_task(load)
                if key is not None:
                    shared[key] = task
            tasks.append(task)
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True) if tasks else []
        except asyncio.CancelledError:
            await _abandon(tasks)
            raise
        return [
            _again(item, result) if repeated and isinstance(result, LoadedItem) else result
            for item, result, repeated in zip(items, results, repeats, strict=True)
        ]

    async def _load_item(
        self, item: RequestItem, uploads: Uploads, salt: str, *, headers_only: bool
    ) -> LoadedItem:
        media = item.media
        if headers_only and (url := _image_url(item)) is not None:
            return LoadedItem(item, (), None, url=url)
        if isinstance(media, WirePreprocessed):
            tensors = await self._load_tensors(item, media, uploads)
            item.forget_source()
            return LoadedItem(item, (tensors,), None)
        staged = await self._bytes_of(item, media, uploads)
        if not staged:
            return self._named_by_uuid(item, salt)
        try:
            digests = [m.digest for m in staged]
            digest = digest_of_frames(digests) if _is_frame_list(media) else digests[0]
            self._bind_uuid(item, salt, digest)
        except BaseException:
            for medium in staged:
                medium.release()
            raise
        item.forget_source()
        return LoadedItem(item, staged, digest)

    async def _bytes_of(
        self, item: RequestItem, media: str | WireMedia, uploads: Uploads
    ) -> tuple[StagedMedia, ...]:
        if isinstance(media, str):
            return (await self._load_source(item, media),)
        if media.frames is not None:
            if item.modality is not Modality.VIDEO:
                raise InvalidRequestError("Only a video is given as a list of frames.")
            frames = [
                self._bytes_of(RequestItem(Modality.IMAGE, 0, item.param, f), f, uploads)
                for f in media.frames
            ]
            return await _all_or_none(frames)
        if media.upload is not None:
            return (uploads.take(media.upload, "").share(),)
        source = media.url if media.url is not None else media.data
        return () if source is None else (await self._load_source(item, source),)

    async def _load_tensors(
        self, item: RequestItem, media: WirePreprocessed, uploads: Uploads
    ) -> StagedMedia:
        tensors = media.tensors
        if tensors.upload is not None:
            return uploads.take(tensors.upload, "tensors.upload").share()
        max_bytes = self._limits.of(item.modality)
        return await self._loader.load_base64(tensors.safetensors or "", max_bytes=max_bytes)

    async def _load_source(self, item: RequestItem, source: str) -> StagedMedia:
        modality = Modality.VIDEO if item.shows_video else item.modality
        return await self._loader.load(
            source, modality=modality, max_bytes=self._limits.of(modality)
        )

    def _find_by_hash(self, item: RequestItem) -> LoadedItem | CodedError:
        item_hash = getattr(item.media, "hash", "")
        held = self._holdings.find(item_hash)
        if held is not None:
            return LoadedItem(item, held[0], held[1], item_hash)
        digest = self._records.digest_of_item(item_hash)
        if digest is None:
            return FeatureNotFoundError("Nothing is held under this hash; send the bytes.")
        return LoadedItem(item, (), digest, item_hash)

    def _named_by_uuid(self, item: RequestItem, salt: str) -> LoadedItem:
        digest = self._records.digest_of(item.uuid or "", salt)
        if digest is None:
            raise FeatureNotFoundError("No content was seen under this uuid; send the bytes.")
        return LoadedItem(item, (), digest)

    def _bind_uuid(self, item: RequestItem, salt: str, digest: bytes) -> None:
        if item.uuid is None:
            return
        known = self._records.digest_of(item.uuid, salt)
        if known is not None and known != digest:
            raise UuidConflictError("Other content was seen under this uuid; use another one.")
        self._records.alias(item.uuid, salt, digest)


def _is_named_by_hash(item: RequestItem) -> bool:
    return isinstance(item.media, WireMedia) and item.media.hash is not None


def _again(item: RequestItem, loaded: LoadedItem) -> LoadedItem:
    """Return another item with the bytes that an equal source was loaded for."""
    media = tuple(medium.share() for medium in loaded.media)
    return replace(loaded, item=item, media=media)


def _is_frame_list(media: str | WireMedia) -> bool:
    return isinstance(media, WireMedia) and media.frames is not None


def _image_url(item: RequestItem) -> str | None:
    """Return the URL of an image whose header will do; None where its content is asked for."""
    if item.modality is not Modality.IMAGE or item.uuid is not None or item.shows_video:
        return None
    url = item.media if isinstance(item.media, str) else getattr(item.media, "url", None)
    is_remote = isinstance(url, str) and url[:8].lower().startswith(("http://", "https://"))
    return url if is_remote else None


def _source_key(item: RequestItem) -> Hashable | None:
    """Return what equal sources share; None for what is cheap or must be looked at one by one."""
    media = item.media
    if isinstance(media, str):
        if len(media) > MAX_KEY_CHARS:
            return None
        return (item.modality, item.shows_video, media)
    if isinstance(media, WireMedia) and media.url is not None and media.uuid is None:
        return (item.modality, item.shows_video, media.url)
    return None


async def _all_or_none(
    loads: Sequence[Coroutine[Any, Any, tuple[StagedMedia, ...]]],
) -> tuple[StagedMedia, ...]:
    tasks = [asyncio.create_task(load) for load in loads]
    try:
        results = await asyncio.gather(*tasks)
    except BaseException:
        await _abandon(tasks)
        raise
    return tuple(medium for result in results for medium in result)


async def _abandon(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel loads and release what the finished ones hold."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        media = result.media if isinstance(result, LoadedItem) else result
        if isinstance(media, tuple):
            for medium in media:
                medium.release()


def _settle(
    items: Sequence[RequestItem], results: Sequence[LoadedItem | BaseException]
) -> list[LoadedItem]:
    loaded = [result for result in results if isinstance(result, LoadedItem)]
    if len(loaded) == len(items):
        return loaded
    _release(loaded)
    for result in results:
        if not isinstance(result, LoadedItem | CodedError):
            raise result
    raise ItemErrors(
        [
            at_item(result, item.param)
            for item, result in zip(items, results, strict=True)
            if isinstance(result, CodedError)
        ]
    )


def _release(loaded: Sequence[LoadedItem]) -> None:
    for item in loaded:
        for medium in item.media:
            medium.release()


def at_item(error: CodedError, param: str) -> CodedError:
    """Return a copy of an item's error, the item's place put before the error's own."""
    placed = copy.copy(error)
    placed.param = f"{param}.{error.param}" if error.param else param
    return placed
