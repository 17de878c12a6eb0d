"""Plans of pictures whose size was met before, made without a worker.

A picture's plan follows from its size and its keyword arguments. Once a worker has planned one,
every other plain picture of that size has the same plan, and its header is simple enough to be
read here.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import replace

from app.jobs import JobItem
from app.media import LoadedItem
from app.records import BoundedMap
from processors.headers import read_plain_header
from processors.types import ItemPlan, MediaInfo, MediaOptions, Modality, ModelInfo

MAX_SIZES = 4096
_NO_OPTIONS = MediaOptions()


class KnownSizes:
    """Remembers plans by size; belongs to the event loop.

    Args:
        max_pixels: Of one picture; what exceeds it is a worker's to refuse.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._plans: BoundedMap[Hashable, ItemPlan] = BoundedMap(MAX_SIZES)

    def read(self, model: ModelInfo, loaded: LoadedItem) -> MediaInfo | None:
        """Return a picture's header, where it is plain and the plan follows from the size alone.

        Takes some tens of microseconds at most, whatever the bytes.
        """
        item = loaded.item
        if item.modality is not Modality.IMAGE or item.shows_video or item.options != _NO_OPTIONS:
            return None
        # Where a prompt counts its items, a plan holds the item's number.
        if model.stateful_prompt or len(loaded.media) != 1:
            return None
        info = read_plain_header(loaded.media[0].view())
        if info is None or (info.width or 0) * (info.height or 0) > self._max_pixels:
            return None
        return info

    def find(self, model: ModelInfo, info: MediaInfo, job: JobItem) -> ItemPlan | None:
        """Return the plan of a picture by its header; None if its size is new."""
        plan = self._plans.get(_key(model, info, job))
        return None if plan is None else replace(plan, source=info)

    def learn(self, model: ModelInfo, info: MediaInfo, job: JobItem, plan: ItemPlan) -> None:
        """Remember what a worker has planned for a picture of this header."""
        if plan.source == info and plan.exact and not plan.warnings and not plan.state:
            self._plans.put(_key(model, info, job), plan)


def _key(model: ModelInfo, info: MediaInfo, job: JobItem) -> Hashable:
    kwargs = json.dumps([job.kwargs, job.settings], sort_keys=True, default=repr)
    return model.name, info.width, info.height, kwargs
