"""Leases of answers: features that stay in the store until the consumer has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.answer import Answer, AnswerItem
from app.config import StoreSettings
from app.schemas import PreprocessRequest
from transport.leases import LeaseTable


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
    ) -> Callable[[], None] | None:
        """Lease an answer's features and write lease and locations into it.

        Returns:
            What revokes the lease if the answer never arrives; None where nothing was leased.

        Raises:
            StoreFullError: If the owner's quota is used up.
            ItemTooLargeError: If the features alone exceed it.
        """
        items = [item for item in answer.items if item.stored is not None]
        if not items:
            return None
        lease = self.table.grant(
            [item.stored.region for item in items if item.stored is not None],
            ttl_s=request.lease_ttl_s or self._settings.lease_ttl_s,
            readers=request.readers,
            owner=owner,
        )
        answer.lease = {
            "id": lease.id,
            "ttl_ms": round(lease.ttl_s * 1000),
            "readers": lease.readers,
        }
        for item in items:
            item.location = (
                shm_location(item) if transport == "shm" else ref_location(item, base_url, lease.id)
            )
        return lambda: self.table.revoke(lease.id)


def shm_location(item: AnswerItem) -> dict[str, Any] | None:
    """Return where an item lies in shared memory."""
    if item.stored is None:
        return None
    region = item.stored.region
    return {
        "kind": "shm",
        "segment": region.segment,
        "offset": region.offset,
        "nbytes": region.nbytes,
        "generation": region.generation,
    }


def ref_location(item: AnswerItem, base_url: str, lease_id: str) -> dict[str, Any] | None:
    """Return the URL an item is pulled from."""
    if item.stored is None:
        return None
    item_hash, dtype, encoding = item.stored.key
    url = f"{base_url}/features/{item_hash}?dtype={dtype}&encoding={encoding}&lease={lease_id}"
    return {"kind": "ref", "url": url, "nbytes": item.stored.region.nbytes}
