"""What an engine returned, given back to it: told apart as it was, planned as it was."""

import io
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from app.given import take
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
from tests.helpers.zoo.media import noise_image, noise_video
from tests.parity.served import Outputs, allocate, frames_item, image_item

pytestmark = pytest.mark.filterwarnings("ignore:Passing `min_pixels` and:FutureWarning")
FRAMES = Path(__file__).parents[1] / "resources" / "media" / "odd_25_frames.mp4"
IMAGES = (
    "qwen2_vl", "qwen3_vl", "glm4v", "kimi_k25", "llava", "llava_next", "pixtral",
    "mistral3", "gemma3n", "paddleocr_vl", "mllama",
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
    assert_told_apart(engine, done, {**join(done), **(extra or {})})


def assert_told_apart(
    engine: Engine, done: Sequence[tuple[ItemPlan, Outputs]], tensors: Outputs
) -> None:
    """Give tensors that stand for all items, and compare each with what the engine made of it."""
    whole = entry(done[0][0].modality, tensors)
    given = engine.plan_given(whole)
    assert len(given) == len(done)
    for item, (plan, outputs) in zip(given, done, strict=True):
        assert item.plan.replacement == plan.replacement
        assert (item.plan.num_tokens, item.plan.row_token_id) == (
            plan.num_tokens,
            plan.row_token_id,
        )
        for part in item.slices:
            own = take(whole.tensors[part.name], part)
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


TIMED = ("qwen3_vl", "glm4v", "glm46v", "kimi_k25", "molmo2", "cosmos3_edge")
"""Families that write the times of frames into the prompt."""


def clips() -> list[ItemInput]:
    """Two clips of different length and size."""
    shapes = ((8, 56, 84), (13, 112, 84))
    return [frames_item(noise_video(*shape, seed=n), n) for n, shape in enumerate(shapes)]


def times(done: Sequence[tuple[ItemPlan, Outputs]]) -> Outputs:
    """What transformers' VideoMetadata says of the frames that were taken."""
    states = [plan.state for plan, _ in done]
    longest = max(len(state["frame_indices"]) for state in states)
    indices = [
        [*state["frame_indices"], *[-1] * (longest - len(state["frame_indices"]))]
        for state in states
    ]
    return {
        "fps": torch.tensor([state["fps"] for state in states]),
        "frames_indices": torch.tensor(indices),
        "total_num_frames": torch.tensor([state["num_frames"] for state in states]),
        "duration": torch.tensor([state["duration_s"] for state in states]),
    }


def chunks(done: Sequence[tuple[ItemPlan, Outputs]], name: str) -> Outputs:
    """How many rows of its grid each clip has, where that is more than one."""
    if name != "kimi_k25":
        return {}
    return {"num_chunks_per_video": torch.tensor([len(o["video_grid_thw"]) for _, o in done])}


@pytest.mark.parametrize("engine", TIMED, indirect=True)
def test_times_that_are_given_are_written(engine: Engine, request: pytest.FixtureRequest):
    """With the frame rate and the frames' places the text around the rows is what it was."""
    name = request.node.callspec.params["engine"]
    done = run(engine, clips())
    assert_told_apart(engine, done, {**join(done), **times(done), **chunks(done, name)})
    for one in done:
        assert_told_apart(engine, [one], {**join([one]), **times([one])})


@pytest.mark.parametrize("engine", [n for n in TIMED if n != "molmo2"], indirect=True)
def test_times_that_are_not_given_change_no_count(engine: Engine, request: pytest.FixtureRequest):
    """Rows are as many as they were, and a warning says that the text around them is unknown."""
    name = request.node.callspec.params["engine"]
    done = run(engine, clips())
    given = engine.plan_given(entry(Modality.VIDEO, {**join(done), **chunks(done, name)}))
    for item, (plan, _) in zip(given, done, strict=True):
        assert (item.plan.num_tokens, item.plan.row_token_id) == (
            plan.num_tokens,
            plan.row_token_id,
        )
        assert len(item.plan.replacement) == 1
        assert [code for code, _ in item.plan.warnings] == ["framing_unknown"]


@pytest.mark.parametrize("engine", ["kimi_k25"], indirect=True)
def test_grids_of_several_rows_need_their_count(engine: Engine):
    """Rows of two long videos could be cut anywhere: one video's are, two videos' are refused."""
    done = run(engine, clips())
    (alone,) = engine.plan_given(entry(Modality.VIDEO, join(done[:1])))
    assert alone.plan.num_tokens == done[0][0].num_tokens
    wrong = {"num_chunks_per_video": torch.tensor([1, 1])}
    with pytest.raises(InvalidRequestError, match="num_chunks_per_video"):
        engine.plan_given(entry(Modality.VIDEO, {**join(done), **wrong}))


@pytest.mark.parametrize("engine", ["molmo2"], indirect=True)
def test_row_numbers_count_from_their_own_item(engine: Engine):
    """A joint call numbers the patches of all images on; each item's start at its own first."""
    done = run(engine, pictures())
    assert_told_apart(engine, done, join(done))  # as items alone are numbered
    shift = done[0][1]["pixel_values"].shape[0] * done[0][1]["pixel_values"].shape[1]
    joint = join(done)
    own, other = (outputs["image_token_pooling"] for _, outputs in done)
    joint["image_token_pooling"] = torch.cat([own, torch.where(other >= 0, other + shift, other)])
    processor = engine._model.processor
    theirs = processor.image_processor(
        [noise_image(*size, seed=n) for n, size in enumerate(((448, 224), (224, 448)))],
        return_tensors="pt",
    )
    assert torch.equal(joint["image_token_pooling"], theirs["image_token_pooling"])
    assert_told_apart(engine, done, joint)
    joint["image_token_pooling"][-1, -1] = 2 * shift
    with pytest.raises(InvalidRequestError, match="rows that its item has not"):
        engine.plan_given(entry(Modality.IMAGE, joint))


BAD_TIMES: dict[str, dict[str, torch.Tensor]] = {
    "frames without a rate": {"frames_indices": torch.arange(4)[None]},
    "a rate without frames": {"fps": torch.tensor([2.0])},
    "no rate": {"fps": torch.tensor([0.0]), "frames_indices": torch.arange(4)},
    "a rate without end": {"fps": torch.tensor([torch.inf]), "frames_indices": torch.arange(4)},
    "two rates": {"fps": torch.tensor([2.0, 2.0]), "frames_indices": torch.arange(4)},
    "a frame before the first": {
        "fps": torch.tensor([2.0]), "frames_indices": torch.tensor([[0, -2]]),
    },
    "a frame behind the end": {
        "fps": torch.tensor([2.0]), "frames_indices": torch.tensor([[0, -1, 2]]),
    },
    "no frame": {"fps": torch.tensor([2.0]), "frames_indices": torch.tensor([[-1]])},
    "frames without end": {"fps": torch.tensor([2.0]), "frames_indices": torch.arange(4096)},
    "parts of frames": {"fps": torch.tensor([2.0]), "frames_indices": torch.tensor([[0.5]])},
    "no length": {
        "fps": torch.tensor([2.0]), "frames_indices": torch.arange(4),
        "duration": torch.tensor([-1.0]),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TIMES)
@pytest.mark.parametrize("engine", ["qwen3_vl"], indirect=True)
def test_times_that_no_video_has(engine: Engine, case: str):
    """Refused, naming what is wrong."""
    grid = {"video_grid_thw": torch.tensor([[2, 4, 4]])}
    with pytest.raises(InvalidRequestError, match=r"fps|frames_indices|duration"):
        engine.plan_given(entry(Modality.VIDEO, {**grid, **BAD_TIMES[case]}))


@pytest.mark.parametrize("engine", ["gemma4", "voxtral", "phi4_multimodal"], indirect=True)
def test_audio_given_back(engine: Engine):
    """One clip; its text follows from its mask, or from counts."""
    items = [ItemInput(Modality.AUDIO, (wav(1.5),))]
    done = run(engine, items)
    counts = {"num_tokens": torch.tensor([done[0][0].num_tokens])}
    given = engine.plan_given(entry(Modality.AUDIO, {**join(done), **counts}))
    assert [item.plan.num_tokens for item in given] == [done[0][0].num_tokens]
