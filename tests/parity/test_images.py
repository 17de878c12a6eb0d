"""Images of every family: ids and features equal those of the joint Hugging Face call."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from processors.engine import Engine
from processors.errors import InvalidRequestError, ModelLoadError
from processors.types import DecodeLimits, Modality, ModelSpec, PadSpec
from tests.helpers.model_zoo import FAMILIES, Sample, available_families, make_sample
from tests.parity.served import assert_joint, image_item, serve
from tests.parity.tolerances import OTHER_IDS

IMAGE_FAMILIES = [n for n in available_families() if Modality.IMAGE in FAMILIES[n].prompts]

NO_PROTOCOL = {
    "blip_2": "it has no placeholder: rows stand before every prompt; refused with the reason",
    "idefics2": "what an image becomes depends on the text beside it; refused with the reason",
}
NOT_JOINT = {
    "colqwen2": "its call takes images or text, not both",
    "perception_lm": "its call takes no images of different numbers of tiles",
}

LAYOUTS: dict[str, tuple[list[tuple[int, int]], Callable[[str], str]]] = {
    "one": ([(224, 168)], lambda image: f"Before {image}after."),
    "adjacent": ([(131, 300), (131, 300)], lambda image: f"{image}{image}"),
    "mixed": ([(96, 160), (640, 400), (131, 300)], lambda image: f"a\n{image} b {image}{image}\n"),
}


def _cases() -> list[tuple[str, str]]:
    served = [name for name in IMAGE_FAMILIES if name not in NO_PROTOCOL]
    return [(name, layout) for name in served for layout in LAYOUTS]


@pytest.mark.parametrize(("name", "layout"), _cases())
def test_images_equal_the_joint_call(name: str, layout: str, model_dir: Callable[[str], Path]):
    """One to three images of mixed sizes, with text before, between and after, or none."""
    family = FAMILIES[name]
    sizes, prompt = LAYOUTS[layout]
    if len(sizes) > family.max_items.get(Modality.IMAGE, len(sizes)):
        sizes, prompt = LAYOUTS["one"]
    if name in NOT_JOINT:
        pytest.skip(NOT_JOINT[name])
    served = serve(name, model_dir(name))
    sample = make_sample(family, images=sizes, text=prompt(family.prompts[Modality.IMAGE]))
    results = [served.run(image_item(image, i)) for i, image in enumerate(sample.images)]

    joint = served.processor(**family.call(sample))

    assert_joint(name, results, dict(joint))
    has_placeholder = family.prompts[Modality.IMAGE] or family.written
    if has_placeholder and (name, "image") not in OTHER_IDS:
        ours = served.ids(f"{family.written}{sample.text}", [plan for plan, _ in results])
        assert ours == joint["input_ids"][0].tolist()


def test_what_a_processor_stumbles_over_is_refused(model_dir: Callable[[str], Path]):
    """DeepSeek-VL hybrid's forgets a variable where nothing is resized."""
    served = serve("deepseek_vl_hybrid", model_dir("deepseek_vl_hybrid"))
    sample = make_sample(served.family, images=[(224, 168)])
    with pytest.raises(InvalidRequestError, match="these mm_processor_kwargs"):
        served.engine.plan(image_item(sample.images[0], do_resize=False))


def test_colqwen2_equals_its_call_with_images_alone(model_dir: Callable[[str], Path]):
    """Its call writes the prompt itself and stands images beside each other, padded."""
    served = serve("colqwen2", model_dir("colqwen2"))
    sample = make_sample(served.family, images=[(224, 168), (400, 300)])
    results = [served.run(image_item(image, i)) for i, image in enumerate(sample.images)]
    joint = served.processor(images=list(sample.images), return_tensors="pt")
    for index, (plan, outputs) in enumerate(results):
        rows = outputs["pixel_values"].shape[1]
        assert torch.equal(outputs["pixel_values"][0], joint["pixel_values"][index, :rows])
        assert not joint["pixel_values"][index, rows:].any()
        assert torch.equal(outputs["image_grid_thw"][0], joint["image_grid_thw"][index])
        ids = served.ids(served.processor.visual_prompt_prefix, [plan])
        assert ids == joint["input_ids"][index][joint["attention_mask"][index].bool()].tolist()
    (spec,) = (s for s in results[0][0].tensors if s.name == "pixel_values")
    assert (spec.layout.kind, spec.pad) == ("batched", PadSpec((1,), 0.0))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava_next", "gemma3", "idefics3"])
def test_an_item_is_the_same_alone_and_among_others(name: str, model_dir: Callable[[str], Path]):
    """Features of an image do not depend on what else stands in the request."""
    served = serve(name, model_dir(name))
    sample: Sample = make_sample(FAMILIES[name], images=[(200, 120), (500, 330)])
    first, second = (image_item(image, i) for i, image in enumerate(sample.images))
    _, together = served.run(second)
    served.run(first)
    _, again = served.run(second)
    assert {k: v.tolist() for k, v in together.items()} == {k: v.tolist() for k, v in again.items()}


@pytest.mark.parametrize("name", sorted(NO_PROTOCOL))
def test_a_model_that_cannot_be_right_is_refused(name: str, model_dir: Callable[[str], Path]):
    """A processor whose images cannot be told apart does not load, and says why."""
    with pytest.raises(ModelLoadError, match=r"no placeholder|depends on the text"):
        Engine(ModelSpec(name, str(model_dir(name))), DecodeLimits())
