"""A tokenizer in Python code: ids and places are those of its fast form."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors.engine import Engine
from processors.errors import PlaceholderMismatchError
from processors.prompt import ExpandedPrompt, PromptEncoder
from processors.types import (
    DecodeLimits,
    ItemInput,
    ItemPlan,
    Modality,
    ModelSpec,
    RenderedPrompt,
)
from tests.helpers.slow_tokenizer import make_slow_model
from tests.helpers.zoo.media import noise_image, noise_video
from tests.parity.served import frames_item, image_item, serve

FAMILIES = ("qwen3_vl", "kimi_k25", "gemma3", "minicpmv4_6", "idefics3", "mllama")
WORDS = st.lists(st.sampled_from([*"ab <>1:\n", "\n\n", "é", "<|", "0"]), max_size=4).map("".join)


class Slow:
    """A family whose tokenizer only its engine has, as a worker does."""

    def __init__(self, path: Path) -> None:
        spec = ModelSpec("slow", str(path), trust_remote_code=True)
        self.engine = Engine(spec, DecodeLimits())
        self.encoder = PromptEncoder(self.engine.info)

    def expand(self, text: str, plans: list[ItemPlan]) -> ExpandedPrompt:
        """Encode in the engine, expand the ids."""
        prompt = RenderedPrompt(((text, True),))
        written, cores = self.encoder.for_worker(prompt, plans)
        ids = np.array(self.engine.encode(written), dtype=np.int32)
        return self.encoder.expand_ids(ids, cores)


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_the_fast_tokenizer(
    name: str, model_dir: Callable[[str], Path], tmp_path: Path
):
    """Text around placeholders joins with the text that they become, as in one piece."""
    fast = serve(name, model_dir(name))
    slow = Slow(make_slow_model(model_dir(name), tmp_path / name))
    assert slow.encoder.needs_worker
    items: list[ItemInput] = [
        image_item(noise_image(100, 70), 0),
        image_item(noise_image(60, 90), 1),
    ]
    marks = [fast.family.prompts[Modality.IMAGE]] * 2
    if Modality.VIDEO in fast.family.prompts and Modality.VIDEO not in fast.family.alone:
        items.append(frames_item(noise_video(6, 84, 56)))
        marks.append(fast.family.prompts[Modality.VIDEO])
    plans = [fast.engine.plan(item) for item in items]
    own = [slow.engine.plan(item) for item in items]
    assert [plan.num_tokens for plan in own] == [plan.num_tokens for plan in plans]

    @given(words=st.lists(WORDS, min_size=len(marks) + 1, max_size=len(marks) + 1))
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(words: list[str]) -> None:
        text = words[0] + "".join(mark + word for mark, word in zip(marks, words[1:], strict=True))
        theirs = fast.expand(text, plans)
        ours = slow.expand(text, own)
        assert ours.input_ids.tolist() == theirs.input_ids.tolist()
        assert [p.offsets for p in ours.placements] == [p.offsets for p in theirs.placements]

    holds()
    with pytest.raises(PlaceholderMismatchError):
        slow.expand("no placeholder", own)


def test_bos_is_written_once(model_dir: Callable[[str], Path], tmp_path: Path):
    """A text that starts with BOS gets no second one."""
    fast = serve("gemma3", model_dir("gemma3"))
    slow = Slow(make_slow_model(model_dir("gemma3"), tmp_path / "gemma3"))
    for text in ("<bos>a", "a<bos>", "a"):
        assert slow.expand(text, []).input_ids.tolist() == fast.ids(text, [])
