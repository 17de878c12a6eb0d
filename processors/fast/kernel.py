"""The fast path of one processor: its own code on pixels as they were decoded, then one pass.

A call runs the processor's own control flow (sizes, crops, tiles, checks) on a shallow copy whose
arithmetic is put off: `rescale_and_normalize` returns the uint8 pixels and remembers its arguments,
and `patchify`, where the class has one, writes straight into the output. What remains in uint8 is
then looked up in a table of 256 values per channel. No intermediate float image exists, and the
pixels keep the decoder's memory order, in which our own pass resizes them to torch's bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import Any, Literal

import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from processors.fast import resizing
from processors.fast.layouts import Layout, Patches
from processors.fast.lut import identity_table, keeps_zero, normalization_table, rows_equal
from processors.fast.passes import write_patches
from processors.types import LutEncoding

Encoding = Literal["plain", "compact", "raw"]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_RESIZES = ("resize", "aspect_ratio_preserving_resize")
"""The methods in which processors resize pixels."""


class KernelUnfitError(Exception):
    """Raised inside a call that the fast path cannot do; the plain processor then runs."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One output that is made of pixels."""

    layout: Layout
    dtype: torch.dtype
    """What the plain processor gives; tables are rounded to it first."""


class Kernel:
    """An exact stand-in for one image or video processor, on the CPU.

    Instances are immutable and may be used by several threads at once. Made by
    `processors.fast.find_kernel`, which proves each on samples.

    Attributes:
        argument: Name of the media argument: `images` or `videos`.
        features: The outputs that are made of pixels.
            Empty where the arithmetic cannot be put off: then only the pixels' memory order is
            the decoder's, and only `plain` can be had.
        mixed_channels: Whether the layout was proven with a table that differs between channels.
        moves_zero: Whether it was proven with a table that makes something else of 0. If not, the
            samples could not tell zeros padded behind the arithmetic from black pixels.
        patches: The one output that our own pass cuts into patches, if there is one.
    """

    def __init__(
        self,
        processor: Any,  # noqa: ANN401
        argument: str,
        features: Mapping[str, Feature],
        *,
        mixed_channels: bool = True,
        moves_zero: bool = True,
    ) -> None:
        self._processor = processor
        self.argument = argument
        self.features = dict(features)
        self.mixed_channels = mixed_channels
        self.moves_zero = moves_zero
        self.patches = next(
            ((n, f.layout) for n, f in features.items() if isinstance(f.layout, Patches)), None
        )
        # Both cost more than a small image does; what they depend on repeats from call to call.
        self.table = lru_cache(maxsize=16)(self._table)
        self.patch_grid = lru_cache(maxsize=1024)(self._patch_grid)

    def compact_of(self, name: str, plain_shape: tuple[int, ...]) -> LutEncoding | None:
        """Return how a feature is encoded compactly, under the name that a protocol gives it.

        None for what is not made of pixels, or not looked up in a table.
        """
        own = next(iter(self.features), "") if len(self.features) == 1 else name
        if own not in self.features:
            return None
        # A protocol that stacks rows of patches has another layout than the pass that writes them.
        is_stacked = isinstance(self.features[own].layout, Patches) and len(plain_shape) == 3
        return None if is_stacked else self.describe(own, plain_shape)

    def describe(self, name: str, plain_shape: tuple[int, ...]) -> LutEncoding:
        """Return how a feature of this plain shape is encoded with `encoding="compact"`.

        Raises:
            KeyError: If `name` is not in `features`.
        """
        feature = self.features[name]
        return feature.layout.describe(plain_shape, str(feature.dtype).removeprefix("torch."))

    def run(
        self,
        pixels: Pixels,
        kwargs: Mapping[str, Any],
        outputs: Mapping[str, torch.Tensor],
        encoding: Encoding = "plain",
        num_threads: int = 1,
    ) -> bool:
        """Process one item into preallocated tensors.

        Args:
            pixels: Decoded RGB, uint8: (H, W, 3) for an image processor, (T, H, W, 3) for a video
                processor.
            kwargs: The processor's call arguments without the media and `return_tensors`
                (`do_sample_frames`, `video_metadata`, `size`, ...).
            outputs: Contiguous CPU tensors by name. `plain`: the plain shape, in any floating
                dtype; `raw`: the plain shape in uint8; `compact`: `describe(...).code_shape` in
                uint8, and `<name>.lut`, float32 (3, 256).
            encoding: What to write.
            num_threads: Most threads to resize and write with.

        Returns:
            True when all of `outputs` was written. False when this call does not suit the fast
            path; the outputs are then to be written anew by the plain processor.

        Raises:
            ValueError: Whatever the processor itself raises for these arguments.
        """
        arguments: dict[str, Any] = {**kwargs, "return_tensors": "pt"}
        if self.argument == "videos":
            arguments["input_data_format"] = "channels_first"
        try:
            call = self.start(outputs, encoding, num_threads)
            arguments[self.argument] = [view_of(pixels)]
            with torch.inference_mode():
                call.write(call.sub_processor(**arguments))
        except KernelUnfitError:
            return False
        return True

    def start(
        self,
        outputs: Mapping[str, torch.Tensor],
        encoding: Encoding = "plain",
        num_threads: int = 1,
    ) -> Call:
        """Begin a call whose processor somebody else runs, as part of a larger protocol.

        `call.sub_processor` takes the place of the processor for this one call and is given
        `view_of(pixels)`; `call.write(features)` then writes what it returned.

        Raises:
            KernelUnfitError: Here, from the sub-processor or from `write`, if the call does not
                suit the fast path.
        """
        if not self.features and encoding != "plain":
            raise KernelUnfitError
        return Call(self, outputs, encoding, num_threads)

    def takes(self, table: torch.Tensor) -> bool:
        """Return whether a call with this table is one that the samples stand for."""
        is_known_mix = self.mixed_channels or rows_equal(table)
        return is_known_mix and (self.moves_zero or keeps_zero(table))

    def instrumented(self, call: Call) -> Any:  # noqa: ANN401
        """Return a copy of the processor whose arithmetic `call` takes over."""
        processor = copy.copy(self._processor)
        for name in _RESIZES:
            if hasattr(processor, name):
                # The original's method: the copy's own would hold the copy, and with it the call.
                plain = getattr(self._processor, name)
                setattr(processor, name, partial(call.resize, plain))
        if self.argument == "images":
            processor.process_image = call.pass_image
        if self.features:
            processor.rescale_and_normalize = call.keep_pixels
        if self.patches is not None:
            processor.patchify = call.patchify
        return processor

    def _table(self, *arguments: Any) -> torch.Tensor:  # noqa: ANN401
        return normalization_table(self._processor, *arguments)

    def _patch_grid(self, shape: tuple[int, ...], **sizes: int) -> tuple[Any, ...]:
        """Return what `patchify` does for a shape: patches without data, and the grid."""
        return tuple(
            self._processor.patchify(torch.empty(shape, dtype=torch.uint8, device="meta"), **sizes)
        )

    def original(self) -> Any:  # noqa: ANN401
        """Return the processor itself."""
        return self._processor


