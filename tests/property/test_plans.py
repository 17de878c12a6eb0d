"""What a header's plan says is what executing the item gives, for every family and size."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors.engine import Engine
from processors.errors import InvalidRequestError
from processors.types import DecodeLimits, Modality, ModelSpec
from tests.helpers.model_zoo import FAMILIES, available_families
from tests.helpers.zoo.media import noise_image
from tests.parity.served import allocate, image_item, serve

REFUSED = {"blip_2", "idefics2"}
NAMES = [
    name
    for name in available_families()
    if Modality.IMAGE in FAMILIES[name].prompts and name not in REFUSED
]

pytestmark = pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning")


@pytest.mark.parametrize("name", NAMES)
def test_images_execute_as_planned(name: str, model_dir: Callable[[str], Path]):
    """Names, shapes, dtypes, known values and replacement; `process` compares them all.

    Where a fast kernel stands in, its features are the plain processor's bit for bit.
    """
    served = serve(name, model_dir(name))
    plain = Engine(ModelSpec(name, str(model_dir(name)), allow_fast=False), DecodeLimits())

    @given(width=st.integers(8, 900), height=st.integers(8, 900))
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    def executes(width: int, height: int) -> None:
        item = image_item(noise_image(width, height))
        try:
            plan = served.engine.plan(item)
        except InvalidRequestError:
            return  # the processor does not take such a shape
        outputs = allocate(plan.tensors)
        expected = allocate(plan.tensors)
        report = served.engine.process(item, plan, outputs)
        assert plain.process(item, plan, expected).kernel == "plain"
        assert not any(t.isnan().any() for t in outputs.values() if t.is_floating_point())
        assert all(torch.equal(outputs[n], expected[n]) for n in outputs), report.kernel

    executes()
