"""The engine's refusals, bounds and descriptions, on real model directories."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from processors.engine import Engine
from processors.errors import (
    InvalidRequestError,
    MediaTooLargeError,
    ModelLoadError,
    PlanMismatchError,
    PromptTooLongError,
    UnsupportedMediaTypeError,
)
from processors.types import (
    ChatInput,
    DecodeLimits,
    ItemInput,
    MediaOptions,
    Modality,
    ModelSpec,
    RenderedPrompt,
)
from tests.helpers.zoo.media import noise_image, noise_video
from tests.parity.served import allocate, frames_item, image_item, png

# Callers name these as they always have; the release that ends them will fail these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Passing `min_pixels` and:FutureWarning")

ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def engine(model_dir: ModelDir) -> Engine:
    """Qwen2.5-VL with the default limits."""
    return Engine(ModelSpec("qwen", str(model_dir("qwen2_5_vl"))), DecodeLimits())


def test_a_plan_needs_no_pixels_and_processing_keeps_it(engine: Engine):
    """Known values, roles and layouts are told before decoding; the features follow."""
    item = image_item(noise_image(280, 196))
    plan = engine.plan(item)
    pixels, grid = plan.tensors
    assert (pixels.name, pixels.shape, pixels.role) == ("pixel_values", (280, 1176), "feature")
    assert (pixels.layout.kind, pixels.normalized, pixels.values) == ("flat", True, None)
    assert (grid.name, grid.values, grid.keep_on_cpu) == ("image_grid_thw", [[1, 14, 20]], True)
    assert (plan.num_tokens, plan.row_token_id) == (
        70,
        engine.info.placeholders[Modality.IMAGE].token_id,
    )
    outputs = allocate(plan.tensors)
    report = engine.process(item, plan, outputs)
    assert not outputs["pixel_values"].isnan().any()
    assert report.decode_ms > 0
    assert report.process_ms > 0


def test_features_are_rounded_from_exact_float32(engine: Engine):
    """A narrower output dtype is a cast of the exact values, nothing else."""
    item = image_item(noise_image(84, 56))
    plan = engine.plan(item)
    exact, narrow = allocate(plan.tensors), allocate(plan.tensors)
    narrow["pixel_values"] = torch.zeros(plan.tensors[0].shape, dtype=torch.bfloat16)
    engine.process(item, plan, exact)
    engine.process(item, plan, narrow)
    assert torch.equal(narrow["pixel_values"], exact["pixel_values"].bfloat16())


def test_outputs_of_another_shape_are_a_mismatch(engine: Engine):
    """Nothing is written where the plan and the outputs differ."""
    item = image_item(noise_image(84, 56))
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    outputs["pixel_values"] = torch.zeros((1, 1176))
    with pytest.raises(PlanMismatchError):
        engine.process(item, plan, outputs)
    assert not outputs["pixel_values"].any()


def test_a_plan_of_another_image_is_a_mismatch(engine: Engine):
    """The executed shapes are checked against the plan."""
    plan = engine.plan(image_item(noise_image(84, 56)))
    with pytest.raises(PlanMismatchError):
        engine.process(image_item(noise_image(56, 84)), plan, allocate(plan.tensors))


def test_kwargs_change_the_plan(engine: Engine):
    """Per-request keyword arguments reach the processor."""
    picture = noise_image(560, 560)
    assert engine.plan(image_item(picture)).num_tokens == 400
    assert engine.plan(image_item(picture, max_pixels=28 * 28 * 100)).num_tokens == 100


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"size": {"longest_edge": 1e11, "shortest_edge": 3136}}, MediaTooLargeError),
        ({"min_pixels": 90_000_000}, MediaTooLargeError),
        ({"resample": 99}, InvalidRequestError),
        ({"size": {"height": 224}}, InvalidRequestError),
    ],
)
def test_absurd_kwargs_are_refused(engine: Engine, kwargs: dict, error: type[Exception]):
    """Before planning where the value says it, else by the planned bytes or the processor."""
    with pytest.raises(error):
        engine.plan(image_item(noise_image(84, 56), **kwargs))


def test_an_image_the_processor_does_not_take_is_the_caller_s_fault(engine: Engine):
    """An extreme aspect ratio is refused with the size, not with the library's words."""
    with pytest.raises(InvalidRequestError, match="900 x 2 pixels"):
        engine.plan(image_item(Image.new("RGB", (900, 2))))


def test_other_modalities_are_refused(engine: Engine):
    """A model without audio takes none."""
    with pytest.raises(UnsupportedMediaTypeError):
        engine.plan(ItemInput(Modality.AUDIO, (b"RIFF",)))


def test_limits_hold_for_tokens_and_bytes(model_dir: ModelDir):
    """An item that would become too much is refused at the plan."""
    spec = ModelSpec("qwen", str(model_dir("qwen2_5_vl")))
    item = image_item(noise_image(280, 280))
    with pytest.raises(PromptTooLongError, match="100 tokens"):
        Engine(spec, DecodeLimits(max_item_tokens=99)).plan(item)
    with pytest.raises(MediaTooLargeError, match="bytes"):
        Engine(spec, DecodeLimits(max_feature_bytes=1_000_000)).plan(item)


def test_frames_of_a_list_have_one_size(engine: Engine):
    """A video given as images of different sizes is refused."""
    frames = (png(noise_image(56, 56)), png(noise_image(84, 56)))
    with pytest.raises(InvalidRequestError, match="one size"):
        engine.plan(ItemInput(Modality.VIDEO, frames))


def test_frames_of_a_list_are_thinned_and_timed(engine: Engine):
    """`max_frames` bounds them; their rate is the caller's fps, else the model's."""
    item = frames_item(noise_video(9, 56, 56), fps=4.0)
    plan = engine.plan(ItemInput(item.modality, item.data, MediaOptions(max_frames=4), item.kwargs))
    assert plan.state["frame_indices"] == (0, 3, 5, 8)
    assert (plan.source.fps, plan.source.seconds, plan.source.num_frames) == (4.0, 2.25, 9)


def test_all_frames_together_are_bounded(model_dir: ModelDir):
    """The pixels of all frames kept count against the limit."""
    spec = ModelSpec("qwen", str(model_dir("qwen2_5_vl")))
    engine = Engine(spec, DecodeLimits(max_pixels=56 * 56 * 3))
    with pytest.raises(MediaTooLargeError, match="max_frames"):
        engine.plan(frames_item(noise_video(4, 56, 56)))


def test_the_model_is_described(engine: Engine):
    """Placeholders, media tokens, features, keyword arguments and fingerprints."""
    info = engine.info
    assert info.family == "qwen2_5_vl"
    assert info.modalities == (Modality.IMAGE, Modality.VIDEO)
    assert info.placeholders[Modality.IMAGE].text == "<|image_pad|>"
    assert {"image_token", "video_token", "vision_start_token"} <= set(info.special_tokens)
    assert info.features[Modality.VIDEO] == ("pixel_values_videos",)
    assert "max_pixels" in info.accepted_kwargs[Modality.IMAGE]
    assert "device" not in info.accepted_kwargs[Modality.IMAGE]
    assert info.has_chat_template
    assert info.tokenizer_json is not None
    assert json.loads(json.dumps(info.fingerprint_inputs)) == info.fingerprint_inputs
    assert {"torch", "transformers", "pillow"} <= set(info.fingerprint_inputs["versions"])


def test_the_fingerprint_is_of_values_not_of_names(engine: Engine, model_dir: ModelDir):
    """Another name changes nothing; other defaults or another backend do."""
    path = str(model_dir("qwen2_5_vl"))
    renamed = Engine(ModelSpec("other", path, allow_fast=False), DecodeLimits()).info
    assert renamed.fingerprint == engine.info.fingerprint
    assert renamed.prompt_fingerprint == engine.info.prompt_fingerprint
    for spec in (
        ModelSpec("q", path, default_kwargs={"images_kwargs": {"max_pixels": 99_000}}),
        ModelSpec("q", path, image_backend="pil"),
        ModelSpec("q", path, video_fps=1.0),
    ):
        changed = Engine(spec, DecodeLimits()).info
        assert changed.fingerprint != engine.info.fingerprint
        assert changed.prompt_fingerprint == engine.info.prompt_fingerprint


