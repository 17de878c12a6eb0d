"""The execute stage: features of every item in the store, made where they are not there yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app import work
from app.admission import Admission, Permit, Work
from app.call import Call, Planned
from app.derive import Deriver
from app.describe import describe_tensors
from app.documents import item_metadata
from app.errors import CodedError, FeatureNotFoundError, ItemErrors
from app.jobs import CopyJob, ExecuteJob, Replanned
from app.media import at_item
from app.options import LEASED
from app.planning import Planner
from app.pool import WorkerPool
from app.staging import StagedMedia
from app.store import FeatureStore, Had, Key, Stored, Wanted
from processors.errors import InvalidRequestError, MmprepError
from processors.types import ProcessReport, TensorSpec
from transport.arena import Region
from transport.errors import TransportError
from transport.leases import LeaseTable
from transport.safetensors import DocumentLayout, TensorEntry, build_layout, data_offsets

Outcome = Had | BaseException | None
"""An item's features, its error, or None where the caller holds them."""


@dataclass(frozen=True, slots=True)
class Made:
    """The outcome of every item, features pinned once each, and the request's permit."""

    outcomes: list[Outcome]
    permit: Permit


class Execution:
    """Has the features of requests made.

    Args:
        pool: Does the work.
        store: Holds the features.
        planner: Takes over what is planned once more.
        admission: Lets work in.
        leases: Checks quotas before anything is made.
        deriver: Makes variants of what is stored.
    """

    def __init__(
        self,
        pool: WorkerPool,
        store: FeatureStore,
        planner: Planner,
        admission: Admission,
        leases: LeaseTable,
        deriver: Deriver,
    ) -> None:
        self._pool = pool
        self._store = store
        self._planner = planner
        self._admission = admission
        self._leases = leases
        self._deriver = deriver

    async def admit(self, call: Call, planned: Sequence[Planned]) -> Permit:
        """Wait for the request's turn, weighed by what is still to be made.

        Raises:
            StoreFullError: If the answer's lease would exceed its owner's quota.
            ItemTooLargeError: If it alone would.

        Cancellation: Leaves the queue.
        """
        sent = [item for item in planned if not _is_known(call, item)]
        if call.choice.name in LEASED:
            nbytes = sum(_nbytes(call, item) for item in sent)
            self._leases.require_quota(nbytes, owner=call.key_id)
        total = Work()
        for item in sent:
            pixels = work.source_pixels(item.plan)
            total += Work(0 if self._is_stored(call, item) else pixels, _nbytes(call, item))
        with call.timings.stage("queue"):
            return await self._admission.acquire(total, call.request.priority)

    async def make(self, call: Call, planned: Sequence[Planned]) -> Made:
        """Wait for the request's turn, then have its features.

        Raises:
            What `admit` and `have` raise; nothing is held then.

        Cancellation: Nothing stays held.
        """
        permit = await self.admit(call, planned)
        try:
            return Made(await self.have(call, planned), permit)
        except BaseException:
            permit.release()
            raise

    def let_go(self, made: Made) -> None:
        """Give back everything of a request that is not answered."""
        for outcome in made.outcomes:
            _unpin(self._store, outcome)
        made.permit.release()

    async def have(self, call: Call, planned: Sequence[Planned]) -> list[Outcome]:
        """Return the outcome of every item, features pinned once each.

        Raises:
            StoreFullError: If features in use leave no room.
            ItemTooLargeError: If the request can never fit.
        """
        wanted = self._wanted(call, planned)
        had = iter(await self._store.have([w for w in wanted if w is not None]))
        outcomes: list[Outcome] = [None if w is None else next(had) for w in wanted]
        try:
            for place, (item, outcome) in enumerate(zip(planned, outcomes, strict=True)):
                if self._has_others_plan(call, item, outcome):
                    error = await self._plan_again(call, item)
                    _unpin(self._store, outcome)
                    outcomes[place] = error
        except BaseException:
            for outcome in outcomes:
                _unpin(self._store, outcome)
            raise
        return outcomes

    async def begin(self, call: Call, planned: Sequence[Planned]) -> list[Stored | None]:
        """Begin what is missing without waiting; None where the caller holds the features.

        Raises:
            StoreFullError: If features in use leave no room.
            ItemTooLargeError: If the request can never fit.
        """
        wanted = self._wanted(call, planned)
        begun = iter(await self._store.begin([w for w in wanted if w is not None]))
        return [None if w is None else next(begun) for w in wanted]

    def take_new_plans(
        self, call: Call, planned: Sequence[Planned], outcomes: Sequence[Outcome]
    ) -> bool:
        """Take over new plans of items that decode otherwise than their headers promised.

        Returns:
            Whether there were any; everything had is let go then, to be had again.

        Raises:
            ItemErrors: If items failed for other reasons; everything had is let go.
        """
        broken = [o for o in outcomes if isinstance(o, BaseException)]
        if not broken:
            return False
        for outcome in outcomes:
            _unpin(self._store, outcome)
        failed = [
            at_item(outcome, item.loaded.item.param)
            for item, outcome in zip(planned, outcomes, strict=True)
            if isinstance(outcome, CodedError)
        ]
        for error in broken:
            if not isinstance(error, CodedError | work.ReplannedError):
                raise error
        if failed:
            raise ItemErrors(failed)
        for item, outcome in zip(planned, outcomes, strict=True):
            if isinstance(outcome, work.ReplannedError):
                item.plan = outcome.plan
                self._planner.remember(call, item)
        return True

    def _has_others_plan(self, call: Call, item: Planned, outcome: Outcome) -> bool:
        """Return whether an outcome is of what decodes, and the item's plan of what should.

        Features are shared by content. Plans are not: what a placeholder becomes follows from the
        model's tokenizer, too.
        """
        if isinstance(outcome, Had):
            return _is_outdated(item, outcome.stored)
        if not isinstance(outcome, work.ReplannedError):
            return False
        return outcome.planned_for != self._planner.place_of(call, item)

    async def _plan_again(self, call: Call, item: Planned) -> BaseException:
        """Return the error that tells an item's own plan of what decodes.

        Raises:
            StoreFullError: If there is no room to try it.
            DeadlineExceededError: If the request's time is up.
        """
        known = self._planner.remembered(call, item)
        if known is not None and known.exact and known != item.plan:
            return work.ReplannedError(known, self._planner.place_of(call, item))
        if not item.loaded.media:
            return FeatureNotFoundError("The features are another model's; send the item's bytes.")
        want = self._want(call, item)
        [region] = self._store.arena.reserve([(None, want.layout.nbytes)])
        try:
            result = await self._pool.run(
                _job(call, item, want, region),
                deadline=call.deadline,
                priority=call.request.priority,
                cost=work.source_pixels(item.plan),
            )
        except (MmprepError, TransportError) as error:
            return error
        finally:
            self._store.arena.unpin(region)
        if isinstance(result, Replanned):
            return work.ReplannedError(result.plan, self._planner.place_of(call, item))
        return InvalidRequestError("The medium decodes differently each time it is read.")

    def _is_stored(self, call: Call, item: Planned) -> bool:
        return self._store.find(_key(call, item)) is not None

    def _wanted(self, call: Call, planned: Sequence[Planned]) -> list[Wanted | None]:
        return [None if _is_known(call, item) else self._want(call, item) for item in planned]

    def _want(self, call: Call, item: Planned) -> Wanted:
        tensors = call.tensors_of(item)
        stored = self._store.find(_key(call, item))
        # A layout follows from the tensors alone.
        is_known = stored is not None and stored.tensors == tensors
        layout = stored.layout if stored is not None and is_known else _layout_of(tensors)
        held: list[StagedMedia] = []
        bases: list[Stored] = []

        def hold() -> None:
            base = self._deriver.base_of(_key(call, item))
            if base is not None and not _is_outdated(item, base):
                # Rounding what is stored costs less than processing the medium again.
                self._store.arena.pin(base.region)
                bases.append(base)
                return
            held.extend(medium.share() for medium in item.loaded.media)

        def drop() -> None:
            while bases:
                self._store.arena.unpin(bases.pop().region)
            while held:
                held.pop().release()

        async def make(region: Region) -> ProcessReport:
            if bases:
                return await self._deriver.fill(bases[0], region, want)
            if not held:
                raise FeatureNotFoundError("The features are gone; send the item's bytes.")
            job = _job(call, item, want, region)
            # No deadline: others may wait for the same features. Who gives up leaves the store's
            # waiting list, and the last one to leave drops the job.
            result = await self._pool.run(
                job,
                deadline=None,
                priority=call.request.priority,
                cost=work.source_pixels(item.plan),
            )
            if isinstance(result, Replanned):
                raise work.ReplannedError(result.plan, self._planner.place_of(call, item))
            return result.report

        want = Wanted(_key(call, item), item.plan, tensors, layout, make, hold, drop)
        return want


