"""The consumer's one entry: ask for features, open them, release them; sync and async.

Needs the base install only: numpy always, torch where it is asked for.

Example:
    with Client("http://127.0.0.1:8000") as client:
        answer = client.preprocess(
            prompt="<|image_pad|>What is this?",
            images=[jpeg_bytes],
            transport=["shm", "safetensors"],
        )
        for item in answer.items:
            tensors = client.open_item(item)  # private copies
            with client.open_item(item, copy=False) as tensors:
                ...  # in place; FeatureLost on exit if they went meanwhile
        client.release(answer)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import msgspec

from transport.calls import (
    features_call,
    lease_calls,
    lease_statuses,
    models_call,
    pools_of,
    preprocess_call,
    ref_call,
    require_ready,
    translate_lost,
    wait_call,
)
from transport.opening import Form, Framework, Opener, Views
from transport.protocol import Answer, PreprocessFields, decode_answer
from transport.safetensors import parse_document
from transport.session import AsyncSession, ClientOptions, Session, with_base_url
from transport.shm import consumer_proof
from transport.tensors import Array, Bfloat16
from transport.wire import Item, Lease, RefLocation

if TYPE_CHECKING:
    import torch

Leases = Answer | Lease | str | None
"""What stands for a lease: an answer (with or without one), a lease, or its id."""


class Client:
    """Talks to one service and waits for its answers; safe to share between threads.

    Args:
        base_url: Where the service is; default: `MMPREP_CLIENT_BASE_URL`, or this machine.
        options: Everything else; `base_url` goes before theirs.
    """

    def __init__(
        self, base_url: str | None = None, *, options: ClientOptions | None = None
    ) -> None:
        self._options = with_base_url(options, base_url)
        self._session = Session(self._options)
        self._opener = _opener(self._options)

    def preprocess(self, **fields: Unpack[PreprocessFields]) -> Answer:
        """Ask for a prompt's ids and its items' features.

        Args:
            **fields: The request; bytes and local files among the media are uploaded.

        Raises:
            ApiError: If the service refuses the request.
            ServiceUnreachableError: If no whole answer came.
        """
        reply = self._session.send(preprocess_call(fields, _proof(self._options)))
        return decode_answer(reply.content_type, reply.body)

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[True] = True, framework: Literal["numpy"] = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> dict[str, Array]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[True] = True, framework: Literal["torch"],
        expand: bool = True,
    ) -> dict[str, torch.Tensor]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[False], framework: Literal["numpy"] = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> AbstractContextManager[dict[str, Array]]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[False], framework: Literal["torch"], expand: bool = True
    ) -> AbstractContextManager[dict[str, torch.Tensor]]: ...

    def open_item(
        self, item: Item, *, copy: bool = True, framework: Framework = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> Any:  # fmt: skip
        """Return an item's tensors by name, wherever they lie.

        Args:
            item: Of an answer of this client.
            copy: True returns tensors in private memory. False returns a context manager that
                gives them in place, read-only, and raises FeatureLost at its end if they went
                meanwhile: nothing that was made of them counts then. Results of `expand` are
                private in either case.
            framework: Arrays of numpy, or CPU tensors of torch.
            expand: Whether compact codes become the plain tensors.
            bfloat16: How numpy shows bfloat16.

        Raises:
            FeatureLost: If they are gone; post the request again.
            SegmentError: If there are none to open, or shared memory may not be opened.
            ApiError: If the service refuses to send them.
        """
        form = Form(framework, expand, bfloat16)
        return self._open_copy(item, form) if copy else self._open_in_place(item, form)

    def features(
        self,
        item_hash: str,
        *,
        dtype: str | None = None,
        encoding: str | None = None,
        wait_s: float | None = None,
        lease: Leases = None,
    ) -> Views:
        """Fetch an item's document by its hash.

        Args:
            item_hash: `Item.hash`.
            dtype: Variant to send; the service derives what it can exactly.
            encoding: Likewise.
            wait_s: Seconds the service may wait for features that are being made.
            lease: That covers them, where the store is private.

        Raises:
            FeatureLost: If the store does not hold them, or they are not ready in time.
            ApiError: If making them failed.
        """
        call = features_call(item_hash, dtype, encoding, wait_s, _lease_id(lease))
        with translate_lost():
            return parse_document(require_ready(self._session.send(call)).body)

    def wait(
        self,
        item: Item,
        *,
        dtype: str | None = None,
        encoding: str | None = None,
        wait_s: float = 30.0,
        lease: Leases = None,
    ) -> bool:
        """Wait for a pending item's features; the answer's location then opens them.

        Args:
            item: Of an answer to a request with `wait=False`.
            dtype: As asked for in the request.
            encoding: Likewise.
            wait_s: Longest wait.
            lease: That covers them, where the store is private.

        Returns:
            Whether they are ready.

        Raises:
            FeatureLost: If they are gone.
            ApiError: If making them failed.
        """
        call = wait_call(item, dtype, encoding, wait_s, _lease_id(lease))
        with translate_lost():
            return self._session.send(call).status != 202

    def release(self, *leases: Leases, reader: str | None = None) -> dict[str, str]:
        """Say that this reader is done; many leases take one call.

        Args:
            *leases: Answers, leases or ids.
            reader: This reader's name, where a lease has several readers.

        Returns:
            `released` or `unknown`, by lease id.

        Raises:
            ApiError, ServiceUnreachableError: As for every call.
        """
        ids = _lease_ids(leases)
        replies = [self._session.send(c) for c in lease_calls("release", ids, reader=reader)]
        return lease_statuses(replies)

    def renew(self, *leases: Leases, ttl_s: float | None = None) -> dict[str, str]:
        """Let leases run for `ttl_s` from now, or for their own time again.

        Returns:
            `renewed`, `expired` or `unknown`, by lease id.

        Raises:
            ApiError, ServiceUnreachableError: As for every call.
        """
        ids = _lease_ids(leases)
        replies = [self._session.send(c) for c in lease_calls("renew", ids, ttl_s=ttl_s)]
        return lease_statuses(replies)

    def models(self) -> dict[str, Any]:
        """Return what the service serves (GET /models).

        Raises:
            ApiError, ServiceUnreachableError: As for every call.
        """
        return msgspec.json.decode(self._session.send(models_call()).body, type=dict[str, Any])

    def close(self) -> None:
        """Close connections and mappings; views handed out keep theirs."""
        self._session.close()
        self._opener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open_copy(self, item: Item, form: Form) -> dict[str, Any]:
        if isinstance(item.location, RefLocation):
            with translate_lost():
                reply = require_ready(self._session.send(ref_call(item.location)))
            return form.of(parse_document(reply.body), item)
        self._learn_pools(item)
        return self._opener.read(item, form)

    @contextmanager
    def _open_in_place(self, item: Item, form: Form) -> Iterator[dict[str, Any]]:
        if isinstance(item.location, RefLocation):
            yield self._open_copy(item, form)
            return
        self._learn_pools(item)
        with self._opener.open(item, form) as tensors:
            yield tensors

    def _learn_pools(self, item: Item) -> None:
        if self._opener.needs_pools(item):
            self._opener.tell_pools(pools_of(self._session.send(models_call())))


class AsyncClient:
    """Talks to one service from an event loop; see `Client`, whose methods these are.

    Args:
        base_url: Where the service is; default: `MMPREP_CLIENT_BASE_URL`, or this machine.
        options: Everything else; `base_url` goes before theirs.
    """

    def __init__(
        self, base_url: str | None = None, *, options: ClientOptions | None = None
    ) -> None:
        self._options = with_base_url(options, base_url)
        self._session = AsyncSession(self._options)
        self._opener = _opener(self._options)

    async def preprocess(self, **fields: Unpack[PreprocessFields]) -> Answer:
        """Ask for a prompt's ids and its items' features; see `Client.preprocess`.

        Local files among the media are read on the loop: read them first if they are large.
        """
        reply = await self._session.send(preprocess_call(fields, _proof(self._options)))
        return decode_answer(reply.content_type, reply.body)

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[True] = True, framework: Literal["numpy"] = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> Coroutine[Any, Any, dict[str, Array]]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[True] = True, framework: Literal["torch"],
        expand: bool = True,
    ) -> Coroutine[Any, Any, dict[str, torch.Tensor]]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[False], framework: Literal["numpy"] = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> AbstractAsyncContextManager[dict[str, Array]]: ...  # fmt: skip

    @overload
    def open_item(
        self, item: Item, *, copy: Literal[False], framework: Literal["torch"], expand: bool = True
    ) -> AbstractAsyncContextManager[dict[str, torch.Tensor]]: ...

    def open_item(
        self, item: Item, *, copy: bool = True, framework: Framework = "numpy",
        expand: bool = True, bfloat16: Bfloat16 = "ml_dtypes",
    ) -> Any:  # fmt: skip
        """Return an item's tensors by name; see `Client.open_item`.

        `copy=True` is awaited, `copy=False` is an `async with`. Copies out of shared memory are
        made on the loop, about 0.1 ms per MB: open in place what is large.
        """
        form = Form(framework, expand, bfloat16)
        return self._open_copy(item, form) if copy else self._open_in_place(item, form)

    async def features(
        self,
        item_hash: str,
        *,
        dtype: str | None = None,
        encoding: str | None = None,
        wait_s: float | None = None,
        lease: Leases = None,
    ) -> Views:
        """Fetch an item's document by its hash; see `Client.features`."""
        call = features_call(item_hash, dtype, encoding, wait_s, _lease_id(lease))
        with translate_lost():
            return parse_document(require_ready(await self._session.send(call)).body)

    async def wait(
        self,
        item: Item,
        *,
        dtype: str | None = None,
        encoding: str | None = None,
        wait_s: float = 30.0,
        lease: Leases = None,
    ) -> bool:
        """Wait for a pending item's features; see `Client.wait`."""
        call = wait_call(item, dtype, encoding, wait_s, _lease_id(lease))
        with translate_lost():
            return (await self._session.send(call)).status != 202

    async def release(self, *leases: Leases, reader: str | None = None) -> dict[str, str]:
        """Say that this reader is done; see `Client.release`."""
        ids = _lease_ids(leases)
        calls = lease_calls("release", ids, reader=reader)
        return lease_statuses([await self._session.send(call) for call in calls])

    async def renew(self, *leases: Leases, ttl_s: float | None = None) -> dict[str, str]:
        """Let leases run on; see `Client.renew`."""
        ids = _lease_ids(leases)
        calls = lease_calls("renew", ids, ttl_s=ttl_s)
        return lease_statuses([await self._session.send(call) for call in calls])

    async def models(self) -> dict[str, Any]:
        """Return what the service serves (GET /models)."""
        reply = await self._session.send(models_call())
        return msgspec.json.decode(reply.body, type=dict[str, Any])

    async def aclose(self) -> None:
        """Close connections and mappings; views handed out keep theirs."""
        await self._session.aclose()
        self._opener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def _open_copy(self, item: Item, form: Form) -> dict[str, Any]:
        if isinstance(item.location, RefLocation):
            with translate_lost():
                reply = require_ready(await self._session.send(ref_call(item.location)))
            return form.of(parse_document(reply.body), item)
        await self._learn_pools(item)
        return self._opener.read(item, form)

    @asynccontextmanager
    async def _open_in_place(self, item: Item, form: Form) -> AsyncIterator[dict[str, Any]]:
        if isinstance(item.location, RefLocation):
            yield await self._open_copy(item, form)
            return
        await self._learn_pools(item)
        with self._opener.open(item, form) as tensors:
            yield tensors

    async def _learn_pools(self, item: Item) -> None:
        if self._opener.needs_pools(item):
            self._opener.tell_pools(pools_of(await self._session.send(models_call())))


def _opener(options: ClientOptions) -> Opener:
    return Opener(options.shm_directory, open_memory=options.open_memory)


def _proof(options: ClientOptions) -> Mapping[str, Any]:
    return consumer_proof(options.gpus, directory=options.shm_directory)


def _lease_id(lease: Leases) -> str | None:
    if isinstance(lease, Answer):
        lease = lease.lease
    return lease.id if isinstance(lease, Lease) else lease


def _lease_ids(leases: Sequence[Leases]) -> list[str]:
    return [lease_id for lease in leases if (lease_id := _lease_id(lease)) is not None]
