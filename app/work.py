"""What the pipeline asks of workers: items as jobs, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.jobs import CopyJob, ExecuteJob, Extent, JobItem, OutputEntry
from app.media import LoadedItem
from processors.types import ItemPlan, TensorSlice, TensorSpec
from transport.arena import Region
from transport.safetensors import DocumentLayout


class ReplannedError(Exception):
    """Raised by an item's execution when it decodes otherwise than its header promised.

    Args:
        plan: What does decode, planned.
        planned_for: Whose plan it is, see `Planner.place_of`.
    """

    def __init__(self, plan: ItemPlan, planned_for: tuple[str, int]) -> None:
        super().__init__(plan, planned_for)
        self.plan = plan
        self.planned_for = planned_for


def job_item(loaded: LoadedItem, kwargs: Mapping[str, Any], settings: Mapping[str, Any]) -> JobItem:
    """Return an item as jobs carry it."""
    return JobItem(
        modality=loaded.item.modality,
        media=tuple(Extent(m.segment, m.offset, m.nbytes) for m in loaded.media),
        options=loaded.item.options,
        kwargs=kwargs,
        index=loaded.item.index,
        settings=settings,
    )


def execute_job(
    model: str,
    item: JobItem,
    plan: ItemPlan,
    tensors: Sequence[TensorSpec],
    layout: DocumentLayout,
    region: Region,
) -> ExecuteJob:
    """Return the job that fills an item's region."""
    outputs = _outputs(tensors, layout)
    extent = Extent(region.segment, region.offset, region.nbytes)
    return ExecuteJob(model, item, plan, outputs, extent, layout.header)


def copy_job(
    model: str,
    document: Extent,
    slices: Sequence[TensorSlice],
    tensors: Sequence[TensorSpec],
    layout: DocumentLayout,
    region: Region,
) -> CopyJob:
    """Return the job that copies a preprocessed item into its region."""
    outputs = _outputs(tensors, layout)
    extent = Extent(region.segment, region.offset, region.nbytes)
    return CopyJob(model, document, tuple(slices), outputs, extent, layout.header)


def _outputs(tensors: Sequence[TensorSpec], layout: DocumentLayout) -> tuple[OutputEntry, ...]:
    return tuple(
        OutputEntry(t.name, t.dtype, t.shape, layout.data_start + layout.offsets[t.name])
        for t in tensors
    )


def source_pixels(plan: ItemPlan) -> int:
    """Return the pixels decoded for an item; samples for audio, which cost about as much."""
    source = plan.source
    if source.width and source.height:
        frames = len(plan.state.get("frame_indices", ())) or 1
        return source.width * source.height * frames
    return int((source.seconds or 0.0) * (source.sample_rate or 0))
