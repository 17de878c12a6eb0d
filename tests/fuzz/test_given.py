"""Tensors at random under the names a model knows: planned as they are, or refused."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.errors import MmprepError
from processors.types import DecodeLimits, GivenEntry, GivenTensor, ModelSpec

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning"),
]
ROUNDS = 1500
MAX_NUMEL = 1 << 20
DTYPES = (
    torch.int64, torch.int64, torch.int32, torch.float32, torch.bfloat16, torch.uint8, torch.bool,
)  # fmt: skip


def tensor_at_random(chance: random.Random, name: str) -> torch.Tensor:
    """A tensor of any shape; grids mostly look like grids."""
    if "grid" in name and chance.random() < 0.6:
        rows = chance.randint(1, 3)
        return torch.tensor([[1, *(2 * chance.randint(0, 40) for _ in "hw")]] * rows)
    sizes = [chance.choice((0, 1, 1, 2, 2, 3, 4, 16, 1176)) for _ in range(chance.randint(0, 4))]
    while torch.Size(sizes).numel() > MAX_NUMEL:
        sizes.pop()
    dtype = chance.choice(DTYPES)
    if dtype.is_floating_point or dtype is torch.bool:
        return (torch.rand(sizes) * 2).to(dtype)
    most = min(chance.choice((2, 5, 28, 1000, 2**31, 2**62)), torch.iinfo(dtype).max)
    least = 0 if dtype is torch.uint8 else chance.choice((0, 0, 1, -1))
    return torch.randint(least, most, sizes).to(dtype)


def as_given(tensor: torch.Tensor) -> GivenTensor:
    """A tensor as a document holds it."""
    data = bytearray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return GivenTensor(
        str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), memoryview(data)
    )


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_5_vl", "qwen3_vl", "kimi_k25", "gemma4", "internvl", "idefics3", "llava_next",
        "molmo2", "mllama",
    ],
)  # fmt: skip
def test_given_tensors_at_random(model_dir: Callable[[str], Path], family: str):
    """Nothing but the service's own errors; what is planned has the shapes of its slices."""
    engine = Engine(ModelSpec("m", str(model_dir(family))), DecodeLimits())
    chance = random.Random(0)
    codes: set[str] = set()
    torch.manual_seed(0)
    for _ in range(ROUNDS):
        modality = chance.choice(engine.info.modalities)
        names = ["num_tokens", "num_patches", "image_grid_thw", "image_sizes", "video_grid_thw"]
        names += [*engine.info.features[modality], "input_features_mask", "rows", "cols"]
        names += ["second_per_grid_ts", "aspect_ratio_ids", "image_attention_mask"]
        names += ["fps", "frames_indices", "num_chunks_per_video", "video_grids", "image_grids"]
        chosen = chance.sample(names, chance.randint(1, 4))
        tensors = {name: tensor_at_random(chance, name) for name in chosen}
        kind = chance.choice(("processor_output", "precomputed_embedding"))
        given = {name: as_given(tensor) for name, tensor in tensors.items()}
        try:
            items = engine.plan_given(GivenEntry(modality, kind, given))
        except MmprepError as error:
            codes.add(error.code)
            continue
        for item in items:
            for part, spec in zip(item.slices, item.plan.tensors, strict=True):
                own = tensors[part.name].narrow(part.dim, part.start, part.stop - part.start)
                assert (part.name, tuple(own.shape)) == (spec.name, spec.shape)
    assert codes <= {"invalid_request", "media_too_large", "prompt_too_long"}