def view_of(pixels: Pixels) -> torch.Tensor:
    """View decoded pixels (H, W, 3) or (T, H, W, 3) channels-first, in the decoder's memory order.

    Raises:
        KernelUnfitError: If they are not RGB in uint8.
    """
    if pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise KernelUnfitError
    return torch.from_numpy(pixels).movedim(-1, -3)


def _as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's modes see a method of `Call` as they see torch's functions."""

    @wraps(method)
    def seen(call: Call, pixels: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if has_torch_function_unary(pixels):
            return handle_torch_function(seen, (pixels,), call, pixels, *args, **kwargs)
        return method(call, pixels, *args, **kwargs)

    return seen


class Call:
    """One run: what was put off, and where it is to be written."""

    def __init__(
        self,
        kernel: Kernel,
        outputs: Mapping[str, torch.Tensor],
        encoding: Encoding,
        num_threads: int,
    ) -> None:
        self._kernel = kernel
        self._num_threads = num_threads
        self._outputs = outputs
        self._encoding = encoding
        self.table: torch.Tensor | None = None
        """What rescaling and normalising would have done, once the processor has asked for it."""

    @property
    def sub_processor(self) -> Any:  # noqa: ANN401
        """A processor that takes the original's place in this call; made anew at each access.

        It holds the call and the call does not hold it, so nothing keeps the outputs alive.
        """
        return self._kernel.instrumented(self)

    def write(self, features: Mapping[str, Any]) -> None:
        """Write every output that is not yet written, from what the sub-processor returned."""
        for name, output in self._outputs.items():
            if not name.endswith(".lut"):
                self._write(name, features.get(name), output)

    def pass_image(self, image: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """Stand in for `process_image`: the pixels are RGB and channels-first already."""
        return image

    def resize(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Stand in for a method that resizes: the same, by our own pass."""
        with resizing.Resizing(self.interpolate):
            return plain(*args, **kwargs)

    @_as_function
    def interpolate(self, pixels: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
        """Resize by our own pass; see `processors.fast.resizing.resize`."""
        return resizing.resize(pixels, size, mode, self._num_threads)

    def keep_pixels(
        self,
        images: torch.Tensor,
        do_rescale: bool,
        rescale_factor: float,
        do_normalize: bool,
        image_mean: Any,  # noqa: ANN401
        image_std: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        """Stand in for `rescale_and_normalize`: remember the table, return the pixels."""
        if images.dtype != torch.uint8 or images.shape[-3] != 3:
            raise KernelUnfitError
        mean, std = (tuple(v) if isinstance(v, list) else v for v in (image_mean, image_std))
        table = self._kernel.table(do_rescale, rescale_factor, do_normalize, mean, std)
        if self.table is not None and not torch.equal(table, self.table):
            raise KernelUnfitError
        self.table = table
        return images

    @_as_function
    def patchify(self, images: torch.Tensor, **sizes: int) -> tuple[Any, ...]:
        """Stand in for `patchify`: write the patches, return their shape and grid."""
        if self._kernel.patches is None or len(images) != 1:
            raise KernelUnfitError
        name, layout = self._kernel.patches
        patches, *grid = self._kernel.patch_grid(tuple(images.shape), **sizes)
        compact = self._encoding == "compact" and layout.repeats
        if name in self._outputs:
            write_patches(
                images.flatten(0, -4).permute(0, 2, 3, 1),
                self._rows(name, self._code_shape(name, tuple(patches.shape[1:]))),
                self._entries(name, self._kernel.features[name]),
                patch_size=sizes["patch_size"],
                merge_size=sizes.get("merge_size", 1) if layout.in_blocks else 1,
                times=1 if compact else layout.times,
                repeat=layout.repeats,
                num_threads=self._num_threads,
            )
        return (patches, *grid)

    def _code_shape(self, name: str, plain_shape: tuple[int, ...]) -> tuple[int, ...]:
        if self._encoding != "compact":
            return plain_shape
        return self._kernel.describe(name, plain_shape).code_shape

    def _target(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        output = self._outputs[name]
        if output.shape != shape or not output.is_contiguous():
            raise KernelUnfitError
        return output

    def _rows(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return where the patches of the only item go; some protocols stack items' rows."""
        output = self._outputs[name]
        return self._target(name, (1, *shape) if output.dim() > len(shape) else shape)

    def _entries(self, name: str, feature: Feature) -> torch.Tensor:
        if self.table is None or not self._kernel.takes(self.table):
            raise KernelUnfitError
        dtype = self._outputs[name].dtype
        if self._encoding == "plain":
            return self.table.to(feature.dtype).to(dtype).contiguous()
        if dtype != torch.uint8:
            raise KernelUnfitError
        if self._encoding == "compact":
            self._outputs[f"{name}.lut"].copy_(self.table.to(feature.dtype))
        return identity_table()

    def _write(self, name: str, value: Any, output: torch.Tensor) -> None:  # noqa: ANN401
        if not isinstance(value, torch.Tensor):
            raise KernelUnfitError
        feature = self._feature(name, value, output)
        if value.device.type == "meta":  # written by `patchify`
            self._target(name, self._code_shape(name, tuple(value.shape)))
        elif feature is None:
            exact = value.dtype == output.dtype
            rounded = value.is_floating_point() and output.is_floating_point()
            if value.shape != output.shape or not (exact or rounded):
                raise KernelUnfitError
            output.copy_(value)
        elif value.dtype == torch.uint8:
            target = self._target(name, tuple(value.shape))
            entries = self._entries(name, feature)
            if self._encoding != "plain" and value.is_contiguous():
                target.copy_(value)  # the codes are in place as they are
            else:
                feature.layout.write(value, target, entries, self._num_threads)
        else:
            raise KernelUnfitError

    def _feature(self, name: str, value: torch.Tensor, output: torch.Tensor) -> Feature | None:
        """Return the feature of a name; the only one there is where a protocol renamed it."""
        features = self._kernel.features
        if name in features or len(features) != 1 or value.dtype != torch.uint8:
            return features.get(name)
        is_pixels = output.is_floating_point() or f"{name}.lut" in self._outputs
        return next(iter(features.values())) if is_pixels else None
