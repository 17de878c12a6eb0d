"""Rotary position ids of multimodal prompts, in numpy: equal to the models' own rope index.

A scheme is named by `ModelInfo.positions` and reads `ModelInfo.position_config`; family files fill
both. Text counts up by one on all axes; the schemes say what an item's rows get and where the
count goes on behind them.

    scheme      config keys (default)           rows of an item                       go on behind
    mrope       spatial_merge_size              (t, h, w) from the item's start, t    the larger of
                temporal_merge_size (1)         times the seconds between frames      h and w
                tokens_per_second (0: ignored)  times tokens_per_second
                frames_apart (false)            each frame an item of its own
    mrope_wide  spatial_merge_size              each frame one column wider and       the largest
                                                moved on by its larger side
    mrope_omni  spatial_merge_size              as mrope by position_id_per_seconds;  the largest
                position_id_per_seconds         rows of a video's own sound count by  of the last
                shared_markers (false)          one from the video's start            run of rows
    grid_axes   spatial_merge_size, num_axes    (w, h, n) of the n-th image on the    no change: all
                                                last axes, its two outer rows aside   count on

    mrope       Qwen2-VL, PaddleOCR-VL; Qwen2.5-VL (tokens_per_second); ERNIE 4.5 VL
                (temporal_merge_size); frames_apart: Qwen3-VL, Qwen3.5, GLM-4V, GLM-4.6V, GLM-OCR,
                Cohere Compass, Cosmos 3
    mrope_wide  HY V4 VL
    mrope_omni  Qwen2.5-Omni (shared_markers: the two tokens that open a video with its sound stand
                at one position, and so do the two that close it), Qwen3-Omni (positions of frames
                may be fractions)
    grid_axes   HunYuan VL

The models expect something between two items of one modality. Where nothing is, each item is
counted by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from processors.errors import PlanMismatchError
from processors.prompt import ExpandedPrompt
from processors.types import ItemPlacement, ItemPlan, Modality, ModelInfo

TYPE_IDS: Mapping[Modality, int] = {Modality.IMAGE: 1, Modality.VIDEO: 2, Modality.AUDIO: 3}
"""What `mm_token_type_ids` say of a row; 0 is text."""

_NOT_ITS_GRID = "An item's rows are not those of its planned grid."

Grid = tuple[int, int, int]
"""Rows along time, height and width."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Position ids of one prompt."""

    position_ids: np.ndarray
    """Shape (axes, L), for most schemes (3, L): temporal, height, width. int32; float32 where
    frames stand at fractions."""
    delta: float
    """What a decoded token's position adds to its index; an int where position ids are."""
    mm_token_type_ids: np.ndarray
    """int32 of shape (L,)."""


class _Block(NamedTuple):
    """Rows whose positions are not counted like text's."""

    rows: np.ndarray
    """Where they stand in the prompt, ascending."""
    positions: np.ndarray
    """(3, rows), from the block's start."""
    advance: np.floating[Any] | int
    """How far from its start the count goes on."""


class _Item(NamedTuple):
    placement: ItemPlacement
    plan: ItemPlan

    @property
    def rows(self) -> np.ndarray:
        """Positions of the item's rows, in order."""
        runs = [np.arange(start, stop) for start, stop in self.placement.offsets]
        return np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)


def compute_positions(
    info: ModelInfo, prompt: ExpandedPrompt, plans: Sequence[ItemPlan]
) -> Positions | None:
    """Return the positions of an expanded prompt, None for families without a scheme of their own.

    Args:
        info: The served model.
        prompt: Its expanded prompt.
        plans: Of every item; those of one modality in placeholder order.

    Raises:
        PlanMismatchError: If an item's rows are not those its planned grid says.

    Source: mirrors `get_rope_index` of the transformers models (5.24).
    """
    scheme = _SCHEMES.get(info.positions or "")
    if scheme is None:
        return None
    ids = scheme(info.position_config, len(prompt.input_ids), _items(prompt, plans))
    if ids.dtype != np.int32 and np.array_equal(ids, np.trunc(ids)):
        ids = ids.astype(np.int32)
    delta = ids.max(initial=-1) + 1 - ids.shape[1]
    return Positions(ids, delta.item(), token_types(prompt))


