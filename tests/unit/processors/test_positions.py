"""Position schemes on prompts made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from processors.errors import PlanMismatchError
from processors.positions import Positions, compute_positions, token_types
from processors.prompt import ExpandedPrompt
from processors.types import FieldLayout, ItemPlacement, ItemPlan, Modality, TensorSpec
from tests.helpers.prompts import model, plan

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO
Runs = Sequence[tuple[int, int]]


def item(modality: Modality, **values: Any) -> ItemPlan:
    """Return a plan whose tensors have these values."""
    tensors = tuple(
        TensorSpec(name, "int64", (1,), "metadata", FieldLayout("batched"), True, value)
        for name, value in values.items()
    )
    return replace(plan(modality, [], None, None), tensors=tensors)


def image(*grid: int) -> ItemPlan:
    return item(IMAGE, image_grid_thw=[list(grid)])


def positions(
    scheme: str | None,
    config: Mapping[str, Any],
    length: int,
    items: Sequence[tuple[ItemPlan, Runs]],
    span: tuple[int, int] | None = None,
) -> Positions | None:
    """Return the positions of a prompt whose items stand at these runs."""
    counts = dict.fromkeys(Modality, 0)
    placements = []
    for one, runs in items:
        rows = sum(stop - start for start, stop in runs)
        own = span or ((runs[0][0], runs[-1][1]) if runs else (0, 1))
        index = counts[one.modality]
        counts[one.modality] += 1
        placements.append(ItemPlacement(one.modality, index, tuple(runs), own, rows, 7))
    prompt = ExpandedPrompt(np.zeros(length, dtype=np.int32), tuple(placements))
    info = model(positions=scheme, position_config=config)
    return compute_positions(info, prompt, [one for one, _ in items])


def ids(*args: Any, **kwargs: Any) -> list[list[int]]:
    found = positions(*args, **kwargs)
    assert found is not None
    return found.position_ids.tolist()


MERGE_2 = {"spatial_merge_size": 2}


def test_families_without_a_scheme_have_none():
    """Neither no name nor an unknown one gives positions."""
    assert positions(None, {}, 3, []) is None
    assert positions("other", {}, 3, []) is None


@pytest.mark.parametrize("scheme", ["mrope", "mrope_wide"])
def test_text_counts_up_on_every_axis(scheme):
    """A prompt without items is counted, and a decoded token goes on with it."""
    found = positions(scheme, MERGE_2, 4, [])
    assert found is not None
    assert found.position_ids.tolist() == [[0, 1, 2, 3]] * 3
    assert found.position_ids.dtype == np.int32
    assert found.delta == 0
    assert found.mm_token_type_ids.tolist() == [0] * 4


@pytest.mark.parametrize("scheme", ["mrope", "mrope_wide", "mrope_omni"])
def test_an_empty_prompt_has_no_positions(scheme):
    """The first decoded token stands at zero."""
    found = positions(scheme, MERGE_2 | {"position_id_per_seconds": 1}, 0, [])
    assert found is not None
    assert found.position_ids.shape == (3, 0)
    assert found.delta == 0


def test_an_image_goes_on_behind_its_larger_side():
    """Two rows of three, then text at three on."""
    found = positions("mrope", MERGE_2, 9, [(image(1, 4, 6), [(1, 7)])])
    assert found is not None
    assert found.position_ids.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5],
        [0, 1, 1, 1, 2, 2, 2, 4, 5],
        [0, 1, 2, 3, 1, 2, 3, 4, 5],
    ]
    assert found.delta == -3
    assert isinstance(found.delta, int)
    assert found.mm_token_type_ids.tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_items_that_touch_are_counted_one_by_one():
    """Also where one of them is at an end."""
    one = (image(1, 2, 4), [(0, 2)])
    two = (image(1, 4, 2), [(2, 4)])
    assert ids("mrope", MERGE_2, 4, [one, two]) == [[0, 0, 2, 2], [0, 0, 2, 3], [0, 1, 2, 2]]


def test_frames_stand_apart_by_their_seconds():
    """Qwen2.5-VL's frames: whole positions of the seconds between them, cut."""
    video = item(VIDEO, video_grid_thw=[[3, 2, 2]], second_per_grid_ts=[0.75])
    config = MERGE_2 | {"tokens_per_second": 2}
    assert ids("mrope", config, 4, [(video, [(0, 3)])])[0] == [0, 1, 3, 1]
    still = item(VIDEO, video_grid_thw=[[3, 2, 2]])
    assert ids("mrope", config, 4, [(still, [(0, 3)])])[0] == [0, 2, 4, 1]


def test_frames_of_their_own_are_counted_each():
    """Qwen3-VL's frames, with words between them."""
    video = item(VIDEO, video_grid_thw=[[2, 2, 4]])
    config = MERGE_2 | {"frames_apart": True}
    assert ids("mrope", config, 6, [(video, [(1, 3), (4, 6)])]) == [
        [0, 1, 1, 3, 4, 4], [0, 1, 1, 3, 4, 4], [0, 1, 2, 3, 4, 5],
    ]  # fmt: skip


def test_merged_frames_are_fewer():
    """ERNIE merges a video's frames in time, not an image's."""
    config = MERGE_2 | {"temporal_merge_size": 2}
    video = item(VIDEO, video_grid_thw=[[4, 2, 2]])
    assert ids("mrope", config, 3, [(video, [(0, 2)]), (image(1, 2, 2), [(2, 3)])]) == [
        [0, 1, 1], [0, 0, 1], [0, 0, 1],
    ]  # fmt: skip


