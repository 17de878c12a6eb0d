"""Plan, execute, pack: the way of one request through the service.

Each stage has one type in and one out: collect the items, load their bytes, plan each from its
header, expand the prompt, have the features in the store, answer. A stage is finished for all items
before its failures are told. The event loop only waits: media are read and processed in workers,
text is encoded in threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, TypeVar

import numpy as np

from app.answer import Answer
from app.call import Call, Expanded, Planned
from app.catalog import Catalog
from app.config import Settings
from app.devices import DeviceStore
from app.execution import Execution, Made
from app.given_items import check_offsets, expand_around, own_ids
from app.items import check_count, collect
from app.jobs import EncodeJob, RenderJob
from app.leasing import Placed
from app.media import LoadedItem, MediaStage, Uploads
from app.options import check, choose_transport, resolve_dtype
from app.packing import Packer
from app.planning import Planner
from app.pool import WorkerPool
from app.schemas import MEDIA_FIELDS, PreprocessRequest, WireIdsUpload
from app.store import FeatureStore, Had
from app.timing import Timings
from processors.errors import InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from processors.kwargs import request_settings
from processors.positions import compute_positions
from processors.prompt import ExpandedPrompt
from processors.tokenizing import NotRememberedError
from processors.types import ChatInput, ItemPlan, Modality, RenderedPrompt

T = TypeVar("T")
MAX_ROUNDS = 3
"""Times a request is planned: once, and again where fewer frames decode than a header promised."""
SHORT_PROMPT = 16_384
"""Characters or ids of a prompt that is searched on the loop, in some tens of microseconds."""
FEW_ITEMS = 8
"""Items of a short prompt that is expanded on the loop where its tokens are remembered, in about
0.1 ms: a hop to a thread would cost more."""
MAX_TOKENS_PER_CHAR = 32
"""More than any tokenizer makes of a character, normalisation and spelling by bytes included."""
Source = RenderedPrompt | np.ndarray | None
"""What the prompt is before expansion: text, ids, or nothing for models without text."""


class Pipeline:
    """Runs requests; one per service, belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        consumer: Mapping[str, Any],
        catalog: Catalog,
        pool: WorkerPool,
        store: FeatureStore,
        media: MediaStage,
        planner: Planner,
        execution: Execution,
        packer: Packer,
        devices: DeviceStore | None,
        executor: Executor,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._catalog = catalog
        self._pool = pool
        self._store = store
        self._media = media
        self._planner = planner
        self._execution = execution
        self._packer = packer
        self._devices = devices
        self._executor = executor
        self._background: set[asyncio.Task[None]] = set()

    def open(
        self,
        request: PreprocessRequest,
        request_id: str,
        received: float,
        timings: Timings,
        *,
        key_id: str,
        base_url: str,
    ) -> Call:
        """Check a request as far as it can be without its media.

        Args:
            request: As it was parsed.
            request_id: Its name.
            received: When it came, on the event loop's clock.
            timings: Made when it came.
            key_id: Who asks.
            base_url: Where this server is reached.

        Raises:
            Any error of `app.options` and `app.items`.
        """
        model = self._catalog.find(request.model)
        check(request, model, templates_allowed=self._settings.server.request_templates)
        limits = self._settings.limits
        budget_s = limits.request_s
        if request.deadline_ms is not None:
            budget_s = min(budget_s, request.deadline_ms / 1000)
        collected = collect(request, max_items=limits.items)
        return Call(
            # The media stand in what was collected, until they are loaded.
            request=request.model_copy(update=dict.fromkeys(MEDIA_FIELDS)),
            request_id=request_id,
            model=model,
            collected=collected,
            choice=choose_transport(
                request,
                self._settings.transport,
                self._consumer,
                None if self._devices is None else self._devices.device_uuid,
            ),
            dtype=resolve_dtype(request, model),
            deadline=received + budget_s,
            timings=timings,
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
            planned = await self._planner.plan_all(call, loaded)
            # An entry may stand for many items.
            check_count(len(planned), self._settings.limits.items)
            return await self._answer(call, planned, source)
        finally:
            _release(loaded)

    async def _gather(self, call: Call, uploads: Uploads) -> tuple[list[LoadedItem], Source]:
        """Load the media while a chat is rendered; a prompt is checked before any loading."""
        chat = call.collected.chat
        if chat is None:
            source = await self._read_prompt(call, uploads)
            return await self._load(call, uploads), source
        render = asyncio.create_task(self._render(call, chat))
        try:
            loaded = await self._load(call, uploads)
            try:
                return loaded, await render
            except BaseException:
                _release(loaded)
                raise
        finally:
            render.cancel()
            # Its failure is told where it was awaited; a load that failed first goes before it.
            await asyncio.gather(render, return_exceptions=True)

    async def _load(self, call: Call, uploads: Uploads) -> list[LoadedItem]:
        with call.timings.stage("load"):
            headers_only = call.choice.name == "none" and not call.request.plan_hash
            return await self._media.load(
                call.collected.items, uploads, call.salt, headers_only=headers_only
            )

    async def _render(self, call: Call, chat: ChatInput) -> RenderedPrompt:
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
        elif (ids := own_ids(call)) is not None:
            source = np.array(ids, dtype=np.int32)
        elif call.model.info.placeholders:
            raise InvalidRequestError("Give one of prompt, input_ids, messages.", "prompt")
        await self._check_counts(call, source)
        return source

    async def _check_counts(self, call: Call, source: Source) -> None:
        """Refuse a prompt whose placeholders do not match the media, before any work on them."""
        request = call.request
        if source is None or request.lenient or request.expanded is not False:
            return
        # How many items a preprocessed entry stands for, its tensors tell.
        if call.collected.preprocessed:
            return
        # The sound of a video stands in its video's placeholder; the expansion pairs them.
        if request_settings(request.mm_processor_kwargs or {}).get("use_audio_in_video"):
            return
        counts = {m: call.collected.count(m) for m in Modality}
        length = len(source.text) if isinstance(source, RenderedPrompt) else len(source)
        if length <= SHORT_PROMPT:
            # A search for placeholders, no tokenizing: a hop to a thread would cost more.
            call.model.encoder.check_counts(source, counts)
        else:
            await self._in_thread(lambda: call.model.encoder.check_counts(source, counts))

    async def _answer(self, call: Call, planned: list[Planned], source: Source) -> Answer:
        for _ in range(MAX_ROUNDS):
            if call.choice.name == "none":
                return self._packer.planned(
                    call, planned, await self._expand(call, planned, source)
                )
            begins = not call.request.wait and call.choice.name in ("shm", "ref")
            # What may turn out to have no codes waits to be decoded.
            begins = begins and call.request.encoding == "plain"
            if begins and all(item.plan.exact for item in planned):
                return await self._begin(call, planned, await self._expand(call, planned, source))
            expanded, made = await self._expand_and_make(call, planned, source)
            try:
                again = self._execution.take_new_plans(call, planned, made.outcomes)
            except BaseException:
                made.permit.release()
                raise
            if not again:
                return await self._pack(call, planned, expanded, made)
            made.permit.release()
        raise InvalidRequestError("A video decodes differently each time it is read.")

    async def _expand_and_make(
        self, call: Call, planned: Sequence[Planned], source: Source
    ) -> tuple[Expanded, Made]:
        """Expand the prompt and have the features, at once where the prompt cannot be refused.

        The prompt's error goes before those of the items.
        """
        remembered = self._expand_remembered(call, planned, source)
        if remembered is not None:
            return remembered, await self._execution.make(call, planned)
        if not self._is_surely_short(call, planned, source):
            expanded = await self._expand_anew(call, planned, source)
            return expanded, await self._execution.make(call, planned)
        making = asyncio.create_task(self._execution.make(call, planned))
        try:
            expanded = await self._expand_anew(call, planned, source)
            return expanded, await making
        except BaseException:
            making.cancel()
            await asyncio.wait((making,))
            if not making.cancelled() and making.exception() is None:
                self._execution.let_go(making.result())
            raise

    def _is_surely_short(self, call: Call, planned: Sequence[Planned], source: Source) -> bool:
        """Return whether an expanded prompt must be within its limit, whatever the tokenizer does.

        What would be refused for its length is refused before anything is decoded.
        """
        if source is None:
            return True
        if isinstance(source, RenderedPrompt):
            num_tokens = MAX_TOKENS_PER_CHAR * len(source.text)
        else:
            num_tokens = len(source)
        for item in planned:
            parts = item.plan.replacement or ()
            num_tokens += item.plan.num_tokens + sum(
                MAX_TOKENS_PER_CHAR * len(part.text) for part in parts
            )
        return num_tokens <= self._most_tokens(call)

    def _most_tokens(self, call: Call) -> int:
        most = self._settings.limits.prompt_tokens
        if call.request.max_prompt_tokens is not None:
            most = min(most, call.request.max_prompt_tokens)
        return most

    async def _pack(
        self,
        call: Call,
        planned: Sequence[Planned],
        expanded: Expanded,
        made: Made,
    ) -> Answer:
        """Answer with features, on the device where that was asked for."""
        outcomes, permit = made.outcomes, made.permit
        if call.choice.name != "cuda_ipc" or self._devices is None:
            return self._packer.executed(call, planned, expanded, outcomes, permit)
        pool = self._devices.pool
        stored = [outcome.stored for outcome in outcomes if isinstance(outcome, Had)]
        try:
            regions = await self._devices.place([(s, self._store.view(s)) for s in stored])
        except BaseException:
            for each in stored:
                self._store.arena.unpin(each.region)
            permit.release()
            raise
        try:
            by_key = dict(zip((s.key for s in stored), regions, strict=True))
            placed = Placed(by_key, pool.location)
            return self._packer.executed(call, planned, expanded, outcomes, permit, placed)
        finally:
            # The lease holds them now.
            for region in regions:
                pool.unpin(region)

    async def _begin(self, call: Call, planned: Sequence[Planned], expanded: Expanded) -> Answer:
        """Answer while the features are being made; the permit is held until they are."""
        permit = await self._execution.admit(call, planned)
        try:
            stored = await self._execution.begin(call, planned)
        except BaseException:
            permit.release()
            raise
        keys = [s.key for s in stored if s is not None]

        async def attend() -> None:
            with permit:
                waits = (self._store.wait(key) for key in keys)
                await asyncio.gather(*waits, return_exceptions=True)

        task = asyncio.create_task(attend())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return self._packer.begun(call, planned, expanded, stored, lambda: None)

    async def _expand(self, call: Call, planned: Sequence[Planned], source: Source) -> Expanded:
        remembered = self._expand_remembered(call, planned, source)
        if remembered is not None:
            return remembered
        return await self._expand_anew(call, planned, source)

    async def _expand_anew(
        self, call: Call, planned: Sequence[Planned], source: Source
    ) -> Expanded:
        if source is None:
            return Expanded()
        with call.timings.stage("expand"):
            if isinstance(source, RenderedPrompt) and call.model.encoder.needs_worker:
                return await self._expand_elsewhere(call, planned, source)
            return await self._in_thread(lambda: self._expand_now(call, planned, source))

    def _expand_remembered(
        self, call: Call, planned: Sequence[Planned], source: Source
    ) -> Expanded | None:
        """Return a short prompt expanded by what is remembered of its text, tokenizing nothing.

        None where something would have to be tokenized, or it would take the loop too long.
        """
        if not isinstance(source, RenderedPrompt) or len(source.text) > SHORT_PROMPT:
            return None
        if len(planned) > FEW_ITEMS or call.request.positions or call.model.encoder.needs_worker:
            return None
        with call.timings.stage("expand"):
            try:
                return self._expand_now(call, planned, source, from_memory=True)
            except NotRememberedError:
                return None

    async def _expand_elsewhere(
        self, call: Call, planned: Sequence[Planned], source: RenderedPrompt
    ) -> Expanded:
        """Expand a text prompt whose tokenizer only a worker has: it encodes, ids are expanded."""
        request, encoder = call.request, call.model.encoder

        plans = [item.plan for item in planned]

        def prepare() -> tuple[RenderedPrompt, list[ItemPlan]]:
            times = _times_shown(call, planned)
            repeated = encoder.repeat_in_text(source, Modality.IMAGE, times)
            return encoder.for_worker(repeated, plans, lenient=request.lenient)

        def expand(ids: list[int], cores: list[ItemPlan]) -> Expanded:
            prompt = encoder.expand_ids(
                np.array(ids, dtype=np.int32),
                cores,
                lenient=request.lenient,
                max_tokens=self._most_tokens(call),
            )
            return self._checked(call, planned, prompt, source)

        written, cores = await self._in_thread(prepare)
        job = EncodeJob(call.model.info.name, written)
        ids = await self._pool.run(job, deadline=call.deadline, priority=request.priority)
        return await self._in_thread(lambda: expand(ids, cores))

    def _expand_now(
        self,
        call: Call,
        planned: Sequence[Planned],
        source: RenderedPrompt | np.ndarray,
        *,
        from_memory: bool = False,
    ) -> Expanded:
        request, encoder = call.request, call.model.encoder
        most = self._most_tokens(call)
        times = _times_shown(call, planned)
        if isinstance(source, RenderedPrompt):
            prompt = encoder.expand_text(
                encoder.repeat_in_text(source, Modality.IMAGE, times),
                [item.plan for item in planned],
                lenient=request.lenient,
                max_tokens=most,
                from_memory=from_memory,
            )
        else:
            prompt = expand_around(
                encoder.repeat_in_ids(source, Modality.IMAGE, times),
                planned,
                lambda ids, items: encoder.expand_ids(
                    ids,
                    [item.plan for item in items],
                    expanded=_expansion(request),
                    lenient=request.lenient,
                    max_tokens=most,
                ),
            )
        return self._checked(call, planned, prompt, source)

    def _checked(
        self,
        call: Call,
        planned: Sequence[Planned],
        prompt: ExpandedPrompt,
        source: RenderedPrompt | np.ndarray,
    ) -> Expanded:
        """Return an expanded prompt with its positions, checked against its limits.

        Raises:
            PlaceholderMismatchError: If offsets given are not where the items stand.
            PromptTooLongError: If it is too long.
        """
        if call.collected.preprocessed:
            check_offsets(planned, prompt.placements)
        most = self._most_tokens(call)
        if len(prompt.input_ids) > most:
            raise PromptTooLongError(
                f"The expanded prompt has {len(prompt.input_ids)} tokens; at most {most} are "
                "allowed.",
                "prompt" if isinstance(source, RenderedPrompt) else "input_ids",
            )
        positions = None
        if call.request.positions:
            plans = [item.plan for item in planned]
            positions = compute_positions(call.model.info, prompt, plans)
        text = source.text if isinstance(source, RenderedPrompt) else None
        return Expanded(prompt, positions, text if call.request.return_prompt else None)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)


def _times_shown(call: Call, planned: Sequence[Planned]) -> list[int]:
    """Return how often each image's placeholder stands; nothing where all stand once.

    That of a video shown as images stands once a frame.
    """
    images = [item for item in call.collected.items if item.modality is Modality.IMAGE]
    if not any(item.shows_video for item in images):
        return []
    if call.request.expanded is not False:
        raise UnsupportedOptionError(
            "A video shown as images needs ids that are not expanded.", "expanded"
        )
    shown = Counter(item.loaded.item.param for item in planned)
    return [shown[item.param] for item in images]


def _expansion(request: PreprocessRequest) -> Literal[False, True, "auto"]:
    """Return whether a request's ids are expanded; those of a preprocessed entry mostly are."""
    if request.input_ids is None and request.expanded is False:
        return "auto"
    return request.expanded


def _release(loaded: Sequence[LoadedItem]) -> None:
    for item in loaded:
        for medium in item.media:
            medium.release()


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
