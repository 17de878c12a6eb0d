"""Images of one size in one call: what each would give alone, bit for bit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.types import DecodeLimits, ItemInput, Modality, ModelSpec
from tests.helpers.zoo.media import noise_image
from tests.parity.served import allocate, png

FAMILIES = ["qwen2_5_vl", "gemma3", "llava_next", "pixtral", "internvl", "idefics3"]
COUNT = 4


def engine_of(path: Path, **options: object) -> Engine:
    # The fast kernels take one image at a time; devices have none.
    spec = ModelSpec("m", str(path), allow_fast=False, **options)  # type: ignore[arg-type]
    return Engine(spec, DecodeLimits())


@pytest.mark.parametrize("name", FAMILIES)
def test_batches_change_nothing(name: str, model_dir: Callable[[str], Path]) -> None:
    """Four threads bring images of one size, and one of another: all as each would be alone."""
    alone = engine_of(model_dir(name))
    batched = engine_of(model_dir(name), max_batch=COUNT, batch_wait_s=30.0)
    items = [
        ItemInput(Modality.IMAGE, (png(noise_image(180, 120).rotate(90 * 2 * (n % 2))),))
        for n in range(COUNT)
    ]
    begin = threading.Barrier(COUNT)

    def run(item: ItemInput) -> tuple[dict[str, torch.Tensor], int]:
        plan = batched.plan(item)
        outputs = allocate(plan.tensors)
        begin.wait(30)
        return outputs, batched.process(item, plan, outputs).batch

    with ThreadPoolExecutor(COUNT) as threads:
        results = list(threads.map(run, items))
    assert {size for _, size in results} == {COUNT}
    for item, (outputs, _) in zip(items, results, strict=True):
        plan = alone.plan(item)
        expected = allocate(plan.tensors)
        assert alone.process(item, plan, expected).batch == 1
        assert outputs.keys() == expected.keys()
        for tensor, value in expected.items():
            assert torch.equal(outputs[tensor], value), tensor


def test_families_that_count_their_images_run_alone(model_dir: Callable[[str], Path]) -> None:
    """What an image becomes may depend on its place in the prompt; such models do not batch."""
    engine = engine_of(model_dir("minicpmv4_6"), max_batch=COUNT, batch_wait_s=30.0)
    item = ItemInput(Modality.IMAGE, (png(noise_image(180, 120)),))
    plan = engine.plan(item)
    assert engine.process(item, plan, allocate(plan.tensors)).batch == 1
