"""Per-request processor keyword arguments: which are taken, who wins, and how large they may be.

No torch here: the API process merges what a caller sent (`effective_kwargs`), the worker bounds the
result before anything is planned from it (`check_bounds`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from processors.errors import InvalidRequestError, MediaTooLargeError, UnsupportedOptionError
from processors.types import DecodeLimits, MediaOptions, Modality, ModelInfo

GROUPS: Mapping[str, Modality] = {
    "images_kwargs": Modality.IMAGE,
    "videos_kwargs": Modality.VIDEO,
    "audio_kwargs": Modality.AUDIO,
}
"""Names under which a caller groups keyword arguments by modality."""

SETTINGS = frozenset({"use_audio_in_video"})
"""Flat names that are switches of the whole request (`ItemInput.settings`), not of one modality."""

FORBIDDEN = frozenset({
    # place and layout
    "device", "return_tensors", "data_format", "input_data_format", "patch_size", "merge_size",
    "temporal_patch_size", "encoder_patch_size", "pooling_kernel_size", "pooling_size",
    "downsample_factor", "disable_grouping", "default_to_square", "do_convert_rgb", "do_rescale",
    "rescale_factor", "do_normalize", "do_pad", "pad_size", "padding", "pad_to_multiple_of",
    "return_attention_mask", "image_seq_length", "num_image_tokens", "stack_frames",
    # what the service itself decides or knows
    "do_sample_frames", "video_metadata", "return_metadata", "return_row_col_info",
    "return_legacy_image_output", "raw_speech", "sampling_rate", "load_audio_backend",
    "load_audio_from_video", "use_audio_in_video", "multi_page", "max_source_positions",
    # would read a file, or format with a caller's string
    "font", "draw_on_frames", "frame_timestamp_format", "box", "color",
})  # fmt: skip
"""Typed keyword arguments of processors that no caller may set."""

_MIN_EDGE, _MAX_EDGE = 16, 8192
_MIN_TILE = 112
"""Smallest edge of a tile: a picture of the largest edge is cut into some thousand of them."""
_MAX_COUNT = 64
_MAX_NUMBER = 65_536
_AREA_FROM = 20_000
"""A default `longest_edge` above this is an area, and so is `shortest_edge` beside it: Qwen's
processors give pixels under these names."""
_AREA_EDGES = frozenset({"longest_edge", "shortest_edge"})

_AREA_NAMES = frozenset({"min_pixels", "max_pixels", "total_pixels"})
_EDGE_NAMES = frozenset({
    "height", "width", "max_height", "max_width", "longest_edge", "shortest_edge", "tile_size",
    "scale_resolution", "max_image_size", "min_image_size", "min_size",
    "pan_and_scan_min_crop_size",
})  # fmt: skip
_TILE_NAMES = frozenset({"tile_size", "scale_resolution", "max_image_size"})
_COUNT_NAMES = frozenset({
    "max_patches", "min_patches", "max_tiles", "min_tiles", "max_num_tiles", "max_image_tiles",
    "max_slice_nums", "max_crops", "dynamic_hd", "pan_and_scan_max_num_crops",
    "patch_expand_factor",
})  # fmt: skip
_FRAME_NAMES = frozenset({"num_frames", "max_frames", "min_frames", "max_num_frames"})
_SIZE_NAMES = frozenset({"size", "crop_size", "high_res_size", "max_image_size"})
_PAIR_LISTS = frozenset({"image_grid_pinpoints", "split_resolutions"})
_COLOR_LISTS = frozenset({
    "image_mean", "image_std", "high_res_image_mean", "high_res_image_std", "background_color",
})  # fmt: skip
_WORD_NAMES = frozenset({
    "downsample_mode", "overflow_strategy", "small_image_upsize", "vision_input_type",
})  # fmt: skip
"""Names whose values are words, which the processors themselves know."""
_WORD = re.compile(r"[A-Za-z0-9_+.-]{1,32}")


def effective_kwargs(
    info: ModelInfo,
    modality: Modality,
    request_kwargs: Mapping[str, Any],
    media_options: MediaOptions,
) -> dict[str, Any]:
    """Merge what a request and one of its media say into flat keyword arguments of a modality.

    The media option wins over the request; the server's defaults and the model's own come later, in
    the engine. A flat name goes to every modality that knows it.

    Args:
        info: The served model, for the names its processors take.
        modality: The modality of the item.
        request_kwargs: `mm_processor_kwargs` as sent: flat names and `images_kwargs`,
            `videos_kwargs`, `audio_kwargs`.
        media_options: The options of the item's own Media value.

    Returns:
        Names and values as sent; bounded later by `check_bounds`.

    Raises:
        UnsupportedOptionError: If a name is unknown or forbidden, or a group is not an object.
        InvalidRequestError: If a name stands both flat and in a group, or `fps` and `num_frames`
            stand at one level.
    """
    flat: dict[str, Any] = {}
    grouped: dict[Modality, Mapping[str, Any]] = {}
    for name, value in request_kwargs.items():
        if name in GROUPS:
            grouped[GROUPS[name]] = _check_group(info, name, value)
        elif name not in SETTINGS:
            _check_name(name, {n for names in info.accepted_kwargs.values() for n in names})
            flat[name] = value
    own = grouped.get(modality, {})
    known = info.accepted_kwargs.get(modality, ())
    if twice := sorted(set(own) & set(flat)):
        raise InvalidRequestError(f"'{twice[0]}' is given twice, flat and in a group.", twice[0])
    merged = {name: value for name, value in flat.items() if name in known} | dict(own)
    check_sampling(flat)
    check_sampling(merged)
    if modality is Modality.VIDEO:
        merged = override_sampling(merged, _sampling_options(media_options))
    return merged


def request_settings(request_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the switches of the whole request that stand among its keyword arguments.

    Raises:
        InvalidRequestError: If a switch is not true or false.
    """
    found = {name: request_kwargs[name] for name in SETTINGS if name in request_kwargs}
    for name, value in found.items():
        if not isinstance(value, bool):
            raise InvalidRequestError(f"'{name}' is true or false.", name)
    return found


