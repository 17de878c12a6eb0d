"""Random prompts of every family: ids are those of the joint Hugging Face call, items in place."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors import decode
from processors.errors import FramesMissing
from processors.types import DecodeLimits, ItemInput, ItemPlan, MediaOptions, Modality
from tests.helpers.model_zoo import FAMILIES, Family, available_families
from tests.helpers.zoo.family import Sample
from tests.helpers.zoo.media import noise_image, noise_video, tone, video_metadata
from tests.parity.served import Served, allocate, frames_item, image_item, serve
from tests.parity.test_audio import audio_item

pytestmark = pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning")

NO_JOINT_CALL = {
    "blip_2": "not served", "idefics2": "not served",
    "colqwen2": "its call takes images or text, not both",
    "voxtral": "its call takes no text with audio",
}  # fmt: skip
ONE_OF = {
    ("perception_lm", Modality.IMAGE): "its call takes no images of different numbers of tiles",
    ("molmo2", Modality.VIDEO): "its call takes one video",
    ("glmasr", Modality.AUDIO): "its call takes one clip a prompt",
    ("audioflamingo3", Modality.AUDIO): "its call takes one clip a prompt",
    ("musicflamingo", Modality.AUDIO): "its call takes one clip a prompt",
    ("qwen3_asr", Modality.AUDIO): "its call takes one clip a prompt",
}
FPS = 2.0
SIZES = {
    "minimax_m3_vl": st.sampled_from([28, 56, 84, 140])  # its video processor does not resize
}
"""Sides of frames, where a processor does not take all of them."""
WORDS = st.lists(
    st.sampled_from([*"ab <>|\n\t.:é图🙂", "\n\n", "  ", "the ", "<|", "|>", "<b>", "[", "]"]),
    max_size=5,
).map("".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def families() -> list[str]:
    """Families that have a joint call to compare with, and a placeholder."""
    return [
        name
        for name in available_families()
        if name not in NO_JOINT_CALL and any(FAMILIES[name].prompts.values())
    ]


@st.composite
def plans_for(draw: st.DrawFn, family: Family) -> list[tuple[str, Modality | None]]:
    """Return a prompt in pieces: words, and modalities in any order, neighbours included."""
    kinds = [m for m, text in family.prompts.items() if text]
    alone = [m for m in kinds if m in family.alone]
    if alone and draw(st.booleans()):
        kinds = [draw(st.sampled_from(alone))]
    else:
        kinds = [m for m in kinds if m not in alone] or kinds
    most = {
        m: 1 if m is Modality.VIDEO or (family.name, m) in ONE_OF else family.max_items.get(m, 3)
        for m in kinds
    }
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    pieces: list[tuple[str, Modality | None]] = [(draw(WORDS), None)]
    left = dict(most)
    for modality in chosen:
        if left[modality]:
            left[modality] -= 1
            pieces += [(family.prompts[modality], modality), (draw(st.just("") | WORDS), None)]
    return pieces


def media_of(
    served: Served, draw: Callable[..., int], modalities: Sequence[Modality]
) -> tuple[list[ItemInput], Sample]:
    """Return media of any size, as our items and as the call takes them."""
    family = served.family
    sample = Sample("", [], [], [])
    items = []
    counts = dict.fromkeys(Modality, 0)
    for seed, modality in enumerate(modalities):
        index, counts[modality] = counts[modality], counts[modality] + 1
        if modality is Modality.IMAGE:
            picture = noise_image(draw(st.integers(24, 330)), draw(st.integers(24, 330)), seed=seed)
            sample.images.append(picture)
            items.append(image_item(picture, index))
        elif modality is Modality.VIDEO:
            side = SIZES.get(family.name, st.integers(56, 150))
            clip = noise_video(draw(st.integers(2, 9)), draw(side), draw(side), seed=seed)
            sample.videos.append(clip)
            items.append(frames_item(clip, index))
        else:
            rate = served.processor._audio_processor.sampling_rate
            item = audio_item(tone(draw(st.integers(2, 24)) / 10, rate, seed=seed), rate, index)
            sample.audios.append(
                decode.decode_audio(
                    item.data[0], sample_rate_hz=rate, options=MediaOptions(), limits=DecodeLimits()
                )
            )
            items.append(item)
    return items, sample


def plan_of(served: Served, item: ItemInput) -> ItemPlan:
    """Return an item's plan; where the tokens follow from pixels, what processing makes of it."""
    plan = served.engine.plan(item)
    if plan.exact:
        return plan
    try:
        served.engine.process(item, plan, allocate(plan.tensors))
    except FramesMissing as replanned:
        return replanned.plan
    return plan


def joint_ids(served: Served, sample: Sample) -> list[int]:
    """Return the ids of the joint call, frames as far apart as lists of frames are here."""
    call = served.family.call(sample)
    if sample.videos:
        call["video_metadata"] = [
            video_metadata(v.shape[0], v.shape[2], v.shape[1])
            | {"fps": FPS, "duration": v.shape[0] / FPS}
            for v in sample.videos
        ]
    ids: list[int] = served.processor(**call)["input_ids"][0].tolist()
    return ids


@pytest.mark.parametrize("name", families())
def test_ids_of_any_prompt_equal_the_joint_call(name: str, model_dir: Callable[[str], Path]):
    """Counts, orders, sizes, neighbours and the text around them at random."""
    served = serve(name, model_dir(name))
    family = served.family
    media_ids = set(served.engine.info.special_tokens.values())

    @given(data=st.data())
    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(data: st.DataObject) -> None:
        pieces = data.draw(plans_for(family))
        modalities = [m for _, m in pieces if m is not None]
        items, sample = media_of(served, data.draw, modalities)
        text = "".join(words for words, _ in pieces)
        sample = Sample(text, sample.images, sample.videos, sample.audios)
        plans = [plan_of(served, item) for item in items]
        ordered: list[ItemPlan] = sorted(
            plans, key=lambda plan: list(Modality).index(plan.modality)
        )

        prompt = served.expand(text, ordered)

        assert prompt.input_ids.tolist() == joint_ids(served, sample)
        assert [p.modality for p in prompt.placements] == modalities
        for placement, plan in zip(prompt.placements, plans, strict=True):
            rows = [n for start, stop in placement.offsets for n in range(start, stop)]
            assert len(rows) == placement.num_tokens == plan.num_tokens
            assert {int(prompt.input_ids[n]) for n in rows} <= {plan.row_token_id}
            assert plan.row_token_id is None or plan.row_token_id in media_ids

    holds()
