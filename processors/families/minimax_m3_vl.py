"""MiniMax-M3-VL: a video has a row of its grid for every few steps in time."""

from processors.family import FamilySpec
from processors.types import FieldLayout

SPEC = FamilySpec(model_types=("minimax_m3_vl",), layouts={"video_grid_thw": FieldLayout("flat")})
