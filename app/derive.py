"""Other variants of features that are stored: exact, and never computed again.

Half precision is the stored float32 rounded to nearest even, the same as processing with that
dtype asked for, since processing rounds its exact float32 last. Plain features are what codes and
their table expand to.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

import ml_dtypes
import msgspec
import numpy as np

from app.describe import describe_tensor, describe_tensors
from app.documents import item_metadata
from app.encodings import EXACT, PLAIN, encode, table_name
from app.store import FeatureStore, Had, Key, Stored, Wanted
from processors.types import ProcessReport, TensorSpec
from transport.arena import Region
from transport.safetensors import DocumentLayout, TensorEntry, build_layout, data_offsets
from transport.tensors import expand_codes
from transport.wire import LutEncoding

_NUMPY = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(bool),
}


class Deriver:
    """Makes variants of stored features.

    Args:
        store: Where they are and go.
        executor: Runs the conversion.
    """

    def __init__(self, store: FeatureStore, executor: Executor) -> None:
        self._store = store
        self._executor = executor

    def base_of(self, key: Key) -> Stored | None:
        """Return what a variant can be derived from, if that is stored and it is another one."""
        return next((found for base in bases_of(key) if (found := self._store.find(base))), None)

    async def wait(self, key: Key) -> None:
        """Wait until a variant, or else one that it can be derived from, is not in the making.

        Raises:
            Whatever making it raised.
        """
        for made in (key, *bases_of(key)):
            await self._store.wait(made)
            if self._store.find(made) is not None:
                return

    async def have(self, key: Key) -> Stored | None:
        """Return a variant, derived if need be, pinned once; None where nothing is stored.

        Raises:
            StoreFullError: If features in use leave no room for it.
        """
        base = self.base_of(key)
        if base is None:
            return None
        # Making room for the variant must not take away what it is made of.
        self._store.arena.pin(base.region)
        try:
            (outcome,) = await self._store.have([self._want(key, base)])
        finally:
            self._store.arena.unpin(base.region)
        if isinstance(outcome, Had):
            return outcome.stored
        raise outcome

    async def fill(self, base: Stored, region: Region, want: Wanted) -> ProcessReport:
        """Write a variant of features into its region.

        Args:
            base: The exact features, pinned by the caller.
            region: Where the variant goes.
            want: What it is.

        Cancellation: Waits for the thread, which writes to the region until it is done.
        """
        start = time.perf_counter()
        source, target = self._store.view(base), self._store.arena.view(region)
        converting = asyncio.get_running_loop().run_in_executor(
            self._executor, _convert, base, source, want, target
        )
        try:
            await asyncio.shield(converting)
        except asyncio.CancelledError:
            await asyncio.wait((converting,))
            raise
        return ProcessReport(0.0, (time.perf_counter() - start) * 1e3, kernel="derived")

    def _want(self, key: Key, base: Stored) -> Wanted:
        tensors = encode(base.plan.tensors, key[2], key[1])
        entries = [TensorEntry(t.name, t.dtype, t.shape) for t in tensors]
        described = describe_tensors(tensors, data_offsets(entries))
        layout = build_layout(entries, item_metadata(described))

        async def make(region: Region) -> ProcessReport:
            return await self.fill(base, region, want)

        want = Wanted(
            key,
            base.plan,
            tensors,
            layout,
            make,
            hold=lambda: self._store.arena.pin(base.region),
            drop=lambda: self._store.arena.unpin(base.region),
        )
        return want


def bases_of(key: Key) -> list[Key]:
    """Return the keys of what a variant can be derived from, the best first."""
    item_hash, dtype, encoding = key
    bases = [(item_hash, EXACT, encoding)] if dtype != EXACT else []
    if encoding == PLAIN:
        bases.append((item_hash, EXACT, "compact"))
    return bases


def _convert(base: Stored, source: memoryview, want: Wanted, target: memoryview) -> None:
    """Copy every tensor, expanding codes and rounding where the dtype is another."""
    target[: want.layout.data_start] = want.layout.header
    stored = {tensor.name: tensor for tensor in base.tensors}
    for new in want.tensors:
        old = stored[new.name]
        values = _array(source, base.layout, old)
        if old.encoding is not None and new.encoding is None:
            table = _array(source, base.layout, stored[table_name(old.name)])
            values = expand_codes(values, table, _told(old, new.dtype))
        place = _array(target, want.layout, new)
        np.copyto(place, values, casting="same_kind" if values.dtype == place.dtype else "unsafe")


def _told(codes: TensorSpec, dtype: str) -> LutEncoding:
    """Return a tensor's encoding as consumers are told it, for a plain dtype."""
    described = describe_tensor(codes, None)["encoding"]
    return msgspec.convert({**described, "plain_dtype": dtype}, LutEncoding)


def _array(document: memoryview, layout: DocumentLayout, tensor: TensorSpec) -> np.ndarray:
    start = layout.data_start + layout.offsets[tensor.name]
    dtype = _NUMPY.get(tensor.dtype) or np.dtype(tensor.dtype)
    raw = np.frombuffer(document[start : start + tensor.nbytes], dtype=dtype)
    return raw.reshape(tensor.shape)
