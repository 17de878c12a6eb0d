"""Our own resize in the place of torch's, for as long as a processor resizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from processors.fast.lut import CHANNELS

try:
    from processors.fast import _resize
except ImportError:  # built without a compiler, or for a machine without AVX2: torch resizes
    AVAILABLE = False
else:
    AVAILABLE = True

MAX_SIDE = 1 << 20
"""Pixels; as in `_resize.c`."""


def resize(
    pixels: torch.Tensor, size: tuple[int, int], mode: str, num_threads: int
) -> torch.Tensor:
    """Resize uint8 pictures as torch does, antialiased.

    Args:
        pixels: (N, 3, H, W) in uint8 on the CPU, the channels of a pixel and the pixels of a row
            beside each other: see `suits`.
        size: (height, width) of the result.
        mode: `bilinear` or `bicubic`.
        num_threads: Most threads to use.

    Returns:
        (N, 3, height, width) in uint8, of the same memory order.
    """
    out = torch.empty((len(pixels), *size, CHANNELS), dtype=torch.uint8)
    frames = pixels.permute(0, 2, 3, 1).numpy()
    _resize.resize(frames, out.numpy(), mode == "bicubic", num_threads)
    return out.permute(0, 3, 1, 2)


def suits(pixels: torch.Tensor, size: Any, mode: str) -> bool:  # noqa: ANN401
    """Return whether `resize` takes such a call."""
    if mode not in {"bilinear", "bicubic"} or not isinstance(size, list | tuple) or len(size) != 2:
        return False
    is_picture = pixels.dtype == torch.uint8 and pixels.dim() == 4 and pixels.device.type == "cpu"
    if not is_picture or pixels.shape[1] != CHANNELS or len(pixels) == 0:
        return False
    sides = (*pixels.shape[2:], *size)
    beside = pixels.stride(1) == 1 and pixels.stride(3) == CHANNELS
    return beside and all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in sides)


class Resizing(TorchFunctionMode):
    """Within it, `torch.nn.functional.interpolate` is our own pass wherever that takes the call.

    Args:
        resize: What resizes: (pixels, size, mode), as `resize` does.
    """

    def __init__(
        self, resize: Callable[[torch.Tensor, tuple[int, int], str], torch.Tensor]
    ) -> None:
        super().__init__()
        self._resize = resize

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Resize by our own pass, or hand on."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.interpolate:
            return self._interpolate(*args, **kwargs)
        return func(*args, **kwargs)

    def _interpolate(
        self,
        pixels: torch.Tensor,
        size: Any = None,  # noqa: ANN401
        scale_factor: Any = None,  # noqa: ANN401
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> torch.Tensor:
        is_plain = scale_factor is None and not align_corners and not recompute_scale_factor
        if AVAILABLE and antialias and is_plain and suits(pixels, size, mode):
            return self._resize(pixels, (size[0], size[1]), mode)
        resized: torch.Tensor = torch.nn.functional.interpolate(
            pixels, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
        return resized
