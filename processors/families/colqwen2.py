"""ColQwen2: its call stands images in a dimension of their own, padded to the largest."""

from typing import Any

import torch

from processors.family import FamilySpec, Features
from processors.types import Modality


def _finish(processor: Any, modality: Modality, features: Features) -> Features:  # noqa: ANN401
    """Source: `ColQwen2Processor.__call__` (transformers 5.24)."""
    grids = features["image_grid_thw"]
    rows = (grids[:, 1] * grids[:, 2]).tolist()
    parts = torch.split(features["pixel_values"], rows)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, max(rows) - part.shape[0])) for part in parts]
    return {**features, "pixel_values": torch.stack(padded)}


SPEC = FamilySpec(model_types=("colqwen2",), finish=_finish)