def token_types(prompt: ExpandedPrompt) -> np.ndarray:
    """Return which modality's row stands at each position, int32 of shape (L,)."""
    types = np.zeros(len(prompt.input_ids), dtype=np.int32)
    for placement in prompt.placements:
        for start, stop in placement.offsets:
            types[start:stop] = TYPE_IDS[placement.modality]
    return types


def _items(prompt: ExpandedPrompt, plans: Sequence[ItemPlan]) -> list[_Item]:
    by_modality: dict[Modality, list[ItemPlan]] = {m: [] for m in Modality}
    for plan in plans:
        by_modality[plan.modality].append(plan)
    return [_Item(p, by_modality[p.modality][p.index]) for p in prompt.placements]


def _mrope(config: Mapping[str, Any], length: int, items: Sequence[_Item]) -> np.ndarray:
    merge = int(config["spatial_merge_size"])

    def blocks() -> Iterator[_Block]:
        for item in items:
            is_video = item.plan.modality is Modality.VIDEO
            grids = _grids(
                item.plan, merge, config.get("temporal_merge_size", 1) if is_video else 1
            )
            if is_video and config.get("frames_apart"):
                grids = [(1, h, w) for t, h, w in grids for _ in range(t)]
            step = _frame_step(config.get("tokens_per_second"), item.plan)
            for rows, grid in _split_rows(item, grids):
                # The models cut the product of frame and interval, in single precision.
                frames = (np.arange(grid[0], dtype=np.float32) * step).astype(np.int32)
                yield _Block(rows, _grid_positions(frames, grid), max(grid[1:]))

    return _count(length, blocks())


def _mrope_wide(config: Mapping[str, Any], length: int, items: Sequence[_Item]) -> np.ndarray:
    merge = int(config["spatial_merge_size"])

    def blocks() -> Iterator[_Block]:
        for item in items:
            grids = [(t, h, w + 1) for t, h, w in _grids(item.plan, merge)]
            for rows, grid in _split_rows(item, grids):
                frames = np.arange(grid[0], dtype=np.int32) * max(grid[1:])
                positions = _grid_positions(frames, grid)
                positions[1:] += positions[0]
                yield _Block(rows, positions, positions.max(initial=-1) + 1)

    return _count(length, blocks())


def _grid_axes(config: Mapping[str, Any], length: int, items: Sequence[_Item]) -> np.ndarray:
    merge, axes = int(config["spatial_merge_size"]), int(config["num_axes"])
    ids = np.tile(np.arange(length, dtype=np.int32), (axes, 1))
    for number, item in enumerate(items):
        ((_, h, w),) = _grids(item.plan, merge)
        _, height, width = _grid_positions(np.zeros(1, dtype=np.int32), (1, h, w + 1))
        rows = item.rows[1:-1]
        if len(rows) != len(width):
            raise PlanMismatchError(_NOT_ITS_GRID)
        ids[axes - 3 :, rows] = np.stack([width, height, np.full_like(width, number)])
    return ids


def _mrope_omni(config: Mapping[str, Any], length: int, items: Sequence[_Item]) -> np.ndarray:
    merge = int(config["spatial_merge_size"])
    rate = np.float32(config["position_id_per_seconds"])
    steps = np.ones(length, dtype=np.float32)
    sounds = {item.placement.span: item for item in items if item.plan.modality is Modality.AUDIO}

    def blocks() -> Iterator[_Block]:
        for item in items:
            if item.plan.modality is Modality.AUDIO:
                continue
            ((rows, grid),) = _split_rows(item, _grids(item.plan, merge), apart=True)
            seconds = _seconds_per_grid(item.plan)
            frames = np.arange(grid[0], dtype=np.float32) * seconds * rate
            if config.get("shared_markers"):
                frames = np.trunc(frames)
            positions = _grid_positions(frames, grid)
            sound = sounds.get(item.placement.span)
            if item.plan.modality is Modality.VIDEO and sound is not None:
                rows, positions = _interleave((rows, positions), sound.rows)
                if config.get("shared_markers"):
                    steps[rows[0] - 2] = steps[rows[-1] + 1] = 0
            yield _Block(rows, positions, _last_run(positions, item, rows) + 1)

    # Evaluated before counting, since it sets the steps of the text around.
    return _count(length, list(blocks()), steps)


