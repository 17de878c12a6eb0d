"""Sound through every family, its silence skipped or computed: the same bits at any length."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors.engine import Engine
from processors.types import DecodeLimits, Modality, ModelSpec
from tests.helpers.model_zoo import FAMILIES, available_families
from tests.parity.served import allocate, serve
from tests.parity.test_audio import audio_item

NAMES = [name for name in available_families() if Modality.AUDIO in FAMILIES[name].prompts]
WITHOUT_WINDOW = {
    "embedding_gemma2", "gemma3n", "gemma4", "gemma4_unified", "inkling", "muse_spark",
    "nemotron_h_omni", "parakeet_ctc", "phi4_multimodal", "vibevoice_asr", "wav2vec2",
}  # fmt: skip
"""Their extractors compute what the clip is long, nothing to be skipped."""
LONG_WINDOW = {"qwen2_5_omni", "qwen3_omni_moe"}
"""A plain run of 300 s takes long."""

pytestmark = pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_WINDOW])
def test_clips_equal_the_plain_extractor(name: str, model_dir: Callable[[str], Path]):
    """Every output is equal, of clips up to beyond a window, with silence at their end or not."""
    served = serve(name, model_dir(name))
    plain = Engine(ModelSpec(name, str(model_dir(name)), allow_fast=False), DecodeLimits())
    rate = served.processor._audio_processor.sampling_rate
    most = 30 * rate

    @given(
        num_samples=st.integers(1600, most) | st.integers(1600, 5 * rate),
        num_silent=st.integers(0, most) | st.just(0),
        seed=st.integers(0, 9),
    )
    @settings(
        max_examples=3 if name in LONG_WINDOW else 12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def equals(num_samples: int, num_silent: int, seed: int) -> None:
        samples = np.random.default_rng(seed).uniform(-0.5, 0.5, num_samples).astype(np.float32)
        samples[num_samples - min(num_silent, num_samples // 2) :] = 0
        item = audio_item(samples, rate)
        plan = served.engine.plan(item)
        assert plan == plain.plan(item)
        outputs, expected = allocate(plan.tensors), allocate(plan.tensors)
        assert served.engine.process(item, plan, outputs).kernel == "fast"
        assert plain.process(item, plan, expected).kernel == "plain"
        assert all(torch.equal(outputs[n], expected[n]) for n in outputs)

    equals()


@pytest.mark.parametrize("name", [name for name in NAMES if name in WITHOUT_WINDOW])
def test_the_others_run_their_own(name: str, model_dir: Callable[[str], Path]):
    """Where nothing can be skipped, the plain extractor runs and says so."""
    served = serve(name, model_dir(name))
    rate = served.processor._audio_processor.sampling_rate
    item = audio_item(np.full(rate, 0.25, np.float32), rate)
    plan = served.engine.plan(item)
    assert served.engine.process(item, plan, allocate(plan.tensors)).kernel == "plain"
