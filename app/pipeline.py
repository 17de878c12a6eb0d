"""Plan, execute, pack: the way of one request through the service.

Each stage has one type in and one out: `collect` the items, load their bytes, plan each from its
header, expand the prompt, have the features in the store, answer. A stage is finished for all items
before its failures are told. The event loop only waits: media are read and processed in workers,
text is encoded in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from app import work
from app.admission import Admission, Permit, Work
from app.answer import Answer, AnswerItem, item_metadata
from app.catalog import Catalog, ServedModel
from app.config import Settings
from app.describe import describe_tensors, in_prompt_order, with_dtype
from app.errors import CodedError, FeatureNotFoundError, ItemErrors
from app.items import Collected, collect
from app.jobs import JobItem, PlanJob, RenderJob, Replanned
from app.leasing import Leasing
from app.media import Holdings, LoadedItem, MediaStage, Uploads, at_item
from app.options import LEASED, Choice, check, choose_transport, resolve_dtype
from app.pool import WorkerPool
from app.records import ItemRecord, Records
from app.schemas import PreprocessRequest, WireIdsUpload
from app.staging import StagedMedia
from app.store import FeatureStore, Had, Key, Stored, Wanted
from app.timing import Timings
from processors.errors import InvalidRequestError, PromptTooLongError
from processors.hashing import item_hash
from processors.kwargs import effective_kwargs, request_settings
from processors.positions import Positions, compute_positions
from processors.prompt import ExpandedPrompt
from processors.types import ItemPlan, Modality, ProcessReport, RenderedPrompt
from transport.arena import Region
from transport.safetensors import TensorEntry, build_layout, data_offsets

T = TypeVar("T")
MAX_ROUNDS = 3
"""Times a request is planned: once, and again where fewer frames decode than a header promised."""


@dataclass(slots=True)
class Planned:
    """An item with its plan."""

    loaded: LoadedItem
    plan: ItemPlan
    hash: str | None
    job: JobItem


@dataclass(frozen=True, slots=True)
class Call:
    """One request under way."""

    request: PreprocessRequest
    request_id: str
    model: ServedModel
    collected: Collected
    choice: Choice
    dtype: str
    deadline: float
    """On the event loop's clock."""
    timings: Timings
    key_id: str = ""
    """Who asks, for quotas; never the key itself."""
    base_url: str = ""

    @property
    def salt(self) -> str:
        """The cache salt, empty where none was given."""
        return self.request.cache_salt or ""


@dataclass(frozen=True, slots=True)
class Expanded:
    """The prompt as the engine takes it; all None for models without text."""

    prompt: ExpandedPrompt | None = None
    positions: Positions | None = None
    text: str | None = None
    """The unexpanded prompt, where it was asked for."""


Source = RenderedPrompt | np.ndarray | None
"""What the prompt is before expansion: text, ids, or nothing for models without text."""


