"""Leases: the promise that the features of one answer stay where they are.

    active ──its time──▶ in grace (still pinned) ──grace──▶ lapsed (unpinned) ──▶ forgotten
       ▲────────renew───────┘◀───renew, while its regions stand──┘

Any of them ends when all readers released it, when one releases it without a name, or when it is
revoked.

A lease id proves itself: it is a number and a keyed digest of it, so that whether this instance
issued it is known for ever without remembering it.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Literal

from transport.errors import (
    FeatureLost,
    ItemTooLargeError,
    LeaseExpiredError,
    LeaseNotFoundError,
    StoreFullError,
)
from transport.regions import Region, RegionTable

ReleaseStatus = Literal["released", "unknown"]
RenewStatus = Literal["renewed", "expired", "unknown"]

_MAX_LAPSED = 16_384
"""Lapsed leases remembered for renewal; beyond, the oldest count as expired."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What an answer says of its lease."""

    id: str
    ttl_s: float
    readers: int


@dataclass(frozen=True, slots=True)
class LeaseStatistics:
    """What the table holds and did."""

    active: int
    in_grace: int
    """Expired, and their regions still pinned."""
    leased_bytes: int
    """Bytes of the documents under active and in-grace leases; twice where two leases hold one."""
    granted: int
    released: int
    expired: int
    revoked: int


@dataclass(slots=True)
class _Record:
    """A lease's life."""

    id: str
    regions: tuple[Region, ...]
    ttl_s: float
    readers: int
    owner: str | None
    expires_at: float
    queued_at: float = 0.0
    """Due time of its one entry in the queue."""
    in_grace: bool = False
    released_by: set[str] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        return sum(region.nbytes for region in self.regions)


