"""What is remembered of items and media seen: plans by hash, contents by uuid; all bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from processors.types import ItemPlan, Modality

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A map that forgets what was used least recently."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used, None where it is unknown."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember a value, forgetting the least recently used one if there are too many."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def discard(self, key: K) -> None:
        """Forget a key, known or not."""
        self._entries.pop(key, None)


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """An item that was planned: enough to answer for it again without its bytes."""

    model: str
    """The model that was asked. Others may have the same hash for it, and not the same plan: what
    becomes of a placeholder follows from their tokenizer, too."""
    hash: str
    digest: bytes
    modality: Modality
    plan: ItemPlan


class Records:
    """Plans by model and item hash, and content digests by item hash and by uuid.

    A plan is remembered per (model, hash, index) for families whose prompt counts items, with
    index 0 for all others.
    """

    def __init__(self, max_items: int, max_uuids: int) -> None:
        self._items: BoundedMap[tuple[str, str, int], ItemRecord] = BoundedMap(max_items)
        self._digests: BoundedMap[str, bytes] = BoundedMap(max_items)
        self._uuids: BoundedMap[tuple[str, str], bytes] = BoundedMap(max_uuids)

    def find(self, model: str, item_hash: str, index: int = 0) -> ItemRecord | None:
        """Return what is remembered of an item that a model was asked for."""
        return self._items.get((model, item_hash, index))

    def digest_of_item(self, item_hash: str) -> bytes | None:
        """Return the digest of the content of an item that any model was asked for."""
        return self._digests.get(item_hash)

    def remember(self, record: ItemRecord, index: int = 0) -> None:
        """Remember a planned item."""
        self._items.put((record.model, record.hash, index), record)
        self._digests.put(record.hash, record.digest)

    def digest_of(self, uuid: str, salt: str) -> bytes | None:
        """Return the digest of the content last seen under a uuid."""
        return self._uuids.get((salt, uuid))

    def alias(self, uuid: str, salt: str, digest: bytes) -> None:
        """Remember which content a uuid stands for."""
        self._uuids.put((salt, uuid), digest)
