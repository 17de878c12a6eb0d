"""Features by key: found, joined while in the making, or made; over the arena's regions.

One key is (item hash, dtype, encoding). What several requests want at once is computed once: the
first makes it, the others join and pin the same region. Work under way goes on while anyone waits;
what nobody waits for any more is given up unless it already runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass

from app.records import BoundedMap
from processors.types import ItemPlan, ProcessReport, TensorSpec
from transport.arena import Arena, Region
from transport.safetensors import DocumentLayout

Key = tuple[str, str, str]
"""(item hash, dtype of features, encoding)."""


MAX_FAILED = 1024
"""Failures of work nobody waited for that are remembered for who asks later."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One item's features in the store."""

    key: Key
    region: Region
    plan: ItemPlan
    tensors: tuple[TensorSpec, ...]
    """As stored: features in the key's dtype."""
    layout: DocumentLayout


def _nothing() -> None:
    """Hold or drop nothing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Features to have, and how to make them if they are not there."""

    key: Key
    plan: ItemPlan
    tensors: tuple[TensorSpec, ...]
    layout: DocumentLayout
    make: Callable[[Region], Coroutine[None, None, ProcessReport]]
    """Fills a region; when it returns or raises, nothing writes there any more."""
    hold: Callable[[], None] = _nothing
    """Called before the making begins, to keep what it reads."""
    drop: Callable[[], None] = _nothing
    """Called when the making has ended, however it did."""


@dataclass(frozen=True, slots=True)
class Had:
    """Features that were had, pinned once for the caller."""

    stored: Stored
    report: ProcessReport | None
    """What making them took; None where they were there already."""


class _Production:
    """Features in the making."""

    def __init__(self, stored: Stored, task: asyncio.Task[ProcessReport]) -> None:
        self.stored = stored
        self.task = task
        self.num_waiting = 0
        self.is_wanted = False
        """True where the work goes on though nobody waits: its result is fetched by hash."""
        self.is_given_up = False
        """True where nobody waits and it ends as soon as nothing writes any more; not joined."""


