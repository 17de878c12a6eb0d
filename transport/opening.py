"""From an item's location to its tensors, as far as this machine reaches; no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transport.cuda_ipc import PoolReader
from transport.device import CudaMemory, DeviceMemory
from transport.errors import DocumentError, SegmentError
from transport.safetensors import TensorView, parse_document
from transport.segments import DEFAULT_DIRECTORY
from transport.shm import ShmReader
from transport.tensors import Bfloat16, expand_torch, numpy_tensors, torch_tensors
from transport.wire import CudaLocation, Item, Pool, SafetensorsLocation, ShmLocation

Views = Mapping[str, TensorView]
Framework = Literal["numpy", "torch"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a consumer wants an item's tensors as."""

    framework: Framework
    expand: bool
    """Whether compact codes become the plain tensors."""
    bfloat16: Bfloat16
    """How numpy shows bfloat16."""

    def of(self, views: Views, item: Item) -> dict[str, Any]:
        """Return tensors of this form, over the same bytes where nothing is expanded.

        Raises:
            DocumentError: If they are not what the item's description says.
        """
        _require_own(views, item)
        if self.framework == "torch":
            return dict(torch_tensors(views, item.tensors, expand=self.expand))
        return dict(numpy_tensors(views, item.tensors, expand=self.expand, bfloat16=self.bfloat16))


class Opener:
    """Opens items that lie in the answer itself, in shared memory or in a pool of a GPU.

    Args:
        directory: Where segments live.
        open_memory: Maps a pool's memory.
    """

    def __init__(
        self,
        directory: str = DEFAULT_DIRECTORY,
        *,
        open_memory: Callable[[Pool], DeviceMemory] = CudaMemory.open,
    ) -> None:
        self._shm = ShmReader(directory)
        self._pools = PoolReader(directory, open_memory=open_memory)

    def needs_pools(self, item: Item) -> bool:
        """Whether the service's pools must be told before this item can be opened."""
        return isinstance(item.location, CudaLocation) and not self._pools.knows(item.location)

    def tell_pools(self, pools: Sequence[Pool]) -> None:
        """Learn the service's pools, from its /models."""
        self._pools.tell(pools)

    def read(self, item: Item, form: Form) -> dict[str, Any]:
        """Return an item's tensors in private, writable memory.

        Tensors inside the answer are where the answer is; others are copied. Those of a GPU stay on
        it for torch.

        Raises:
            FeatureLost: If they are gone.
            SegmentError: If they lie elsewhere, or may not be opened.
            DocumentError: If they are not what their description says.
        """
        place = item.location
        if isinstance(place, CudaLocation):
            if form.framework == "torch":
                with self._open_on_device(place, item, form) as tensors:
                    return {name: tensor.clone() for name, tensor in tensors.items()}
            return form.of(self._pools.read(place, item.tensors), item)
        if isinstance(place, ShmLocation):
            return form.of(parse_document(self._shm.read(place)), item)
        return form.of(_inline(item), item)

    @contextmanager
    def open(self, item: Item, form: Form) -> Iterator[dict[str, Any]]:
        """Give an item's tensors without a copy, for the length of a `with`.

        Raises:
            FeatureLost: On entry if they are gone, on exit if they went meanwhile.
            SegmentError: If they lie elsewhere, or may not be opened.
            DocumentError: If they are not what their description says.
        """
        place = item.location
        if isinstance(place, ShmLocation):
            with self._shm.open(place) as view:
                yield form.of(parse_document(view), item)
        elif isinstance(place, CudaLocation) and form.framework == "torch":
            with self._open_on_device(place, item, form) as tensors:
                yield tensors
        else:
            yield self.read(item, form)

    def close(self) -> None:
        """Unmap the segments that nobody holds a view of, and all pools."""
        self._shm.close()
        self._pools.close()

    @contextmanager
    def _open_on_device(
        self, place: CudaLocation, item: Item, form: Form
    ) -> Iterator[dict[str, Any]]:
        with self._pools.open(place, item.tensors) as tensors:
            yield expand_torch(tensors, item.tensors) if form.expand else tensors


def _inline(item: Item) -> Views:
    place = item.location
    if not isinstance(place, SafetensorsLocation):
        raise SegmentError(f"this item has no features to open here: it is {item.status}")
    # In this order: another thread sets the views first, and then drops the data.
    data = place.data
    if place.views is None:
        if data is None:
            raise SegmentError("this item's features are not in the answer")
        # Once, into memory that may be written: base64 gives bytes, which may not.
        place.views = parse_document(np.frombuffer(data, np.uint8).copy().data)
        place.data = None
    views: Views = place.views
    return views


def _require_own(views: Views, item: Item) -> None:
    """Check that a document is the item's own, so that no other's is ever taken for it."""
    for name, info in item.tensors.items():
        found = views.get(name)
        if found is None or (found.dtype, found.shape) != (info.dtype, info.shape):
            raise DocumentError(f"tensor {name[:64]!r} is not what the answer says")