def _layout_of(tensors: Sequence[TensorSpec]) -> DocumentLayout:
    entries = [TensorEntry(t.name, t.dtype, t.shape) for t in tensors]
    return build_layout(entries, item_metadata(describe_tensors(tensors, data_offsets(entries))))


def _key(call: Call, item: Planned) -> Key:
    return (item.hash or "", call.dtype, call.encoding_of(item))


def _is_outdated(item: Planned, stored: Stored) -> bool:
    """Return whether stored features are of what decodes, and the item's plan of what should."""
    return stored.plan.exact and not item.plan.exact


def _unpin(store: FeatureStore, outcome: Outcome) -> None:
    """Let go of an item's features, where there are any."""
    if isinstance(outcome, Had):
        store.arena.unpin(outcome.stored.region)


def _nbytes(call: Call, item: Planned) -> int:
    """Return the bytes of an item's tensors as they are asked for."""
    return sum(tensor.nbytes for tensor in call.tensors_of(item))


def _is_known(call: Call, item: Planned) -> bool:
    """Return whether the caller holds an item's features already."""
    return item.hash is not None and item.hash in (call.request.known or ())


def _job(call: Call, item: Planned, want: Wanted, region: Region) -> ExecuteJob | CopyJob:
    """Return the job that makes an item's features."""
    model = call.model.info.name
    if item.slices is None:
        return work.execute_job(model, item.job, item.plan, want.tensors, want.layout, region)
    document = item.job.media[0]
    return work.copy_job(model, document, item.slices, want.tensors, want.layout, region)