class Pipeline:
    """Runs requests; one per service, belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        instance: str,
        consumer: Mapping[str, Any],
        catalog: Catalog,
        pool: WorkerPool,
        store: FeatureStore,
        media: MediaStage,
        records: Records,
        holdings: Holdings,
        admission: Admission,
        leasing: Leasing,
        executor: Executor,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._consumer = consumer
        self._catalog = catalog
        self._pool = pool
        self._store = store
        self._media = media
        self._records = records
        self._holdings = holdings
        self._admission = admission
        self._leasing = leasing
        self._executor = executor

    def open(
        self,
        request: PreprocessRequest,
        request_id: str,
        received: float,
        *,
        key_id: str,
        base_url: str,
    ) -> Call:
        """Check a request as far as it can be without its media.

        Raises:
            Any error of `app.options` and `app.items`.
        """
        model = self._catalog.find(request.model)
        check(request, model, templates_allowed=self._settings.server.request_templates)
        limits = self._settings.limits
        budget_s = limits.request_s
        if request.deadline_ms is not None:
            budget_s = min(budget_s, request.deadline_ms / 1000)
        return Call(
            request=request,
            request_id=request_id,
            model=model,
            collected=collect(request, max_items=limits.items),
            choice=choose_transport(request, self._settings.transport, self._consumer),
            dtype=resolve_dtype(request, model),
            deadline=received + budget_s,
            timings=Timings(received),
            key_id=key_id,
            base_url=base_url,
        )

    async def run(self, call: Call, uploads: Uploads) -> Answer:
        """Return the answer of a request; the caller closes it.

        Raises:
            ItemErrors: If items failed, all of one stage.
            CodedError: Any other failure.

        Cancellation: What is queued for this request alone is dropped; nothing stays held.
        """
        loaded, source = await self._gather(call, uploads)
        try:
            uploads.check_all_used()
            planned = await self._plan_all(call, loaded)
            return await self._answer(call, planned, source)
        finally:
            for item in loaded:
                for medium in item.media:
                    medium.release()

    async def _gather(self, call: Call, uploads: Uploads) -> tuple[list[LoadedItem], Source]:
        """Load the media while a chat is rendered; a prompt is checked before any loading."""
        chat = call.collected.chat
        render = None if chat is None else asyncio.create_task(self._render(call))
        try:
            source = await self._read_prompt(call, uploads) if chat is None else None
            with call.timings.stage("load"):
                loaded = await self._media.load(call.collected.items, uploads, call.salt)
            if render is None:
                return loaded, source
            try:
                return loaded, await render
            except BaseException:
                for item in loaded:
                    for medium in item.media:
                        medium.release()
                raise
        finally:
            if render is not None:
                render.cancel()

    async def _render(self, call: Call) -> RenderedPrompt:
        chat = call.collected.chat
        if chat is None:
            raise InvalidRequestError("There are no messages to render.", "messages")
        job = RenderJob(call.model.info.name, chat)
        rendered = await self._pool.run(job, deadline=call.deadline, priority=call.request.priority)
        await self._check_counts(call, rendered)
        return rendered

    async def _read_prompt(self, call: Call, uploads: Uploads) -> Source:
        request = call.request
        source: Source = None
        if request.prompt is not None:
            source = RenderedPrompt(((request.prompt, True),))
        elif isinstance(request.input_ids, WireIdsUpload):
            part = uploads.take(request.input_ids.upload, "input_ids.upload")
            source = _read_ids(part.view())
        elif request.input_ids is not None:
            source = np.array(request.input_ids, dtype=np.int32)
        elif call.model.info.placeholders:
            raise InvalidRequestError("Give one of prompt, input_ids, messages.", "prompt")
        await self._check_counts(call, source)
        return source

    async def _check_counts(self, call: Call, source: Source) -> None:
        """Refuse a prompt whose placeholders do not match the media, before any work on them."""
        if source is None or call.request.lenient or call.request.expanded is not False:
            return
        counts = {m: call.collected.count(m) for m in Modality}
        await self._in_thread(lambda: call.model.encoder.check_counts(source, counts))

    async def _plan_all(self, call: Call, loaded: Sequence[LoadedItem]) -> list[Planned]:
        with call.timings.stage("plan"):
            results = await asyncio.gather(
                *(self._plan(call, item) for item in loaded), return_exceptions=True
            )
        return _all_or_errors(loaded, results)

    async def _plan(self, call: Call, loaded: LoadedItem) -> Planned:
        item, info = loaded.item, call.model.info
        if item.modality not in info.modalities:
            raise InvalidRequestError(
                f"{info.name} takes {', '.join(m.value for m in info.modalities)} only."
            )
        kwargs = effective_kwargs(
            info, item.modality, call.request.mm_processor_kwargs or {}, item.options
        )
        settings = request_settings(call.request.mm_processor_kwargs or {})
        name = loaded.item_hash
        if name is None and loaded.digest is not None:
            options = {**item.options.given(), **settings}
            name = item_hash(
                item.modality, loaded.digest, info.fingerprint, kwargs, options, call.salt
            )
        job = work.job_item(loaded, kwargs, settings)
        index = item.index if info.stateful_prompt else 0
        record = self._records.find(name, index) if name is not None else None
        if record is not None and record.fingerprint == info.fingerprint:
            if record.modality is not item.modality:
                raise FeatureNotFoundError(f"What is held under this hash is no {item.modality}.")
            return Planned(loaded, record.plan, name, job)
        if not loaded.media:
            raise FeatureNotFoundError("Nothing is held of this item; send its bytes.")
        plan = await self._pool.run(
            PlanJob(info.name, job), deadline=call.deadline, priority=call.request.priority
        )
        self._remember(call, loaded, plan, name)
        return Planned(loaded, plan, name, job)

    def _remember(self, call: Call, loaded: LoadedItem, plan: ItemPlan, name: str | None) -> None:
        if name is None or loaded.digest is None:
            return
        index = loaded.item.index if call.model.info.stateful_prompt else 0
        fingerprint = call.model.info.fingerprint
        record = ItemRecord(name, loaded.digest, loaded.item.modality, fingerprint, plan)
        self._records.remember(record, index)

    async def _answer(self, call: Call, planned: list[Planned], source: Source) -> Answer:
        for _ in range(MAX_ROUNDS):
            expanded = await self._expand(call, planned, source)
            if call.choice.name == "none":
                return self._pack_planned(call, planned, expanded)
            permit = await self._admit(call, planned)
            try:
                outcomes = await self._execute(call, planned)
                again = self._replan(call, planned, outcomes)
            except BaseException:
                permit.release()
                raise
            if not again:
                return self._pack(call, planned, outcomes, expanded, permit)
            permit.release()
        raise InvalidRequestError("A video decodes differently each time it is read.")

    async def _expand(self, call: Call, planned: Sequence[Planned], source: Source) -> Expanded:
        if source is None:
            return Expanded()
        request, model = call.request, call.model
        plans = [p.plan for p in planned]

        def expand() -> Expanded:
            if isinstance(source, RenderedPrompt):
                prompt = model.encoder.expand_text(source, plans, lenient=request.lenient)
            else:
                prompt = model.encoder.expand_ids(
                    source, plans, expanded=request.expanded, lenient=request.lenient
                )
            most = min(
                request.max_prompt_tokens or self._settings.limits.prompt_tokens,
                self._settings.limits.prompt_tokens,
            )
            if len(prompt.input_ids) > most:
                raise PromptTooLongError(
                    f"The expanded prompt has {len(prompt.input_ids)} tokens; at most {most} "
                    "are allowed.",
                    "max_prompt_tokens" if request.max_prompt_tokens else "prompt",
                )
            positions = compute_positions(model.info, prompt, plans) if request.positions else None
            text = source.text if isinstance(source, RenderedPrompt) else None
            return Expanded(prompt, positions, text if request.return_prompt else None)

        with call.timings.stage("expand"):
            return await self._in_thread(expand)

    async def _admit(self, call: Call, planned: Sequence[Planned]) -> Permit:
        total = Work()
        for item in planned:
            known = item.hash is not None and self._store.find(self._key(call, item)) is not None
            total += Work(0 if known else work.source_pixels(item.plan), item.plan.feature_nbytes)
        with call.timings.stage("queue"):
            return await self._admission.acquire(total, call.request.priority)

    def _key(self, call: Call, item: Planned) -> Key:
        return (item.hash or "", call.dtype, "plain")

    def _is_known(self, call: Call, item: Planned) -> bool:
        return item.hash is not None and item.hash in set(call.request.known or ())

    async def _execute(
        self, call: Call, planned: Sequence[Planned]
    ) -> list[Had | BaseException | None]:
        """Return each item's features, its error, or None where the caller holds them."""
        wanted = [
            None if self._is_known(call, item) else self._want(call, item) for item in planned
        ]
        had = iter(await self._store.have([w for w in wanted if w is not None]))
        return [None if w is None else next(had) for w in wanted]

    def _want(self, call: Call, item: Planned) -> Wanted:
        tensors = with_dtype(item.plan.tensors, call.dtype if call.dtype != "float32" else None)
        entries = [TensorEntry(t.name, t.dtype, t.shape) for t in tensors]
        layout = build_layout(
            entries, item_metadata(describe_tensors(tensors, data_offsets(entries)))
        )
        held: list[StagedMedia] = []

        def drop() -> None:
            while held:
                held.pop().release()

        async def make(region: Region) -> ProcessReport:
            if not held:
                raise FeatureNotFoundError("The features are gone; send the item's bytes.")
            job = work.execute_job(
                call.model.info.name, item.job, item.plan, tensors, layout, region
            )
            # No deadline: others may wait for the same features. Who gives up leaves the store's
            # waiting list, and the last one to leave drops the job.
            result = await self._pool.run(
                job,
                deadline=None,
                priority=call.request.priority,
                cost=work.source_pixels(item.plan),
            )
            if isinstance(result, Replanned):
                raise work.ReplannedError(result.plan)
            return result.report

        return Wanted(
            self._key(call, item),
            item.plan,
            tensors,
            layout,
            make,
            hold=lambda: held.extend(m.share() for m in item.loaded.media),
            drop=drop,
        )

    def _replan(
        self, call: Call, planned: list[Planned], outcomes: Sequence[Had | BaseException | None]
    ) -> bool:
        """Take over new plans of items that decode otherwise than their headers promised.

        Returns:
            Whether there were any; everything had is let go then, to be had again.

        Raises:
            ItemErrors: If items failed for other reasons; everything had is let go.
        """
        new_plans = [o.plan if isinstance(o, work.ReplannedError) else None for o in outcomes]
        failed = [
            at_item(o, p.loaded.item.param)
            for p, o in zip(planned, outcomes, strict=True)
            if isinstance(o, CodedError)
        ]
        broken = [o for o in outcomes if isinstance(o, BaseException)]
        unexpected = [o for o in broken if not isinstance(o, CodedError | work.ReplannedError)]
        if broken:
            for outcome in outcomes:
                if isinstance(outcome, Had):
                    self._store.arena.unpin(outcome.stored.region)
        if unexpected:
            raise unexpected[0]
        if failed:
            raise ItemErrors(failed)
        for item, plan in zip(planned, new_plans, strict=True):
            if plan is not None:
                item.plan = plan
                self._remember(call, item.loaded, plan, item.hash)
        return bool(broken)

    def _pack_planned(
        self,
        call: Call,
        planned: Sequence[Planned],
        expanded: Expanded,
    ) -> Answer:
        if call.request.plan_hash:
            for item in planned:
                if item.hash is not None and item.loaded.digest is not None and item.loaded.media:
                    self._holdings.hold(item.hash, item.loaded.media, item.loaded.digest)
        statuses = ["planned"] * len(planned)
        items = self._items(call, planned, [None] * len(planned), statuses, expanded)
        return self._make_answer(call, planned, items, expanded)

    def _pack(
        self,
        call: Call,
        planned: Sequence[Planned],
        outcomes: Sequence[Had | BaseException | None],
        expanded: Expanded,
        permit: Permit,
    ) -> Answer:
        had = [o if isinstance(o, Had) else None for o in outcomes]
        statuses = [
            "known" if h is None else "cached" if h.report is None else "computed" for h in had
        ]
        for outcome in had:
            if outcome is not None and outcome.report is not None:
                call.timings.add("decode", outcome.report.decode_ms)
                call.timings.add("process", outcome.report.process_ms)
        stored = [None if h is None else h.stored for h in had]
        items = self._items(call, planned, stored, statuses, expanded)
        answer = self._make_answer(call, planned, items, expanded)
        regions = [s.region for s in stored if s is not None]
        revoke: Callable[[], None] | None = None

        def close(complete: bool) -> None:
            if revoke is not None and not complete:
                revoke()
            for region in regions:
                self._store.arena.unpin(region)
            permit.release()

        answer.on_close = close
        if call.choice.name in LEASED:
            try:
                revoke = self._leasing.grant(
                    call.request,
                    answer,
                    transport=call.choice.name,
                    owner=call.key_id,
                    base_url=call.base_url,
                )
            except BaseException:
                close(complete=False)
                raise
        return answer

    def _items(
        self,
        call: Call,
        planned: Sequence[Planned],
        stored: Sequence[Stored | None],
        statuses: Sequence[str],
        expanded: Expanded,
    ) -> list[AnswerItem]:
        placements = () if expanded.prompt is None else expanded.prompt.placements
        keys = [(p.loaded.item.modality, p.loaded.item.index) for p in planned]
        places = {(p.modality, p.index): p for p in placements}
        return [
            AnswerItem(
                modality=keys[n][0],
                index=keys[n][1],
                status=statuses[n],
                plan=planned[n].plan,
                placement=places.get(keys[n]),
                hash=planned[n].hash,
                digest=planned[n].loaded.digest,
                stored=stored[n],
            )
            for n in in_prompt_order(keys, placements)
        ]

    def _make_answer(
        self,
        call: Call,
        planned: Sequence[Planned],
        items: list[AnswerItem],
        expanded: Expanded,
    ) -> Answer:
        warnings = [
            (code, item.loaded.item.param, text)
            for item in planned
            for code, text in item.plan.warnings
        ]
        warnings += [
            ("transport_passed_over", "transport", f"{name}: {reason}")
            for name, reason in call.choice.passed_over
        ]
        if expanded.prompt is not None:
            warnings += [(code, "", text) for code, text in expanded.prompt.warnings]
        return Answer(
            request_id=call.request_id,
            instance=self._instance,
            model=call.model,
            prompt=expanded.prompt,
            items=items,
            inline=call.choice.name == "safetensors",
            warnings=warnings,
            passed_over=call.choice.passed_over,
            positions=expanded.positions,
            wants_positions=call.request.positions,
            prompt_text=expanded.text,
            timings_ms=call.timings.finish(),
        )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)


def _read_ids(view: memoryview) -> np.ndarray:
    """Return uploaded token ids, little-endian int32.

    Raises:
        InvalidRequestError: If the part is no whole number of ids, or one is negative.
    """
    if view.nbytes % 4:
        raise InvalidRequestError("The part's size is no multiple of 4 bytes.", "input_ids.upload")
    ids = np.frombuffer(view, dtype="<i4").astype(np.int32)
    if ids.size and ids.min() < 0:
        raise InvalidRequestError("Token ids are not negative.", "input_ids.upload")
    return ids


def _all_or_errors(
    loaded: Sequence[LoadedItem], results: Sequence[Planned | BaseException]
) -> list[Planned]:
    errors = [
        at_item(result, item.item.param)
        for item, result in zip(loaded, results, strict=True)
        if isinstance(result, CodedError)
    ]
    if errors:
        raise ItemErrors(errors)
    planned = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        planned.append(result)
    return planned