class FeatureStore:
    """Finds, joins and makes features; belongs to the event loop."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._stored: dict[Key, Stored] = {}
        self._productions: dict[Key, _Production] = {}
        self._failed: BoundedMap[Key, tuple[Stored, BaseException]] = BoundedMap(MAX_FAILED)
        arena.on_evict = self._forget

    def find(self, key: Key) -> Stored | None:
        """Return features that are ready; pin them before the next await."""
        stored = self._stored.get(key)
        region = self.arena.lookup(key)
        if stored is None or region is None or region.generation != stored.region.generation:
            return None
        return stored

    def variants(self, item_hash: str) -> list[Stored]:
        """Return every ready variant of an item."""
        return [s for key in list(self._stored) if key[0] == item_hash and (s := self.find(key))]

    def region_of(self, key: Key) -> Region | None:
        """Return what a lease of features holds: ready, in the making, or their making failed."""
        if (ready := self.find(key)) is not None:
            return ready.region
        if (production := self._productions.get(key)) is not None:
            return production.stored.region
        failed = self._failed.get(key)
        return failed[0].region if failed is not None else None

    def is_pending(self, key: Key) -> Stored | None:
        """Return features that are being made."""
        production = self._productions.get(key)
        return production.stored if production is not None else None

    def view(self, stored: Stored) -> memoryview:
        """Return the document's bytes; valid while pinned."""
        return self.arena.view(stored.region)

    async def have(self, wanted: Sequence[Wanted]) -> list[Had | BaseException]:
        """Return features for every wanted key, pinned once each, or the error of its making.

        All regions that must be made are reserved at once, before any is begun. The caller unpins
        each `Had`.

        Raises:
            StoreFullError: If features in use leave no room; nothing is begun.
            ItemTooLargeError: If the request can never fit; nothing is begun.

        Cancellation: Leaves what others wait for alone; nothing stays pinned for the caller.
        """
        await self._given_up_ended(wanted)
        ready, joined = self._begin(wanted)
        try:
            await asyncio.gather(
                *(asyncio.shield(p.task) for p in joined.values()), return_exceptions=True
            )
        except asyncio.CancelledError:
            for stored in ready.values():
                self.arena.unpin(stored.region)
            for production in joined.values():
                self._leave(production)
            raise
        outcomes = [self._outcome(w.key, ready, joined) for w in wanted]
        for stored in ready.values():
            self.arena.unpin(stored.region)
        for production in joined.values():
            self.arena.unpin(production.stored.region)
            production.num_waiting -= 1
        return outcomes

    async def begin(self, wanted: Sequence[Wanted]) -> list[Stored]:
        """Start making what is not there and do not wait; each is pinned once for the caller.

        Raises:
            StoreFullError: If features in use leave no room; nothing is begun.
            ItemTooLargeError: If the request can never fit; nothing is begun.

        Blocking: Waits for an earlier making that was given up and still writes.
        """
        await self._given_up_ended(wanted)
        ready, joined = self._begin(wanted)
        for production in joined.values():
            production.is_wanted = True
            production.num_waiting -= 1
        begun = {**ready, **{key: production.stored for key, production in joined.items()}}
        for place, want in enumerate(wanted):
            if want.key in {w.key for w in wanted[:place]}:
                self.arena.pin(begun[want.key].region)
        return [begun[w.key] for w in wanted]

    async def wait(self, key: Key) -> None:
        """Wait until features in the making are ready, or given up.

        Raises:
            Whatever their making raised.
        """
        production = self._productions.get(key)
        if production is not None:
            await asyncio.wait((production.task,))
            if not production.task.cancelled():
                production.task.result()
        elif (failed := self._failed.get(key)) is not None:
            raise failed[1]

    async def settle(self) -> None:
        """Wait until nothing is in the making."""
        tasks = [p.task for p in self._productions.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _given_up_ended(self, wanted: Sequence[Wanted]) -> None:
        """Wait until nothing wanted is in a making that was given up."""
        while ending := [
            production.task
            for want in wanted
            if (production := self._productions.get(want.key)) and production.is_given_up
        ]:
            await asyncio.wait(ending)

    def _begin(self, wanted: Sequence[Wanted]) -> tuple[dict[Key, Stored], dict[Key, _Production]]:
        unique = {w.key: w for w in wanted}
        ready = {k: s for k in unique if (s := self.find(k)) is not None}
        for stored in ready.values():
            self.arena.pin(stored.region)
        missing = [w for k, w in unique.items() if k not in ready and k not in self._productions]
        try:
            regions = self._reserve(missing)
        except BaseException:
            for stored in ready.values():
                self.arena.unpin(stored.region)
            raise
        for want, region in zip(missing, regions, strict=True):
            self._produce(want, region)
        joined = {k: self._productions[k] for k in unique if k not in ready}
        for production in joined.values():
            self.arena.pin(production.stored.region)
            production.num_waiting += 1
        return ready, joined

    def _reserve(self, missing: Sequence[Wanted]) -> list[Region]:
        """Reserve a region for each of the wanted, and hold what they are made of."""
        regions = self.arena.reserve([(w.key, w.layout.nbytes) for w in missing])
        held: list[Wanted] = []
        try:
            for want in missing:
                want.hold()
                held.append(want)
        except BaseException:
            for want in held:
                want.drop()
            for region in regions:
                self.arena.abort(region)
                self.arena.unpin(region)
            raise
        return regions

    def _produce(self, want: Wanted, region: Region) -> None:
        stored = Stored(want.key, region, want.plan, want.tensors, want.layout)
        task = asyncio.create_task(want.make(region))
        self._productions[want.key] = _Production(stored, task)
        # In a callback, not in the task: a task cancelled before its first step runs no `finally`.
        # It is the first callback, so whoever waits finds the region ready.
        task.add_done_callback(lambda t: self._finish(want, stored, t))

    def _finish(self, want: Wanted, stored: Stored, task: asyncio.Task[ProcessReport]) -> None:
        production = self._productions.pop(stored.key)
        want.drop()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.arena.abort(stored.region)
            if error is not None and production.is_wanted:
                self._failed.put(stored.key, (stored, error))
        else:
            self.arena.commit(stored.region)
            self._stored[stored.key] = stored
        self.arena.unpin(stored.region)

    def _forget(self, key: Hashable) -> None:
        self._stored.pop(key, None)  # type: ignore[call-overload]  # only our own keys are evicted

    def _leave(self, production: _Production) -> None:
        self.arena.unpin(production.stored.region)
        production.num_waiting -= 1
        if not production.num_waiting and not production.is_wanted:
            production.is_given_up = True
            production.task.cancel()

    def _outcome(
        self, key: Key, ready: dict[Key, Stored], joined: dict[Key, _Production]
    ) -> Had | BaseException:
        if key in ready:
            stored = ready[key]
            self.arena.pin(stored.region)
            return Had(stored, None)
        production = joined[key]
        task = production.task
        if task.cancelled():
            return asyncio.CancelledError()
        error = task.exception()
        if error is not None:
            return error
        self.arena.pin(production.stored.region)
        return Had(production.stored, task.result())