class LeaseTable:
    """Grants, renews and ends leases over the regions of one or more stores.

    Belongs to the stores' thread (the event loop). Expiry happens in `sweep`, which every method,
    and every reservation of the stores, runs first; a timer of a second or so keeps it going when
    nothing else does.

    Args:
        stores: Whose regions are leased. Their `before_reserve` is set to `sweep`.
        grace_s: Seconds after expiry for which regions stay pinned.
        quota_bytes: Bytes one owner may have under lease, or None for no limit.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        stores: Sequence[RegionTable],
        *,
        grace_s: float = 60.0,
        quota_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store_of = {name: store for store in stores for name, _ in store.segments}
        self._grace_s = grace_s
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._granted = self._released = self._expired = self._revoked = 0
        self._held: dict[str, _Record] = {}
        self._lapsed: dict[str, _Record] = {}
        self._queue: list[tuple[float, str]] = []
        self._bytes_of: defaultdict[str | None, int] = defaultdict(int)
        self._in_grace = 0
        for store in stores:
            store.before_reserve = self.sweep

    def grant(
        self, regions: Sequence[Region], *, ttl_s: float, readers: int = 1, owner: str | None = None
    ) -> Lease:
        """Lease the regions of one answer; each is pinned once more.

        Args:
            regions: Standing regions, ready or still being written; a region may repeat.
            ttl_s: Seconds until it expires.
            readers: Distinct names that must release it before it ends early.
            owner: Whom the quota counts it against.

        Raises:
            StoreFullError: If the owner has too many bytes under lease.
            ItemTooLargeError: If the regions alone are more than the quota.
            FeatureLost: If a region is gone; nothing is leased then.
            ValueError: If there are no regions, or no reader or time for them.
        """
        if not regions or ttl_s <= 0 or readers < 1:
            raise ValueError("a lease needs a region, a reader and time")
        self.require_quota(sum(region.nbytes for region in regions), owner=owner)
        self._pin(regions)
        self._granted += 1
        lease_id = self._new_id(self._granted)
        record = _Record(
            lease_id, tuple(regions), ttl_s, readers, owner, expires_at=self._clock() + ttl_s
        )
        self._hold(record)
        return Lease(lease_id, ttl_s, readers)

    def require_quota(self, nbytes: int, *, owner: str | None = None) -> None:
        """Check that a lease of `nbytes` would be granted; call it before computing anything.

        Raises:
            StoreFullError: If the owner has too many bytes under lease.
            ItemTooLargeError: If `nbytes` alone is more than the quota.
        """
        self.sweep()
        if self._quota_bytes is None:
            return
        if nbytes > self._quota_bytes:
            raise ItemTooLargeError("the features are larger than the quota of leased bytes")
        if self._bytes_of[owner] + nbytes > self._quota_bytes:
            raise StoreFullError("the quota of leased bytes is used up: release leases first")

    def release(self, lease_id: str, reader: str | None = None) -> None:
        """Note that a reader is done; the last one, or no name at all, ends the lease.

        Idempotent: a lease that ended, in whatever way, may be released again.

        Raises:
            LeaseNotFoundError: If this instance never issued it.
        """
        self.sweep()
        self._require_issued(lease_id)
        record = self._held.get(lease_id) or self._lapsed.get(lease_id)
        if record is None:
            return
        if reader is not None:
            record.released_by.add(reader)
            if len(record.released_by) < record.readers:
                return
        self._end(record)
        self._released += 1

    def release_many(
        self, lease_ids: Sequence[str], reader: str | None = None
    ) -> dict[str, ReleaseStatus]:
        """Release several leases; returns a status for each id."""
        statuses: dict[str, ReleaseStatus] = {}
        for lease_id in lease_ids:
            try:
                self.release(lease_id, reader)
                statuses[lease_id] = "released"
            except LeaseNotFoundError:
                statuses[lease_id] = "unknown"
        return statuses

    def renew(self, lease_id: str, ttl_s: float | None = None) -> Lease:
        """Let a lease run for `ttl_s` from now, or for its own time again.

        Works in the grace and after it, as long as all of its regions stand.

        Raises:
            LeaseNotFoundError: If this instance never issued it.
            LeaseExpiredError: If it ended, or a region is gone.
        """
        self.sweep()
        self._require_issued(lease_id)
        record = self._held.get(lease_id)
        if record is None:
            record = self._revive(lease_id)
        if record.in_grace:
            record.in_grace = False
            self._in_grace -= 1
        record.ttl_s = record.ttl_s if ttl_s is None else ttl_s
        record.expires_at = self._clock() + record.ttl_s
        # One entry a lease: a later time is put off when its entry comes up.
        if record.expires_at < record.queued_at:
            self._enqueue(record, record.expires_at)
        return Lease(lease_id, record.ttl_s, record.readers)

    def renew_many(
        self, lease_ids: Sequence[str], ttl_s: float | None = None
    ) -> dict[str, RenewStatus]:
        """Renew several leases; returns a status for each id."""
        statuses: dict[str, RenewStatus] = {}
        for lease_id in lease_ids:
            try:
                self.renew(lease_id, ttl_s)
                statuses[lease_id] = "renewed"
            except LeaseNotFoundError:
                statuses[lease_id] = "unknown"
            except LeaseExpiredError:
                statuses[lease_id] = "expired"
        return statuses

    def revoke(self, lease_id: str) -> None:
        """End a lease whose answer never arrived; does nothing if it ended already."""
        record = self._held.get(lease_id) or self._lapsed.get(lease_id)
        if record is not None:
            self._end(record)
            self._revoked += 1

    def require(self, lease_id: str, regions: Sequence[Region]) -> None:
        """Check that an active lease covers one of an item's regions: permission to read the item.

        Raises:
            LeaseNotFoundError: If this instance never issued it, or it is another answer's.
            LeaseExpiredError: If it ended or expired.
        """
        self.sweep()
        self._require_issued(lease_id)
        record = self._held.get(lease_id)
        if record is None or record.in_grace:
            raise LeaseExpiredError("the lease has ended: post the request again")
        if not {r.generation for r in regions} & {r.generation for r in record.regions}:
            raise LeaseNotFoundError("the lease does not cover these features")

    def sweep(self) -> None:
        """Expire what is due, and let go of regions whose grace is over."""
        now = self._clock()
        while self._queue and self._queue[0][0] <= now:
            queued_at, lease_id = heappop(self._queue)
            record = self._held.get(lease_id)
            if record is not None and record.queued_at == queued_at:
                self._advance(record, now)

    def statistics(self) -> LeaseStatistics:
        """Return what the table holds and did."""
        return LeaseStatistics(
            active=len(self._held) - self._in_grace,
            in_grace=self._in_grace,
            leased_bytes=sum(self._bytes_of.values()),
            granted=self._granted,
            released=self._released,
            expired=self._expired,
            revoked=self._revoked,
        )

    def _advance(self, record: _Record, now: float) -> None:
        """Bring a lease whose entry came up to where it stands now."""
        if not record.in_grace and record.expires_at <= now:
            record.in_grace = True
            self._in_grace += 1
            self._expired += 1
        due = record.expires_at + (self._grace_s if record.in_grace else 0.0)
        if due > now:
            self._enqueue(record, due)
            return
        self._let_go(record)
        self._lapsed[record.id] = record
        if len(self._lapsed) > _MAX_LAPSED:
            del self._lapsed[next(iter(self._lapsed))]

    def _end(self, record: _Record) -> None:
        if self._lapsed.pop(record.id, None) is None:
            self._let_go(record)

    def _revive(self, lease_id: str) -> _Record:
        record = self._lapsed.pop(lease_id, None)
        if record is None:
            raise LeaseExpiredError("the lease has ended: post the request again")
        try:
            self.require_quota(record.nbytes, owner=record.owner)
            self._pin(record.regions)
        except (FeatureLost, StoreFullError) as exc:
            raise LeaseExpiredError(
                "the lease's features are gone: post the request again"
            ) from exc
        record.in_grace = False
        record.expires_at = self._clock() + record.ttl_s
        self._hold(record)
        return record

    def _hold(self, record: _Record) -> None:
        self._held[record.id] = record
        self._bytes_of[record.owner] += record.nbytes
        self._enqueue(record, record.expires_at)

    def _let_go(self, record: _Record) -> None:
        del self._held[record.id]
        self._in_grace -= record.in_grace
        self._bytes_of[record.owner] -= record.nbytes
        if not self._bytes_of[record.owner]:
            del self._bytes_of[record.owner]
        for region in record.regions:
            self._store_of[region.segment].unpin(region)

    def _pin(self, regions: Sequence[Region]) -> None:
        pinned: list[Region] = []
        try:
            for region in regions:
                self._store_of[region.segment].pin(region)
                pinned.append(region)
        except FeatureLost:
            for region in pinned:
                self._store_of[region.segment].unpin(region)
            raise

    def _enqueue(self, record: _Record, due: float) -> None:
        record.queued_at = due
        heappush(self._queue, (due, record.id))
        # Leases that ended early leave their entries behind; never more of those than of others.
        if len(self._queue) > 2 * len(self._held) + 64:
            self._queue = [(held.queued_at, held.id) for held in self._held.values()]
            heapify(self._queue)

    def _new_id(self, number: int) -> str:
        return f"{number:x}-{self._digest(f'{number:x}')}"

    def _digest(self, number: str) -> str:
        return blake2b(number.encode(), key=self._secret, digest_size=16).hexdigest()

    def _require_issued(self, lease_id: str) -> None:
        number, _, digest = lease_id.partition("-")
        if not (lease_id.isascii() and hmac.compare_digest(digest, self._digest(number))):
            raise LeaseNotFoundError("this instance issued no such lease")
