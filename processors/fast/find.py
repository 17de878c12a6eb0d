"""Finding a kernel for a processor, and proving it on samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from processors.fast.encoding import expand
from processors.fast.kernel import Feature, Kernel, Pixels, view_of
from processors.fast.layouts import Layout, Patches, Planes, Runs
from processors.fast.lut import CHANNELS, LEVELS, moves_zero, rows_equal
from processors.fast.passes import AVAILABLE

IMAGE_SIZES = ((57, 57), (61, 83), (256, 170), (40, 300))
"""(height, width): small, since some families enlarge; square first, which gives few tiles."""
VIDEO_SIZES = ((5, 90, 130), (4, 140, 84))
"""(frames, height, width), an odd number of frames first."""

_PLANAR = {"return_tensors": "pt", "input_data_format": "channels_first"}

# What a processor that works on floats raises when it is handed uint8, or shapes it does not know.
_UNFIT = (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Pixels, and what the plain processor makes of them."""

    pixels: Pixels
    expected: Mapping[str, torch.Tensor]


def find_kernel(processor: Any, kwargs: Mapping[str, Any] | None = None) -> Kernel | None:  # noqa: ANN401
    """Return a kernel that stands in for a processor exactly, or None.

    Every candidate is run on samples, in every encoding, beside the plain processor; the first one
    that agrees bit for bit in every output is returned.

    Args:
        processor: A transformers image or video processor.
        kwargs: Call arguments that every call will have (a server's defaults).

    Returns:
        The kernel; None where none agrees, where the compiled extension is missing, or where the
        processor is not of the torchvision backend.
    """
    if not AVAILABLE or getattr(processor, "backend", None) != "torchvision":
        return None
    argument = "videos" if hasattr(processor, "sample_frames") else "images"
    given = dict(kwargs or {})
    try:
        samples = _run_plain(processor, argument, given)
    except _UNFIT:
        return None
    for features in _candidates(processor, argument, samples):
        kernel = Kernel(processor, argument, features)
        if all(_agrees(kernel, sample, given) for sample in samples):
            return _restricted(kernel, samples[0], given)
    return None


def _run_plain(
    processor: Any,  # noqa: ANN401
    argument: str,
    kwargs: Mapping[str, Any],
) -> list[_Sample]:
    """Run the plain processor on every sample: what a proof covers must not depend on time."""
    return [
        _Sample(pixels, _plain(processor, argument, pixels, kwargs))
        for pixels in _samples(argument)
    ]


def _restricted(kernel: Kernel, sample: _Sample, kwargs: Mapping[str, Any]) -> Kernel:
    """Return a kernel that takes no tables of a kind it was not proven with."""
    if not kernel.features:
        return kernel
    call = kernel.start({})
    arguments = _call_arguments(kernel.argument, sample.pixels, kwargs)
    call.sub_processor(**arguments, **{kernel.argument: [view_of(sample.pixels)]}, **_PLANAR)
    return Kernel(
        kernel.original(),
        kernel.argument,
        kernel.features,
        mixed_channels=call.table is not None and not rows_equal(call.table),
        moves_zero=call.table is not None and moves_zero(call.table),
    )


def _samples(argument: str) -> Iterator[Pixels]:
    """Noise over a gradient: every value of every channel, every filter shows."""
    random = np.random.default_rng(0)
    for shape in IMAGE_SIZES if argument == "images" else VIDEO_SIZES:
        ramp = np.linspace(0, 255, num=shape[-1])[:, None]
        noise = random.integers(-60, 60, size=(*shape, 3))
        yield np.clip(ramp + noise, 0, 255).astype(np.uint8)


def _call_arguments(argument: str, pixels: Pixels, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if argument == "images":
        return dict(kwargs)
    frames, height, width = pixels.shape[:3]
    metadata = {
        "total_num_frames": frames,
        "fps": 2.0,
        "duration": frames / 2.0,
        "height": height,
        "width": width,
        "frames_indices": list(range(frames)),
    }
    return {**kwargs, "do_sample_frames": False, "video_metadata": [metadata]}


def _plain(
    processor: Any,  # noqa: ANN401
    argument: str,
    pixels: Pixels,
    kwargs: Mapping[str, Any],
) -> dict[str, torch.Tensor]:
    """Run the plain processor on planar pixels and return its tensors."""
    planar = torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, -3)))
    arguments = _call_arguments(argument, pixels, kwargs)
    with torch.inference_mode():
        result = processor(**arguments, **{argument: [planar]}, **_PLANAR)
    return {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}


def _candidates(
    processor: Any,  # noqa: ANN401
    argument: str,
    samples: Sequence[_Sample],
) -> Iterator[dict[str, Feature]]:
    """Yield the layouts that a processor's outputs may have, the fastest first; at last, none."""
    pixel_like = {
        name: value
        for sample in samples
        for name, value in sample.expected.items()
        if value.is_floating_point() and "pixel" in name and "mask" not in name
    }
    if len(pixel_like) == 1 and hasattr(processor, "patchify"):
        ((name, value),) = pixel_like.items()
        times = int(getattr(processor, "temporal_patch_size", None) or 1)
        for in_blocks in (True, False):
            layout = Patches(in_blocks, times, repeats=argument == "images")
            yield {name: Feature(layout, value.dtype)}
    if pixel_like:
        for choice in product(*(_plain_layouts(value) for value in pixel_like.values())):
            yield {
                name: Feature(layout, value.dtype)
                for (name, value), layout in zip(pixel_like.items(), choice, strict=True)
            }
    yield {}


def _plain_layouts(value: torch.Tensor) -> list[Layout]:
    layouts: list[Layout] = []
    if value.dim() >= 3 and value.shape[-3] == 3:
        layouts.append(Planes())
    if value.shape[-1] % 3 == 0:
        layouts += [Runs(by_pixel=False), Runs(by_pixel=True)]
    return layouts


def _agrees(kernel: Kernel, sample: _Sample, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a kernel gives the plain processor's tensors, in every encoding."""
    arguments = _call_arguments(kernel.argument, sample.pixels, kwargs)
    try:
        if not _plain_agrees(kernel, sample, arguments):
            return False
        return not kernel.features or _compact_agrees(kernel, sample, arguments)
    except _UNFIT:
        return False


def _plain_agrees(kernel: Kernel, sample: _Sample, arguments: Mapping[str, Any]) -> bool:
    outputs = {name: torch.zeros_like(v).contiguous() for name, v in sample.expected.items()}
    if not kernel.run(sample.pixels, arguments, outputs):
        return False
    return all(torch.equal(outputs[name], value) for name, value in sample.expected.items())


def _compact_agrees(kernel: Kernel, sample: _Sample, arguments: Mapping[str, Any]) -> bool:
    plain = {name: v for name, v in sample.expected.items() if name in kernel.features}
    encodings = {name: kernel.describe(name, tuple(value.shape)) for name, value in plain.items()}
    outputs: dict[str, torch.Tensor] = {}
    for name, encoding in encodings.items():
        outputs[name] = torch.zeros(encoding.code_shape, dtype=torch.uint8)
        outputs[f"{name}.lut"] = torch.zeros(CHANNELS, LEVELS)
    if not kernel.run(sample.pixels, arguments, outputs, "compact"):
        return False
    return all(
        torch.equal(expand(outputs[name], outputs[f"{name}.lut"], encoding), plain[name].float())
        for name, encoding in encodings.items()
    )
