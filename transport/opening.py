"""From an item's location to its tensors, as far as this machine reaches; no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from transport.errors import DocumentError, SegmentError
from transport.safetensors import TensorView, parse_document
from transport.segments import DEFAULT_DIRECTORY
from transport.shm import ShmReader
from transport.wire import Item, SafetensorsLocation, ShmLocation

Views = Mapping[str, TensorView]


class Opener:
    """Opens items that lie in the answer itself or in shared memory.

    Args:
        directory: Where segments live.
    """

    def __init__(self, directory: str = DEFAULT_DIRECTORY) -> None:
        self._shm = ShmReader(directory)

    def read(self, item: Item) -> Views:
        """Return an item's tensors in private, writable memory.

        Tensors inside the answer are where the answer is; those of shared memory are copied.

        Raises:
            FeatureLost: If they are gone.
            SegmentError: If they lie elsewhere, or shared memory may not be opened.
            DocumentError: If they are not what their description says.
        """
        place = item.location
        if isinstance(place, ShmLocation):
            return _of_item(parse_document(self._shm.read(place)), item)
        return self._inline(item)

    @contextmanager
    def open(self, item: Item) -> Iterator[Views]:
        """Give an item's tensors without a copy, for the length of a `with`.

        Raises:
            FeatureLost: On entry if they are gone, on exit if they went meanwhile.
            SegmentError: If they lie elsewhere, or shared memory may not be opened.
            DocumentError: If they are not what their description says.
        """
        place = item.location
        if isinstance(place, ShmLocation):
            with self._shm.open(place) as view:
                yield _of_item(parse_document(view), item)
        else:
            yield self._inline(item)

    def close(self) -> None:
        """Unmap the segments that nobody holds a view of."""
        self._shm.close()

    def _inline(self, item: Item) -> Views:
        place = item.location
        if not isinstance(place, SafetensorsLocation) or (place.views is None and not place.data):
            raise SegmentError(f"this item has no features to open here: it is {item.status}")
        if place.views is None:
            # Once, into memory that may be written: base64 gives bytes, which may not.
            place.views = parse_document(np.frombuffer(place.data or b"", np.uint8).copy().data)
            place.data = None
        views: Views = place.views
        return _of_item(views, item)


def _of_item(views: Views, item: Item) -> Views:
    """Check that a document is the item's own, so that no other's is ever taken for it."""
    for name, info in item.tensors.items():
        found = views.get(name)
        if found is None or (found.dtype, found.shape) != (info.dtype, info.shape):
            raise DocumentError(f"tensor {name[:64]!r} is not what the answer says")
    return views
