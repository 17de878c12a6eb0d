"""The client's calls and what becomes of their replies; no network, the same sync and async."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from transport.errors import ApiError, FeatureLost
from transport.protocol import BINARY_TYPE, MAX_BATCH, PreprocessFields, encode_request
from transport.session import Call, Reply
from transport.wire import Item, Pool, RefLocation

_LOST_CODES = frozenset({"feature_not_found", "lease_not_found", "lease_expired"})
_JSON = {"Content-Type": "application/json"}


def preprocess_call(fields: PreprocessFields, consumer: Mapping[str, Any]) -> Call:
    """Return the call of a request; the answer is asked for as one document."""
    outgoing = encode_request(fields, consumer)
    accept = {"Accept": f"{BINARY_TYPE}, application/json;q=0.5"}
    if (files := outgoing.files) is not None:
        return Call("POST", "/preprocess", headers=accept, files=files)
    return Call("POST", "/preprocess", headers=accept | _JSON, content=outgoing.json)


def features_call(
    item_hash: str,
    dtype: str | None,
    encoding: str | None,
    wait_s: float | None,
    lease_id: str | None,
) -> Call:
    """Return the call that fetches a document by hash."""
    wait_ms = None if wait_s is None else int(wait_s * 1000)
    params = {"dtype": dtype, "encoding": encoding, "wait_ms": wait_ms, "lease": lease_id}
    given = {name: value for name, value in params.items() if value is not None}
    return Call("GET", f"/features/{item_hash}", params=given)


def wait_call(
    item: Item, dtype: str | None, encoding: str | None, wait_s: float, lease_id: str | None
) -> Call:
    """Return the call that waits for a document and reads next to nothing of it.

    Raises:
        FeatureLost: If the item has no hash to ask for.
    """
    if item.hash is None:
        raise FeatureLost("this item has no hash to wait for")
    call = features_call(item.hash, dtype, encoding, wait_s, lease_id)
    return Call("GET", call.url, params=call.params, headers={"Range": "bytes=0-7"})


def ref_call(place: RefLocation) -> Call:
    """Return the call that pulls a `ref` location."""
    return Call("GET", place.url)


def models_call() -> Call:
    """Return the call of GET /models."""
    return Call("GET", "/models")


def lease_calls(
    verb: Literal["release", "renew"],
    ids: Sequence[str],
    *,
    reader: str | None = None,
    ttl_s: float | None = None,
) -> list[Call]:
    """Return the calls that release or renew leases, as few as there may be."""
    extra = {"reader": reader, "ttl_s": ttl_s}
    given = {name: value for name, value in extra.items() if value is not None}
    return [
        Call(
            "POST",
            f"/leases/{verb}",
            headers=_JSON,
            content=msgspec.json.encode({"ids": ids[start : start + MAX_BATCH], **given}),
        )
        for start in range(0, len(ids), MAX_BATCH)
    ]


class _Statuses(msgspec.Struct):
    leases: dict[str, str]


def lease_statuses(replies: Sequence[Reply]) -> dict[str, str]:
    """Return the status of each lease, of all replies together."""
    decoded = (msgspec.json.decode(reply.body, type=_Statuses) for reply in replies)
    return {lease_id: status for each in decoded for lease_id, status in each.leases.items()}


def require_ready(reply: Reply) -> Reply:
    """Return a reply that holds a document.

    Raises:
        FeatureLost: If the features are still being made.
    """
    if reply.status == 202:
        raise FeatureLost("the features are not ready yet: wait for them")
    return reply


@contextmanager
def translate_lost() -> Iterator[None]:
    """Turn every way in which the service says "gone" into the one error of that name."""
    try:
        yield
    except ApiError as error:
        if error.code in _LOST_CODES:
            raise FeatureLost(error.message) from error
        raise


class _Models(msgspec.Struct):
    pools: list[Pool] = []


def pools_of(reply: Reply) -> list[Pool]:
    """Return the pools that /models tells of."""
    return msgspec.json.decode(reply.body, type=_Models).pools
