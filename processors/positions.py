"""Rotary position ids of multimodal prompts, in numpy: equal to the models' own rope index.

A scheme is named by `ModelInfo.positions` and reads `ModelInfo.position_config`:

    scheme   config keys                                               families
    mrope    spatial_merge_size, tokens_per_second (0: frames by one)  Qwen2-VL, Qwen2.5-VL

Text counts up by one on all three axes. A still or video of t x h x w patches takes t, h and w over
its rows, and what follows goes on behind its largest spatial side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from processors.prompt import ExpandedPrompt
from processors.types import ItemPlacement, ItemPlan, Modality, ModelInfo

TYPE_IDS: Mapping[Modality, int] = {Modality.IMAGE: 1, Modality.VIDEO: 2, Modality.AUDIO: 3}
"""What `mm_token_type_ids` say of a row; 0 is text."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Position ids of one prompt."""

    position_ids: np.ndarray
    """int32 of shape (3, L): temporal, height, width."""
    delta: int
    """What a decoded token's position adds to its index."""
    mm_token_type_ids: np.ndarray
    """int32 of shape (L,)."""


def compute_positions(
    info: ModelInfo, prompt: ExpandedPrompt, plans: Sequence[ItemPlan]
) -> Positions | None:
    """Return the positions of an expanded prompt, None for families without a scheme of their own.

    Args:
        info: The served model.
        prompt: Its expanded prompt.
        plans: Of every item; those of one modality in placeholder order.

    Source: mirrors `get_rope_index` of the transformers models (5.24).
    """
    scheme = _SCHEMES.get(info.positions or "")
    return None if scheme is None else scheme(info.position_config, prompt, plans)


def token_types(prompt: ExpandedPrompt) -> np.ndarray:
    """Return which modality's row stands at each position, int32 of shape (L,)."""
    types = np.zeros(len(prompt.input_ids), dtype=np.int32)
    for placement in prompt.placements:
        for start, stop in placement.offsets:
            types[start:stop] = TYPE_IDS[placement.modality]
    return types


def _mrope(
    config: Mapping[str, Any], prompt: ExpandedPrompt, plans: Sequence[ItemPlan]
) -> Positions:
    length = len(prompt.input_ids)
    ids = np.empty((3, length), dtype=np.int32)
    cursor = position = 0
    merge = int(config["spatial_merge_size"])
    for placement in prompt.placements:
        plan = plan_of(placement, plans)
        for start, stop in placement.offsets:
            ids[:, cursor:start] = np.arange(start - cursor) + position
            position += start - cursor
            t, h, w = grid_of(plan)
            h, w = h // merge, w // merge
            step = _frame_step(config, plan)
            grid = np.indices((t, h, w), dtype=np.float64).reshape(3, -1)
            grid[0] = np.floor(grid[0] * step)
            ids[:, start:stop] = grid.astype(np.int32) + position
            position += max(h, w)
            cursor = stop
    ids[:, cursor:] = np.arange(length - cursor) + position
    delta = int(ids.max(initial=-1)) + 1 - length
    return Positions(ids, delta, token_types(prompt))


def plan_of(placement: ItemPlacement, plans: Sequence[ItemPlan]) -> ItemPlan:
    """Return the plan an item was placed by."""
    own = [plan for plan in plans if plan.modality is placement.modality]
    return own[placement.index]


def grid_of(plan: ItemPlan) -> tuple[int, int, int]:
    """Return an item's patches along time, height and width, from its planned values."""
    for tensor in plan.tensors:
        if tensor.name.endswith("grid_thw") and tensor.values is not None:
            t, h, w = tensor.values[0]
            return int(t), int(h), int(w)
    return 1, 1, plan.num_tokens


def _frame_step(config: Mapping[str, Any], plan: ItemPlan) -> float:
    """Return how far apart a video's frames stand on the temporal axis."""
    rate = config.get("tokens_per_second") or 0
    if plan.modality is not Modality.VIDEO or not rate:
        return 1.0
    seconds = [t.values for t in plan.tensors if t.name == "second_per_grid_ts"]
    return float(rate) * float(seconds[0][0] if seconds and seconds[0] else 1.0)


_SCHEMES: Mapping[
    str, Callable[[Mapping[str, Any], ExpandedPrompt, Sequence[ItemPlan]], Positions]
] = {"mrope": _mrope}