def test_wide_rows_end_in_a_token():
    """HY V4: one column more, frames moved on by the larger side."""
    video = item(VIDEO, video_grid_thw=[[2, 2, 2]])
    assert ids("mrope_wide", MERGE_2, 6, [(video, [(1, 5)])]) == [
        [0, 1, 1, 3, 3, 5], [0, 1, 1, 3, 3, 5], [0, 1, 2, 3, 4, 5],
    ]  # fmt: skip


def test_grids_have_axes_of_their_own():
    """HunYuan: all count on, and the last axes say column, row and number."""
    images = [(image(1, 2, 2), [(1, 5)]), (image(1, 2, 2), [(5, 9)])]
    found = positions("grid_axes", MERGE_2 | {"num_axes": 4}, 10, images)
    assert found is not None
    count = list(range(10))
    assert found.position_ids.tolist() == [
        count,
        [0, 1, 0, 1, 4, 5, 0, 1, 8, 9],
        [0, 1, 0, 0, 4, 5, 0, 0, 8, 9],
        [0, 1, 0, 0, 4, 5, 1, 1, 8, 9],
    ]
    assert found.delta == 0


OMNI = MERGE_2 | {"position_id_per_seconds": 2}


def omni_video(frames: int, seconds: float) -> ItemPlan:
    return item(VIDEO, video_second_per_grid=[seconds], video_grid_thw=[[frames, 2, 2]])


def test_omni_goes_on_behind_the_last_frame():
    """Time may be larger than the sides; an image's may not."""
    assert ids("mrope_omni", OMNI, 5, [(omni_video(3, 1.0), [(1, 4)])])[0] == [0, 1, 3, 5, 6]
    assert ids("mrope_omni", OMNI, 4, [(image(1, 2, 4), [(1, 3)])])[0] == [0, 1, 1, 3]


def test_frames_at_fractions_keep_them():
    """Qwen3-Omni counts in fractions where the seconds say so, Qwen2.5-Omni cuts them."""
    video = [(omni_video(3, 0.75), [(1, 4)])]
    found = positions("mrope_omni", OMNI, 5, video)
    assert found is not None
    assert found.position_ids.dtype == np.float32
    assert found.position_ids[0].tolist() == [0, 1, 2.5, 4, 5]
    found = positions("mrope_omni", OMNI, 4, [(omni_video(2, 0.75), [(1, 3)])])
    assert found is not None
    assert found.delta == 0.5
    cut = positions("mrope_omni", OMNI | {"shared_markers": True}, 5, video)
    assert cut is not None
    assert cut.position_ids.dtype == np.int32
    assert cut.position_ids[0].tolist() == [0, 1, 2, 4, 5]


def with_sound(video: Runs, sound: Runs) -> list[tuple[ItemPlan, Runs]]:
    frames = sum(stop - start for start, stop in video)
    return [(omni_video(frames, 1.0), video), (item(AUDIO), sound)]


def test_a_video_and_its_sound_start_together():
    """Frames by their seconds, sound by one; the count goes on behind the last run."""
    trailing_sound = with_sound([(2, 3), (5, 6)], [(3, 5), (6, 8)])
    assert ids("mrope_omni", OMNI, 10, trailing_sound, (1, 9))[0] == [
        0, 1, 2, 2, 3, 4, 4, 5, 6, 7,
    ]  # fmt: skip
    trailing_frames = with_sound([(2, 3), (4, 6)], [(3, 4)])
    assert ids("mrope_omni", OMNI, 8, trailing_frames, (1, 7))[0] == [0, 1, 2, 2, 4, 6, 7, 8]


def test_markers_of_a_video_with_sound_share_positions():
    """Qwen2.5-Omni: the two tokens before, and the two behind, stand at one position each."""
    items = with_sound([(3, 4), (6, 7)], [(4, 6), (7, 9)])
    config = OMNI | {"shared_markers": True}
    assert ids("mrope_omni", config, 12, items, (2, 10))[0] == [
        0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7,
    ]  # fmt: skip


def test_sound_alone_counts_as_text():
    """A clip's rows go up by one."""
    found = positions("mrope_omni", OMNI, 4, [(item(AUDIO), [(1, 3)])])
    assert found is not None
    assert found.position_ids.tolist() == [[0, 1, 2, 3]] * 3
    assert found.mm_token_type_ids.tolist() == [0, 3, 3, 0]


def test_an_item_without_rows_moves_nothing():
    """A grid of nothing stands nowhere."""
    assert ids("mrope", MERGE_2, 2, [(image(0, 2, 2), [])])[0] == [0, 1]


@pytest.mark.parametrize(
    ("scheme", "one", "runs"),
    [
        ("mrope", image(1, 4, 4), [(0, 3)]),
        ("mrope", image(1, 4, 4), [(0, 2), (3, 5)]),
        ("mrope", item(IMAGE), [(0, 4)]),
        ("grid_axes", image(1, 4, 4), [(0, 4)]),
    ],
)
def test_rows_that_are_not_the_grid_s_are_a_defect(scheme, one, runs):
    """A plan that contradicts itself is refused, never positioned wrongly."""
    with pytest.raises(PlanMismatchError):
        positions(scheme, MERGE_2 | {"num_axes": 3}, 6, [(one, runs)])


def test_token_types_tell_the_modality_of_rows():
    """Image 1, video 2, audio 3, text 0."""
    placements = tuple(
        ItemPlacement(m, 0, ((n, n + 1),), (n, n + 1), 1, 7)
        for n, m in enumerate((IMAGE, VIDEO, AUDIO))
    )
    prompt = ExpandedPrompt(np.zeros(4, dtype=np.int32), placements)
    assert token_types(prompt).tolist() == [1, 2, 3, 0]
