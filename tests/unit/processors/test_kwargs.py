"""Merging and bounding keyword arguments."""

import pytest

from processors.errors import InvalidRequestError, MediaTooLargeError, UnsupportedOptionError
from processors.kwargs import (
    check_bounds,
    effective_kwargs,
    override_sampling,
    request_settings,
    split_defaults,
)
from processors.types import DecodeLimits, MediaOptions, Modality, ModelInfo

LIMITS = DecodeLimits()
NONE = MediaOptions()
INFO = ModelInfo(
    name="m",
    family="f",
    architecture="a",
    modalities=(Modality.IMAGE, Modality.VIDEO),
    placeholders={},
    special_tokens={},
    features={},
    accepted_kwargs={
        Modality.IMAGE: ("max_pixels", "size"),
        Modality.VIDEO: ("fps", "max_pixels", "num_frames", "size"),
    },
    fingerprint="0" * 64,
    fingerprint_inputs={},
    prompt_fingerprint=None,
    tokenizer_json=None,
)


def test_flat_names_reach_every_modality_that_knows_them():
    """A flat name goes to all, a grouped one to its own."""
    request = {"max_pixels": 5, "images_kwargs": {"size": {"height": 32}}, "fps": 1}
    image = effective_kwargs(INFO, Modality.IMAGE, request, NONE)
    video = effective_kwargs(INFO, Modality.VIDEO, request, NONE)
    assert image == {"max_pixels": 5, "size": {"height": 32}}
    assert video == {"max_pixels": 5, "fps": 1}


@pytest.mark.parametrize(
    "request_kwargs",
    [
        {"nonsense": 1},
        {"fps": 1, "device": "cuda"},
        {"images_kwargs": {"fps": 1}},
        {"images_kwargs": {"patch_size": 7}},
        {"text_kwargs": {"padding": True}},
        {"do_rescale": False},
        {"<script>": 1},
    ],
)
def test_unknown_and_forbidden_names_are_refused(request_kwargs):
    """Whatever the item's modality, a name that nobody takes is an error."""
    for modality in INFO.modalities:
        with pytest.raises(UnsupportedOptionError) as caught:
            effective_kwargs(INFO, modality, request_kwargs, NONE)
        assert "<" not in caught.value.message


@pytest.mark.parametrize(
    "request_kwargs",
    [
        {"size": 32, "images_kwargs": {"size": 32}},
        {"images_kwargs": [1]},
        {"fps": 1, "num_frames": 2},
        {"videos_kwargs": {"fps": 1, "num_frames": 2}},
    ],
)
def test_contradictions_are_refused(request_kwargs):
    """A name given twice, a group that is no object, two ways to sample."""
    with pytest.raises(InvalidRequestError):
        effective_kwargs(INFO, Modality.IMAGE, request_kwargs, NONE)


def test_a_medium_s_option_wins_over_the_request():
    """The option replaces the other way to sample as well."""
    options = MediaOptions(num_frames=4)
    merged = effective_kwargs(INFO, Modality.VIDEO, {"fps": 1}, options)
    assert merged == {"num_frames": 4}
    with pytest.raises(InvalidRequestError):
        effective_kwargs(INFO, Modality.VIDEO, {}, MediaOptions(fps=1.0, num_frames=4))


def test_sampling_of_a_higher_level_ends_the_lower_one():
    """The server's fps does not meet a request's num_frames."""
    assert override_sampling({"fps": 2, "size": 1}, {"num_frames": 8}) == {
        "size": 1,
        "num_frames": 8,
    }


def test_settings_are_true_or_false():
    """Switches of the whole request are told apart from keyword arguments."""
    assert request_settings({"use_audio_in_video": True, "fps": 1}) == {"use_audio_in_video": True}
    assert effective_kwargs(INFO, Modality.IMAGE, {"use_audio_in_video": True}, NONE) == {}
    with pytest.raises(InvalidRequestError):
        request_settings({"use_audio_in_video": 1})


def test_server_defaults_may_be_named_shortly():
    """Both the groups and the modalities' names are taken."""
    assert split_defaults({"image": {"size": 1}}, Modality.IMAGE) == {"size": 1}
    assert split_defaults({"videos_kwargs": {"fps": 1}}, Modality.VIDEO) == {"fps": 1}
    assert split_defaults({"videos_kwargs": {"fps": 1}}, Modality.AUDIO) == {}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"longest_edge": 1e11}},
        {"size": {"height": 8192, "width": 10**9}},
        {"size": 100_000},
        {"size": [64, 10**7]},
        {"max_pixels": 10**12},
        {"num_frames": 10**6},
        {"tile_size": 10**6},
        {"crop_size": {"height": 8192, "width": 12208}},
        {"image_grid_pinpoints": [[336, 10**6]]},
    ],
)
def test_what_would_be_too_large_is_refused_before_planning(kwargs):
    """Sizes are bounded by the decoded pixels and frames."""
    with pytest.raises(MediaTooLargeError):
        check_bounds(kwargs, {}, LIMITS)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_pixels": 0},
        {"max_pixels": -1},
        {"max_pixels": float("nan")},
        {"max_pixels": "many"},
        {"fps": "x y"},
        {"fps": 0},
        {"fps": [1]},
        {"size": {"depth": 1}},
        {"size": {"height": 1}},
        {"size": [1, 2, 3]},
        {"tile_size": 16},
        {"max_image_size": {"longest_edge": 16}},
        {"max_patches": 65},
        {"min_frames": {}},
        {"image_mean": [1, 2]},
        {"image_mean": [300, 0, 0]},
        {"image_std": [0, 1, 1]},
        {"image_std": "x"},
        {"image_grid_pinpoints": []},
        {"image_grid_pinpoints": [[32, 32]] * 65},
        {"image_grid_pinpoints": [32]},
        {"overflow_strategy": "a/../b"},
        {"max_soft_tokens": 10**6},
    ],
)
def test_values_that_make_no_sense_are_refused(kwargs):
    """Wrong kinds, nothing positive, absurd counts."""
    with pytest.raises(InvalidRequestError):
        check_bounds(kwargs, {}, LIMITS)


def test_sane_values_pass():
    """Areas are told from edges by the processor's own value."""
    area = {"size": {"longest_edge": 12_845_056, "shortest_edge": 3136}}
    check_bounds({"size": {"longest_edge": 1_000_000, "shortest_edge": None}}, area, LIMITS)
    # The smaller of two areas may be as small as an edge.
    check_bounds({"size": {"longest_edge": 1_000_000, "shortest_edge": 50_176}}, area, LIMITS)
    with pytest.raises(MediaTooLargeError):
        check_bounds({"size": {"shortest_edge": 50_176}}, {"size": {"shortest_edge": 336}}, LIMITS)
    check_bounds(
        {
            "size": {"height": 224, "width": 224},
            "crop_size": 336,
            "max_image_size": {"longest_edge": 364},
            "max_pixels": 1_003_520,
            "image_mean": 0.5,
            "image_std": [0.5, 0.5, 0.5],
            "image_grid_pinpoints": [[336, 672]],
            "fps": 0.5,
            "do_resize": False,
            "downsample_mode": "4x",
            "resample": None,
            "max_patches": 12,
        },
        {},
        LIMITS,
    )
    with pytest.raises(MediaTooLargeError):
        check_bounds({"size": {"longest_edge": 1_000_000}}, {}, LIMITS)
