"""Waveforms padded with silence, in one pass over the memory instead of three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from processors.fast.logmel import Waveforms

UNFIT = (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What an extractor's method raises that takes something else than waveforms."""
_WINDOW_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class SilentPad:
    """Stands in for a feature extractor's `pad`; holds nothing of a call.

    The extractor's own code pads clips to the longest of them, which for a single one is nothing,
    and the zeros that are left to the window are appended here.
    """

    plain: Callable[..., Any]
    """The extractor's own `pad`, which appends zeros."""

    def __call__(
        self,
        clips: Any,  # noqa: ANN401 - a transformers BatchFeature
        *args: object,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Return what the plain call returns; arrays of shape (N, S, 1), and (N, S) of masks."""
        length = kwargs.get("max_length")
        if args or not length or not _is_fit(kwargs):
            return self.plain(clips, *args, **kwargs)
        padded = self.plain(clips, **{**kwargs, "padding": "longest"})
        for name, value in padded.items():
            padded[name] = _with_silence(value, length)
        return padded


def find_pad(extractor: Any) -> SilentPad | None:  # noqa: ANN401 - a transformers feature extractor
    """Return a stand-in for a feature extractor's `pad`; None where it is not the same."""
    pad = SilentPad(extractor.pad)
    try:
        is_equal = _pads_agree(pad, extractor.model_input_names[0])
    except UNFIT:
        return None
    return pad if is_equal else None


def _pads_agree(pad: SilentPad, name: str) -> bool:
    for length in (1, _WINDOW_SAMPLES - 1, _WINDOW_SAMPLES, _WINDOW_SAMPLES + 1):
        clip = np.linspace(1, 2, length, dtype=np.float32)[:, None]
        for with_mask in (True, False):
            kwargs = {
                "padding": "max_length", "max_length": _WINDOW_SAMPLES, "truncation": True,
                "return_attention_mask": with_mask,
            }  # fmt: skip
            results = [call({name: [clip]}, **kwargs) for call in (pad.plain, pad)]
            if not _are_equal(*results):
                return False
    return True


def _is_fit(kwargs: Mapping[str, Any]) -> bool:
    is_whole = kwargs.get("pad_to_multiple_of") is None
    is_array = kwargs.get("return_tensors") in (None, "np")
    return is_whole and is_array and kwargs.get("padding") == "max_length"


def _with_silence(value: Waveforms, length: int) -> Waveforms:
    num_samples = value.shape[1]
    if num_samples >= length:
        return value
    longer = np.zeros((len(value), length, *value.shape[2:]), value.dtype)
    longer[:, :num_samples] = value
    return longer


def _are_equal(one: Mapping[str, Waveforms], other: Mapping[str, Waveforms]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )
