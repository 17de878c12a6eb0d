"""Leases of answers: features that stay in the store until the consumer has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.answer import Answer
from app.config import StoreSettings
from app.schemas import PreprocessRequest
from app.store import Key, Stored
from transport.arena import Region
from transport.leases import LeaseTable
from transport.shm import location


@dataclass(frozen=True, slots=True)
class Placed:
    """Features on a device."""

    regions: Mapping[Key, Region]
    location: Callable[[Region], dict[str, Any]]


class Leasing:
    """Grants the lease of an answer and names its locations.

    Args:
        table: The leases of this instance.
        settings: Default life of a lease.
    """

    def __init__(self, table: LeaseTable, settings: StoreSettings) -> None:
        self.table = table
        self._settings = settings

    def grant(
        self,
        request: PreprocessRequest,
        answer: Answer,
        *,
        transport: str,
        owner: str,
        base_url: str,
        placed: Placed | None = None,
    ) -> Callable[[], None] | None:
        """Lease an answer's features and write lease and locations into it.

        Args:
            request: For readers and time.
            answer: Its stored items are leased.
            transport: Which locations to tell.
            owner: Whom the quota counts it against.
            base_url: Of `ref` locations.
            placed: Regions on a device by key, and what names them, for `cuda_ipc`.

        Returns:
            What revokes the lease if the answer never arrives; None where nothing was leased.

        Raises:
            StoreFullError: If the owner's quota is used up.
            ItemTooLargeError: If the features alone exceed it.
        """
        stored = [item.stored for item in answer.items if item.stored is not None]
        if not stored:
            return None
        lease = self.table.grant(
            [s.region if placed is None else placed.regions[s.key] for s in stored],
            ttl_s=request.lease_ttl_s or self._settings.lease_ttl_s,
            readers=request.readers,
            owner=owner,
        )
        answer.lease = {
            "id": lease.id,
            "ttl_ms": round(lease.ttl_s * 1000),
            "readers": lease.readers,
        }
        for item in answer.items:
            if item.stored is None:
                continue
            if placed is not None:
                item.location = placed.location(placed.regions[item.stored.key])
            elif transport == "shm":
                item.location = location(item.stored.region)
            else:
                item.location = ref_location(item.stored, base_url, lease.id)
        return lambda: self.table.revoke(lease.id)


def ref_location(stored: Stored, base_url: str, lease_id: str) -> dict[str, Any]:
    """Return the URL an item is pulled from."""
    item_hash, dtype, encoding = stored.key
    url = f"{base_url}/features/{item_hash}?dtype={dtype}&encoding={encoding}&lease={lease_id}"
    return {"kind": "ref", "url": url, "nbytes": stored.region.nbytes}
