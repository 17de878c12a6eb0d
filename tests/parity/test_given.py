"""What an engine returned, given back to it: told apart as it was, planned as it was."""

import io
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from processors.engine import Engine
from processors.errors import InvalidRequestError
from processors.types import (
    DecodeLimits,
    GivenEntry,
    GivenTensor,
    ItemInput,
    ItemPlan,
    Modality,
    ModelSpec,
    TensorSpec,
)
from tests.helpers.zoo.media import noise_image
from tests.parity.served import Outputs, allocate, image_item

pytestmark = pytest.mark.filterwarnings("ignore:Passing `min_pixels` and:FutureWarning")
FRAMES = Path(__file__).parents[1] / "resources" / "media" / "odd_25_frames.mp4"
IMAGES = (
    "qwen2_vl", "qwen3_vl", "glm4v", "kimi_k25", "llava", "llava_next", "pixtral",
    "mistral3", "gemma3n", "paddleocr_vl",
)  # fmt: skip
COUNTED = {"gemma3": ("num_crops", 0), "internvl": ("num_patches", None)}
"""What the processor's own output leaves out, by family; None: the rows of its pixels."""


def wav(seconds: float) -> bytes:
    """A clip of noise at 16 kHz."""
    noise = np.random.default_rng(0).standard_normal(int(seconds * 16_000)) * 3000
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setparams((1, 2, 16_000, 0, "NONE", ""))
        clip.writeframes(noise.astype("<i2").tobytes())
    return file.getvalue()


def run(engine: Engine, items: Sequence[ItemInput]) -> list[tuple[ItemPlan, Outputs]]:
    """Plan and process items one by one."""
    found = []
    for item in items:
        plan = engine.plan(item)
        outputs = allocate(plan.tensors)
        engine.process(item, plan, outputs)
        found.append((plan, outputs))
    return found


def join(done: Sequence[tuple[ItemPlan, Outputs]]) -> Outputs:
    """Join items' tensors as their layouts say."""
    specs: dict[str, TensorSpec] = {spec.name: spec for plan, _ in done for spec in plan.tensors}
    return {
        name: torch.cat([outputs[name] for _, outputs in done if name in outputs], spec.layout.dim)
        for name, spec in specs.items()
    }


def join_names(done: Sequence[tuple[ItemPlan, Outputs]]) -> set[str]:
    """Return the names of the tensors that all items have."""
    return set.intersection(*(set(outputs) for _, outputs in done))


def entry(modality: Modality, tensors: Outputs) -> GivenEntry:
    """An entry of tensors, as a document holds them."""
    given = {}
    for name, tensor in tensors.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        given[name] = GivenTensor(dtype, tuple(tensor.shape), memoryview(bytearray(data)))
    return GivenEntry(modality, "processor_output", given)


def assert_returns(engine: Engine, items: Sequence[ItemInput], extra: Outputs | None = None):
    """Give back what the engine made of items, and compare."""
    done = run(engine, items)
    tensors = join(done)
    given = engine.plan_given(entry(items[0].modality, {**tensors, **(extra or {})}))
    assert len(given) == len(done)
    for item, (plan, outputs) in zip(given, done, strict=True):
        assert item.plan.replacement == plan.replacement
        assert (item.plan.num_tokens, item.plan.row_token_id) == (
            plan.num_tokens,
            plan.row_token_id,
        )
        for part in item.slices:
            own = tensors[part.name].narrow(part.dim, part.start, part.stop - part.start)
            if part.name in outputs:
                assert torch.equal(own, outputs[part.name])
            else:
                assert own.numel() == 0


@pytest.fixture(name="engine")
def make_engine(request: pytest.FixtureRequest, model_dir: Callable[[str], Path]) -> Engine:
    """The engine of the family named by the parameter."""
    return Engine(ModelSpec("m", str(model_dir(request.param))), DecodeLimits())


def pictures() -> list[ItemInput]:
    """Two images of one area and of different shapes."""
    sizes = ((448, 224), (224, 448))
    return [image_item(noise_image(*size, seed=n), index=n) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("engine", IMAGES, indirect=True)
def test_images_given_back(engine: Engine):
    """Two images in one entry: their text, rows and tensors are those they had."""
    (_, one), (_, other) = done = run(engine, pictures())
    is_even = all(one[name].shape[1:] == other[name].shape[1:] for name in join_names(done))
    # Where they do not concatenate, a joint call pads, and single items are given back.
    assert_returns(engine, pictures() if is_even else pictures()[:1])


@pytest.mark.parametrize("engine", COUNTED, indirect=True)
def test_a_count_that_is_not_handed_on(engine: Engine, request: pytest.FixtureRequest):
    """The error names what the processor looks for; given, all is as it was."""
    name, value = COUNTED[request.node.callspec.params["engine"]]
    done = run(engine, pictures())
    with pytest.raises(InvalidRequestError, match=name):
        engine.plan_given(entry(Modality.IMAGE, join(done)))
    counts = [len(o["pixel_values"]) if value is None else value for _, o in done]
    assert_returns(engine, pictures(), {name: torch.tensor(counts)})


@pytest.mark.parametrize("engine", ["step3p7"], indirect=True)
def test_what_a_processor_may_look_for_is_told(engine: Engine):
    """Where a processor does without something, the text may differ: a warning says so."""
    done = run(engine, pictures()[:1])
    (item,) = engine.plan_given(entry(Modality.IMAGE, join(done)))
    assert [code for code, _ in item.plan.warnings] == ["framing_unknown"]
    assert item.plan.num_tokens == done[0][0].num_tokens


@pytest.mark.parametrize("engine", ["qwen2_vl", "qwen2_5_omni"], indirect=True)
def test_videos_given_back(engine: Engine):
    """Two clips in one entry."""
    clip = ItemInput(Modality.VIDEO, (FRAMES.read_bytes(),))
    assert_returns(engine, [clip, clip])


@pytest.mark.parametrize("engine", ["gemma4", "voxtral", "phi4_multimodal"], indirect=True)
def test_audio_given_back(engine: Engine):
    """One clip; its text follows from its mask, or from counts."""
    items = [ItemInput(Modality.AUDIO, (wav(1.5),))]
    done = run(engine, items)
    counts = {"num_tokens": torch.tensor([done[0][0].num_tokens])}
    given = engine.plan_given(entry(Modality.AUDIO, {**join(done), **counts}))
    assert [item.plan.num_tokens for item in given] == [done[0][0].num_tokens]
