"""Images after the first of their size, which go by a tape: what the plain processor gives."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.fast import AVAILABLE, Tape
from processors.types import DecodeLimits, ItemInput, ModelSpec
from tests.helpers.zoo.media import noise_image
from tests.parity.served import Outputs, allocate, image_item
from tests.parity.test_images import IMAGE_FAMILIES, NO_PROTOCOL

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")

WITHOUT = {
    "phi4_multimodal": "its processor has no torchvision backend",
    "video_llava": "its processor has no torchvision backend",
}
SIZES = [(64, 64), (300, 301)]


def run(engine: Engine, item: ItemInput, encoding: str = "plain") -> Outputs:
    """Process an item; as codes where it can be had so."""
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    for spec in plan.tensors if encoding == "compact" else ():
        if spec.compact is not None:
            outputs[spec.name] = torch.zeros(spec.compact.code_shape, dtype=torch.uint8)
            outputs[f"{spec.name}.lut"] = torch.zeros(3, 256)
    engine.process(item, plan, outputs)
    return outputs


def assert_same(expected: Outputs, given: Outputs) -> None:
    """Compare every tensor, bit for bit."""
    assert expected.keys() == given.keys()
    for name, value in expected.items():
        assert torch.equal(value, given[name]), name


@pytest.mark.parametrize("name", [n for n in IMAGE_FAMILIES if n not in NO_PROTOCOL])
def test_tapes(
    name: str, model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another picture of a size, and the same one as codes, by the tape of the first."""
    fast = Engine(ModelSpec("m", str(model_dir(name))), DecodeLimits())
    plain = Engine(ModelSpec("m", str(model_dir(name)), allow_fast=False), DecodeLimits())
    plays, play = [], Tape.play

    def counting(*arguments: object) -> dict[str, torch.Tensor]:
        plays.append(arguments)
        return play(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Tape, "play", counting)
    for size in SIZES:
        first, second = (image_item(noise_image(*size, seed), 0) for seed in (0, 1))
        codes = run(fast, first, "compact")
        assert_same(run(plain, second), run(fast, second))
        assert_same(codes, run(fast, first, "compact"))
    assert len(plays) == (0 if name in WITHOUT else 2 * len(SIZES))