def _interleave(
    video: tuple[np.ndarray, np.ndarray], sound_rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Join a video's rows and positions with those of its own sound, ascending."""
    count = np.arange(len(sound_rows), dtype=video[1].dtype)
    rows = np.concatenate([video[0], sound_rows])
    positions = np.concatenate([video[1], np.tile(count, (3, 1))], axis=1)
    order = np.argsort(rows, kind="stable")
    return rows[order], positions[:, order]


def _last_run(positions: np.ndarray, item: _Item, rows: np.ndarray) -> np.floating[Any]:
    """Return the largest position in the last run of rows of one item.

    The models go on behind what they appended last, which may be less than the largest of all.
    """
    start, stop = item.placement.offsets[-1]
    is_own = (rows >= start) & (rows < stop)
    last = is_own if stop - 1 == rows[-1] else rows >= stop
    largest: np.floating[Any] = positions[:, last].max()
    return largest


def _count(
    length: int, blocks: Iterator[_Block] | Sequence[_Block], steps: np.ndarray | None = None
) -> np.ndarray:
    """Return positions of a prompt: blocks as they say, all else counted on from one to the next.

    Args:
        length: Tokens of the prompt.
        blocks: Ascending.
        steps: What each text token adds to the count; one where None.
    """
    steps = np.ones(length, dtype=np.int32) if steps is None else steps
    ids = np.empty((3, length), dtype=steps.dtype)
    cursor, position = 0, steps.dtype.type(0)

    def count_text(stop: int) -> None:
        nonlocal cursor, position
        counted = np.cumsum(steps[cursor:stop], dtype=steps.dtype)
        ids[:, cursor:stop] = counted - steps[cursor:stop] + position
        position += counted[-1] if len(counted) else 0
        cursor = stop

    for block in blocks:
        if not len(block.rows):
            continue
        count_text(int(block.rows[0]))
        ids[:, block.rows] = block.positions + position
        position += steps.dtype.type(block.advance)
        cursor = int(block.rows[-1]) + 1
    count_text(length)
    return ids


def _split_rows(
    item: _Item, grids: Sequence[Grid], *, apart: bool = False
) -> Iterator[tuple[np.ndarray, Grid]]:
    """Yield the rows of each grid, which must lie together unless they may lie apart."""
    rows = item.rows
    sizes = [t * h * w for t, h, w in grids]
    if sum(sizes) != len(rows):
        raise PlanMismatchError(_NOT_ITS_GRID)
    start = 0
    for size, grid in zip(sizes, grids, strict=True):
        own = rows[start : start + size]
        start += size
        if not apart and size and own[-1] - own[0] != size - 1:
            raise PlanMismatchError("An item's rows are apart where its grid is one.")
        yield own, grid


def _grid_positions(frames: np.ndarray, grid: Grid) -> np.ndarray:
    """Return (3, rows) positions of a grid whose frames stand at the given temporal positions."""
    _, height, width = grid
    positions = np.empty((3, len(frames), height, width), dtype=frames.dtype)
    positions[0] = frames[:, None, None]
    positions[1] = np.arange(height)[:, None]
    positions[2] = np.arange(width)
    return positions.reshape(3, -1)


def _grids(plan: ItemPlan, merge: int, temporal_merge: int = 1) -> list[Grid]:
    """Return an item's rows along time, height and width, from its planned patch grids."""
    for tensor in plan.tensors:
        if tensor.name.endswith("grid_thw") and tensor.values is not None:
            return [
                (int(t) // temporal_merge, int(h) // merge, int(w) // merge)
                for t, h, w in tensor.values
            ]
    raise PlanMismatchError("An item has no planned grid to take its positions from.")


def _frame_step(tokens_per_second: float | None, plan: ItemPlan) -> np.float32:
    """Return how far apart a video's frames stand on the temporal axis."""
    if not tokens_per_second or plan.modality is not Modality.VIDEO:
        return np.float32(1)
    return np.float32(tokens_per_second) * _seconds_per_grid(plan)


def _seconds_per_grid(plan: ItemPlan) -> np.float32:
    """Return the seconds between two of a video's frames; 1 where the plan does not say."""
    for tensor in plan.tensors:
        if "second_per_grid" in tensor.name and tensor.values:
            return np.float32(tensor.values[0])
    return np.float32(1)


_Scheme = Callable[[Mapping[str, Any], int, Sequence[_Item]], np.ndarray]
_SCHEMES: Mapping[str, _Scheme] = {
    "mrope": _mrope,
    "mrope_wide": _mrope_wide,
    "mrope_omni": _mrope_omni,
    "grid_axes": _grid_axes,
}
