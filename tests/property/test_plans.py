"""What a header's plan says is what executing the item gives, for every family and size."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors import audio_stage, decode, image_stage, video_stage
from processors.engine import Engine
from processors.errors import FramesMissing, InvalidRequestError, MediaTooLargeError
from processors.survey.media import mp4
from processors.types import DecodeLimits, ItemInput, ItemPlan, Modality, ModelSpec
from tests.helpers.model_zoo import FAMILIES, available_families
from tests.helpers.zoo.media import noise_image, noise_video, tone
from tests.parity.served import Outputs, Served, allocate, frames_item, image_item, serve
from tests.parity.test_audio import audio_item

REFUSED = {"blip_2", "idefics2"}
DATA_DEPENDENT = {"video_llama_3"}
"""Families whose tokens follow from pixels: executing may give a new plan."""
Plan = Callable[[Served, ItemInput], ItemPlan]

pytestmark = pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning")
few = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


def families(modality: Modality) -> list[str]:
    """Families that are served and take a modality."""
    return [
        name
        for name in available_families()
        if modality in FAMILIES[name].prompts and name not in REFUSED
    ]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plans an item; whatever would decode a pixel or a sample fails the test."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan decodes nothing")

    def planned(served: Served, item: ItemInput) -> ItemPlan:
        with monkeypatch.context() as patch:
            for module in (decode, image_stage, video_stage, audio_stage):
                for name in ("decode_image", "decode_frames", "decode_audio"):
                    if hasattr(module, name):
                        patch.setattr(module, name, refuse)
            return served.engine.plan(item)

    return planned


def executed(served: Served, item: ItemInput, plan: ItemPlan) -> tuple[ItemPlan, Outputs]:
    """Execute a planned item; `process` compares names, shapes, dtypes, values and replacement."""
    outputs = allocate(plan.tensors)
    try:
        served.engine.process(item, plan, outputs)
    except FramesMissing as replanned:
        assert served.family.name in DATA_DEPENDENT
        assert not plan.exact
        plan = replanned.plan
        outputs = allocate(plan.tensors)
        served.engine.process(item, plan, outputs)
    for spec in plan.tensors:
        # One stacked entry an item: what a consumer stacks it by.
        assert spec.layout.kind != "batched" or spec.shape[0] == 1, spec.name
        assert not (outputs[spec.name].is_floating_point() and outputs[spec.name].isnan().any())
    return plan, outputs


@pytest.mark.parametrize("name", families(Modality.IMAGE))
def test_images_execute_as_planned(name: str, plan: Plan, model_dir: Callable[[str], Path]):
    """Where a fast kernel stands in, its features are the plain processor's bit for bit."""
    served = serve(name, model_dir(name))
    plain = Engine(ModelSpec(name, str(model_dir(name)), allow_fast=False), DecodeLimits())

    @given(width=st.integers(8, 900), height=st.integers(8, 900))
    @few
    def executes(width: int, height: int) -> None:
        item = image_item(noise_image(width, height))
        try:
            made = plan(served, item)
        except InvalidRequestError:
            return  # the processor does not take such a shape
        _, outputs = executed(served, item, made)
        expected = allocate(made.tensors)
        assert plain.process(item, made, expected).kernel == "plain"
        assert all(torch.equal(outputs[n], expected[n]) for n in outputs)

    executes()


@pytest.mark.parametrize("name", families(Modality.VIDEO))
def test_videos_execute_as_planned(name: str, plan: Plan, model_dir: Callable[[str], Path]):
    """Files and lists of frames, short and long enough for several rows of a grid."""
    served = serve(name, model_dir(name))

    @given(
        num_frames=st.integers(1, 26),
        width=st.sampled_from([28, 56, 90, 112, 168]),
        height=st.sampled_from([28, 56, 70, 140, 196]),
        is_file=st.booleans(),
    )
    @few
    def executes(num_frames: int, width: int, height: int, is_file: bool) -> None:
        if is_file:
            data = mp4(num_frames, width, height, fps=4, seed=num_frames)
            item = ItemInput(Modality.VIDEO, (data,))
        else:
            item = frames_item(noise_video(max(num_frames, 2), height, width))
        try:
            made = plan(served, item)
        except (InvalidRequestError, MediaTooLargeError):
            return  # the processor does not take such a video
        executed(served, item, made)

    executes()


@pytest.mark.parametrize("name", families(Modality.AUDIO))
def test_clips_execute_as_planned(name: str, plan: Plan, model_dir: Callable[[str], Path]):
    """Clips of any length up to a few windows of what chunks."""
    served = serve(name, model_dir(name))
    rate = served.processor._audio_processor.sampling_rate

    @given(num_samples=st.integers(rate // 20, 9 * rate) | st.integers(29 * rate, 32 * rate))
    @few
    def executes(num_samples: int) -> None:
        item = audio_item(tone(num_samples / rate, rate), rate)
        try:
            made = plan(served, item)
        except (InvalidRequestError, MediaTooLargeError):
            return  # too short for the model, or longer than its window
        executed(served, item, made)

    executes()