def check_sampling(kwargs: Mapping[str, Any]) -> None:
    """Refuse `fps` together with `num_frames`.

    Raises:
        InvalidRequestError: If both are given.
    """
    if kwargs.get("fps") is not None and kwargs.get("num_frames") is not None:
        raise InvalidRequestError("Give either 'fps' or 'num_frames', not both.", "fps")


def override_sampling(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` on top; `fps` and `num_frames` end each other."""
    merged = dict(base)
    if over.get("fps") is not None:
        merged.pop("num_frames", None)
    if over.get("num_frames") is not None:
        merged.pop("fps", None)
    return merged | dict(over)


def split_defaults(default_kwargs: Mapping[str, Any], modality: Modality) -> dict[str, Any]:
    """Return the server's default keyword arguments of one modality (`ModelSpec.default_kwargs`).

    Besides the three groups the short keys `image`, `video` and `audio` are taken.
    """
    for name, group in GROUPS.items():
        if group is modality:
            return dict(default_kwargs.get(name) or default_kwargs.get(modality.value) or {})
    return {}


def check_bounds(
    kwargs: Mapping[str, Any], defaults: Mapping[str, Any], limits: DecodeLimits
) -> None:
    """Check every value's kind and size, before anything is planned from it.

    Args:
        kwargs: Effective keyword arguments of one modality.
        defaults: The sub-processor's own values, which tell whether an "edge" is an area.
        limits: What may be decoded.

    Raises:
        InvalidRequestError: If a value has the wrong kind, is not positive, or is absurd.
        MediaTooLargeError: If a size asks for more pixels or frames than may be decoded.
    """
    for name, value in kwargs.items():
        if value is None:
            continue
        if name in _SIZE_NAMES:
            _check_size(name, value, defaults, limits)
        elif name in _PAIR_LISTS:
            _check_pairs(name, value, limits)
        elif name in _COLOR_LISTS:
            _check_colors(name, value)
        else:
            _check_scalar(name, value, limits)


def _check_group(info: ModelInfo, group: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"'{group}' is an object.", group)
    for name in value:
        _check_name(name, set(info.accepted_kwargs.get(GROUPS[group], ())))
    check_sampling(value)
    return value


def _check_name(name: str, known: set[str]) -> None:
    if name in known:
        return
    shown = name if _WORD.fullmatch(name) else "A keyword argument"
    if name in FORBIDDEN:
        raise UnsupportedOptionError(
            f"{shown} would change the place or layout of the features and cannot be set.", shown
        )
    raise UnsupportedOptionError(f"{shown} is not known to this model's processor.", shown)


def _sampling_options(options: MediaOptions) -> dict[str, Any]:
    given = {"fps": options.fps, "num_frames": options.num_frames}
    check_sampling(given)
    return {name: value for name, value in given.items() if value is not None}


def _check_size(
    name: str, value: object, defaults: Mapping[str, Any], limits: DecodeLimits
) -> None:
    if isinstance(value, Mapping):
        default = defaults.get(name)
        known = default if isinstance(default, Mapping) else {}
        holds_areas = (known.get("longest_edge") or 0) > _AREA_FROM
        for key, number in value.items():
            if number is None:
                continue
            if key not in _EDGE_NAMES | _AREA_NAMES:
                raise InvalidRequestError(f"'{name}' has no such entry.", name)
            is_area = key in _AREA_NAMES or (key in _AREA_EDGES and holds_areas)
            _check_area(name, number, limits) if is_area else _check_edge(name, number, limits)
        _check_product(name, value.get("height"), value.get("width"), limits)
    elif isinstance(value, list | tuple):
        if len(value) != 2:
            raise InvalidRequestError(f"'{name}' is a number, a pair or an object.", name)
        for number in value:
            _check_edge(name, number, limits)
    else:
        _check_edge(name, value, limits)


def _check_pairs(name: str, value: object, limits: DecodeLimits) -> None:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _MAX_COUNT:
        raise InvalidRequestError(f"'{name}' is a list of at most {_MAX_COUNT} pairs.", name)
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRequestError(f"'{name}' is a list of pairs.", name)
        for number in pair:
            _check_edge(name, number, limits)


def _check_colors(name: str, value: object) -> None:
    values = value if isinstance(value, list | tuple) else [value]
    numbers = [v for v in values if _is_number(v) and abs(v) <= 255]
    if len(values) not in (1, 3) or len(numbers) != len(values):
        raise InvalidRequestError(f"'{name}' is a number or a list of three.", name)
    if name.endswith("std") and min(numbers) <= 0:
        raise InvalidRequestError(f"'{name}' is positive.", name)


def _check_scalar(name: str, value: object, limits: DecodeLimits) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        if name not in _WORD_NAMES or not _WORD.fullmatch(value):
            raise InvalidRequestError(f"'{name}' has no such value.", name)
        return
    if name in _AREA_NAMES:
        _check_area(name, value, limits)
    elif name in _EDGE_NAMES:
        _check_edge(name, value, limits)
    elif name in _FRAME_NAMES:
        _check_number(name, value, limits.max_frames, MediaTooLargeError)
    elif name in _COUNT_NAMES:
        _check_number(name, value, _MAX_COUNT, InvalidRequestError)
    else:
        _check_number(name, value, _MAX_NUMBER, InvalidRequestError)


def _check_edge(name: str, value: object, limits: DecodeLimits) -> None:
    edge = _check_number(name, value, min(_MAX_EDGE, limits.max_pixels), MediaTooLargeError)
    least = _MIN_TILE if name in _TILE_NAMES else _MIN_EDGE
    if edge < least:
        raise InvalidRequestError(f"'{name}' is at least {least}.", name)


def _check_area(name: str, value: object, limits: DecodeLimits) -> None:
    _check_number(name, value, limits.max_pixels, MediaTooLargeError)


def _check_product(name: str, height: object, width: object, limits: DecodeLimits) -> None:
    if _is_number(height) and _is_number(width) and height * width > limits.max_pixels:
        raise MediaTooLargeError(f"'{name}' is more than {limits.max_pixels} pixels.", name)


def _check_number(
    name: str, value: object, most: float, too_large: type[MediaTooLargeError | InvalidRequestError]
) -> float:
    if not _is_number(value):
        raise InvalidRequestError(f"'{name}' has the wrong type.", name)
    if not value > 0:
        raise InvalidRequestError(f"'{name}' is positive.", name)
    if value > most:
        raise too_large(f"'{name}' is at most {most:g}.", name)
    return value


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