def test_server_defaults_apply_below_the_request(model_dir: ModelDir):
    """The operator's keyword arguments hold until a request says otherwise."""
    spec = ModelSpec(
        "q", str(model_dir("qwen2_5_vl")), default_kwargs={"images_kwargs": {"max_pixels": 78_400}}
    )
    engine = Engine(spec, DecodeLimits())
    picture = noise_image(560, 560)
    assert engine.plan(image_item(picture)).num_tokens == 100
    assert engine.plan(image_item(picture, max_pixels=28 * 28 * 400)).num_tokens == 400


def test_the_pil_backend_is_that_of_transformers(model_dir: ModelDir):
    """Features come from the PIL image processor, planned by the other one."""
    path = model_dir("qwen2_5_vl")
    engine = Engine(ModelSpec("q", str(path), image_backend="pil"), DecodeLimits())
    picture = noise_image(300, 200)
    item = image_item(picture)
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    engine.process(item, plan, outputs)
    reference = AutoImageProcessor.from_pretrained(path, backend="pil")
    expected = reference(images=[picture], return_tensors="pt")
    assert torch.equal(outputs["pixel_values"], expected["pixel_values"])


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path):
    """The start stops with the reason."""
    with pytest.raises(ModelLoadError, match="'nothing' cannot be loaded"):
        Engine(ModelSpec("nothing", str(tmp_path)), DecodeLimits())


def test_warming_up_runs_every_modality(model_dir: ModelDir):
    """Also for a family with sound, images and videos."""
    engine = Engine(ModelSpec("g", str(model_dir("gemma4"))), DecodeLimits())
    assert set(engine.info.modalities) == set(Modality)
    engine.warm_up()


def test_slow_tokenizers_encode_in_the_worker(engine: Engine):
    """Special tokens mean themselves in trusted pieces only."""
    prompt = RenderedPrompt((("a <|image_pad|>", True), ("<|image_pad|>", False)), False)
    ids = engine.encode(prompt)
    image = engine.info.special_tokens["image_token"]
    assert ids.count(image) == 1
    assert ids[-1] != image


def test_rendering_needs_messages_the_template_takes(engine: Engine):
    """What the template refuses is the caller's fault."""
    with pytest.raises(InvalidRequestError):
        engine.render(ChatInput(({"role": "user", "content": 5},)))


def test_pixels_are_handed_over_without_a_copy(engine: Engine, model_dir: ModelDir):
    """Channels last, as decoded, they come out as from a contiguous tensor."""
    picture = noise_image(123, 77)
    item = image_item(picture)
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    engine.process(item, plan, outputs)
    processor = AutoImageProcessor.from_pretrained(model_dir("qwen2_5_vl"))
    contiguous = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
    expected = processor(images=[contiguous], return_tensors="pt")
    assert torch.equal(outputs["pixel_values"], expected["pixel_values"])


def test_alpha_is_kept_as_transformers_keeps_it(engine: Engine):
    """A picture with alpha goes to the processor as it is, where an option asks for it."""
    picture = noise_image(84, 56)
    picture.putalpha(noise_image(84, 56, seed=3).convert("L"))
    data = (png(picture),)
    item = ItemInput(Modality.IMAGE, data, MediaOptions(alpha="keep"))
    plan = engine.plan(item)
    outputs = allocate(plan.tensors)
    engine.process(item, plan, outputs)
    expected = engine._model.processor.image_processor(images=[picture], return_tensors="pt")
    assert torch.equal(outputs["pixel_values"], expected["pixel_values"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused(model_dir: ModelDir):
    """The start stops instead of computing elsewhere."""
    spec = ModelSpec("q", str(model_dir("qwen2_5_vl")), device="cuda:0")
    with pytest.raises(ModelLoadError, match="no CUDA"):
        Engine(spec, DecodeLimits())


def test_descriptions_and_plans_cross_processes(engine: Engine):
    """Everything that leaves the worker is small and picklable."""
    plan = engine.plan(frames_item(noise_video(4, 56, 56)))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert pickle.loads(pickle.dumps(engine.info)) == engine.info
