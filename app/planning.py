"""The plan stage: each item's plan, remembered by hash, made by a worker where it is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app import work
from app.call import Call, Planned
from app.errors import CodedError, FeatureNotFoundError, ItemErrors
from app.given_items import plan_given
from app.jobs import JobItem, PlanFramesJob, PlanJob
from app.loading import Loader
from app.media import LoadedItem, at_item
from app.pool import WorkerPool
from app.records import ItemRecord, Records
from app.schemas import WirePreprocessed
from app.sizes import KnownSizes
from app.staging import StagedMedia, StagingArea
from processors.errors import (
    InvalidRequestError,
    MediaDecodeError,
    MmprepError,
    UnsupportedOptionError,
)
from processors.hashing import item_hash
from processors.kwargs import effective_kwargs, request_settings
from processors.types import ItemPlan, MediaOptions, Modality
from transport.errors import TransportError

_Begun = list[Planned] | Callable[[], Coroutine[None, None, list[Planned]]] | CodedError
"""An item's plan, what makes it, or its error."""


class Planner:
    """Plans the items of requests.

    Args:
        pool: Reads the headers of what is new.
        records: Remembers plans.
        loader: Reads the first bytes of images that are only planned.
        staging: Where those go.
        sizes: Plans pictures of sizes that were met before.
        max_bytes: Encoded bytes of one image.
    """

    def __init__(
        self,
        pool: WorkerPool,
        records: Records,
        loader: Loader,
        staging: StagingArea,
        sizes: KnownSizes,
        max_bytes: int,
    ) -> None:
        self._pool = pool
        self._records = records
        self._loader = loader
        self._staging = staging
        self._sizes = sizes
        self._max_bytes = max_bytes

    async def plan_all(self, call: Call, loaded: Sequence[LoadedItem]) -> list[Planned]:
        """Return every item with its plan, in the order given; preprocessed ones told apart.

        Raises:
            ItemErrors: With every item that failed, in request order.
        """
        with call.timings.stage("plan"):
            results = await _settle([self._begin(call, item) for item in loaded])
        errors = [
            at_item(result, item.item.param)
            for item, result in zip(loaded, results, strict=True)
            if isinstance(result, CodedError)
        ]
        if errors:
            raise ItemErrors(errors)
        planned: list[Planned] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            planned += result
        _number(planned)
        return planned

    def remember(self, call: Call, item: Planned) -> None:
        """Keep an item's plan for the next request with the same content."""
        digest = item.loaded.digest
        if item.hash is None or digest is None:
            return
        record = ItemRecord(
            call.model.info.name, item.hash, digest, item.loaded.item.modality, item.plan
        )
        self._records.remember(record, self._index(call, item.loaded))

    def remembered(self, call: Call, item: Planned) -> ItemPlan | None:
        """Return what is remembered of an item by now, perhaps more than when it was planned."""
        return None if item.hash is None else self._remembered(call, item.loaded, item.hash)

    def place_of(self, call: Call, item: Planned) -> tuple[str, int]:
        """Return what tells plans of one content apart: the model, and the place in the prompt."""
        return call.model.info.name, self._index(call, item.loaded)

    def _begin(self, call: Call, loaded: LoadedItem) -> _Begun:
        """Return an item's plan where it is remembered, else what makes it, or its error."""
        try:
            self._check_modality(call, loaded)
            if loaded.item.shows_video:
                return lambda: self._plan_frames(call, loaded)
            entry = loaded.item.preprocessed
            if entry is not None:
                return lambda: self._plan_given(call, loaded, entry)
            return self._find_or_plan(call, loaded)
        except (MmprepError, TransportError) as error:
            return error

    async def _plan_given(
        self, call: Call, loaded: LoadedItem, entry: WirePreprocessed
    ) -> list[Planned]:
        planned = await plan_given(self._pool, call, loaded, entry)
        for item in planned:
            self.remember(call, item)
        return planned

    async def _plan_frames(self, call: Call, loaded: LoadedItem) -> list[Planned]:
        """Return a video that is shown as images as an item for each of its frames."""
        item, info = loaded.item, call.model.info
        if info.stateful_prompt:
            raise UnsupportedOptionError("This model numbers its images; send the video as one.")
        if not loaded.media or loaded.digest is None:
            raise FeatureNotFoundError("Nothing is held of this item; send its bytes.")
        given = call.request.mm_processor_kwargs or {}
        kwargs = effective_kwargs(info, item.modality, given, MediaOptions())
        job = work.job_item(loaded, kwargs, request_settings(given))
        plans = await self._pool.run(
            PlanFramesJob(info.name, job),
            deadline=call.deadline,
            priority=call.request.priority,
        )
        planned = []
        for plan in plans:
            # A frame is the same frame whatever chose it.
            told = {"frame_index": plan.state["frame_index"]}
            name = item_hash(
                item.modality, loaded.digest, info.fingerprint, kwargs, told, call.salt
            )
            planned.append(Planned(loaded, plan, name, job))
            self.remember(call, planned[-1])
        return planned

    @staticmethod
    def _check_modality(call: Call, loaded: LoadedItem) -> None:
        info = call.model.info
        if loaded.item.modality not in info.modalities:
            served = ", ".join(m.value for m in info.modalities)
            raise InvalidRequestError(f"{info.name} takes {served} only.")

    def _find_or_plan(self, call: Call, loaded: LoadedItem) -> _Begun:
        item, info = loaded.item, call.model.info
        given = call.request.mm_processor_kwargs or {}
        kwargs = effective_kwargs(info, item.modality, given, item.options)
        settings = request_settings(given)
        name = loaded.item_hash
        if name is None and loaded.digest is not None:
            options = {**item.options.given(), **settings}
            name = item_hash(
                item.modality, loaded.digest, info.fingerprint, kwargs, options, call.salt
            )
        job = work.job_item(loaded, kwargs, settings)
        plan = None if name is None else self._remembered(call, loaded, name)
        if plan is not None:
            return [Planned(loaded, plan, name, job)]

        async def make() -> list[Planned]:
            if loaded.url is not None:
                plan = await self._plan_url(call, loaded, loaded.url, kwargs, settings)
                return [Planned(loaded, plan, None, job)]
            if not loaded.media:
                raise FeatureNotFoundError("Nothing is held of this item; send its bytes.")
            planned = Planned(loaded, await self._plan_media(call, loaded, job), name, job)
            self.remember(call, planned)
            return [planned]

        return make

    async def _plan_media(self, call: Call, loaded: LoadedItem, job: JobItem) -> ItemPlan:
        """Plan an item whose bytes are there: by its size, or in a worker."""
        model = call.model.info
        info = self._sizes.read(model, loaded)
        if info is None:
            return await self._run(call, job)
        plan = self._sizes.find(model, info, job)
        if plan is None:
            plan = await self._run(call, job)
            self._sizes.learn(model, info, job, plan)
        return plan

    async def _run(self, call: Call, job: JobItem) -> ItemPlan:
        return await self._pool.run(
            PlanJob(call.model.info.name, job),
            deadline=call.deadline,
            priority=call.request.priority,
        )

    async def _plan_url(
        self,
        call: Call,
        loaded: LoadedItem,
        url: str,
        kwargs: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> ItemPlan:
        """Plan an image from as much of it as holds its header."""

        async def plan_bytes(medium: StagedMedia) -> ItemPlan:
            with medium:
                staged = replace(loaded, media=(medium,))
                job = work.job_item(staged, kwargs, settings)
                return await self._plan_media(call, staged, job)

        async def plan_head(head: bytes) -> ItemPlan | None:
            with self._staging.buffer(expected_bytes=len(head), max_bytes=len(head)) as buffer:
                await buffer.append(head)
                medium = await buffer.finish()
            try:
                return await plan_bytes(medium)
            except MediaDecodeError:
                return None  # perhaps there is more to read

        probed = await self._loader.probe_url(
            url, plan_head, modality=loaded.item.modality, max_bytes=self._max_bytes
        )
        if probed.value is None:
            # The header lies further behind, or the bytes are broken: the whole medium tells.
            return await plan_bytes(
                await self._loader.load(
                    url, modality=loaded.item.modality, max_bytes=self._max_bytes
                )
            )
        nbytes = probed.nbytes or probed.value.source.nbytes
        source = replace(probed.value.source, nbytes=nbytes, exact=False)
        return replace(probed.value, source=source, exact=False)

    def _remembered(self, call: Call, loaded: LoadedItem, name: str) -> ItemPlan | None:
        record = self._records.find(call.model.info.name, name, self._index(call, loaded))
        if record is None:
            return None
        if record.modality is not loaded.item.modality:
            raise FeatureNotFoundError(
                f"What is held under this hash is no {loaded.item.modality.value}."
            )
        return record.plan

    @staticmethod
    def _index(call: Call, loaded: LoadedItem) -> int:
        """Return what tells plans of one content apart: the place, where the prompt counts."""
        return loaded.item.index if call.model.info.stateful_prompt else 0


async def _settle(begun: Sequence[_Begun]) -> list[list[Planned] | BaseException]:
    """Return what came of every plan; a single one to be made needs no task of its own."""
    makers = [each for each in begun if callable(each)]
    made: list[list[Planned] | BaseException] = []
    if len(makers) == 1:
        try:
            made = [await makers[0]()]
        except (MmprepError, TransportError) as error:
            made = [error]
    elif makers:
        made = await asyncio.gather(*(make() for make in makers), return_exceptions=True)
    left = iter(made)
    return [next(left) if callable(each) else each for each in begun]


def _number(planned: Sequence[Planned]) -> None:
    """Count items within their modality anew: one medium may have become several."""
    counts: dict[Modality, int] = {}
    for each in planned:
        item = each.loaded.item
        index = counts.get(item.modality, 0)
        counts[item.modality] = index + 1
        if index != item.index:
            each.loaded = replace(each.loaded, item=replace(item, index=index))
