"""Frames on their way out of a decoder, each into its place of one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from processors.decode.buffers import empty_pixels
from processors.errors import MediaDecodeError, MediaTooLargeError
from processors.types import DecodeLimits


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """Frames of a video, upright."""

    frames: np.ndarray
    """uint8 of shape (T, H, W, 3), contiguous and writable."""
    indices: tuple[int, ...]
    """Which frame of the video each is; those that do not decode are missing."""
    pts_s: tuple[float, ...]
    """When each is shown, in seconds from the first frame."""
    missing: int
    """Frames asked for that do not decode."""


class FrameBuffer:
    """The frames that are asked for, those that came among them.

    Args:
        indices: Ascending.
        limits: Bounds on the number of frames and on the pixels of all of them.

    Raises:
        MediaTooLargeError: If they are too many.
    """

    def __init__(self, indices: Sequence[int], limits: DecodeLimits) -> None:
        if len(indices) > limits.max_frames:
            raise MediaTooLargeError(
                f"{len(indices)} frames are asked for; at most {limits.max_frames} are decoded."
            )
        self._places = {index: place for place, index in enumerate(dict.fromkeys(indices))}
        self._limits = limits
        self._frames: np.ndarray | None = None
        self._times_s: dict[int, float] = {}

    @property
    def num_wanted(self) -> int:
        """Frames still to come."""
        return len(self._places) - len(self._times_s)

    @property
    def wanted(self) -> list[int]:
        """Indices of the frames still to come, ascending."""
        return [index for index in self._places if index not in self._times_s]

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of the frames, once there is room for them."""
        if self._frames is None:
            return None
        return self._frames.shape[2], self._frames.shape[1]

    def wants(self, index: int) -> bool:
        """Return whether a frame is asked for and not there yet."""
        return index in self._places and index not in self._times_s

    def allocate(self, width: int, height: int) -> None:
        """Make room for all frames at their size, as shown.

        Raises:
            MediaTooLargeError: If they hold more pixels than the limit.
        """
        total = len(self._places) * width * height
        if total > self._limits.max_pixels:
            raise MediaTooLargeError(
                f"The frames hold {total} pixels; at most {self._limits.max_pixels} are decoded. "
                "Ask for fewer frames."
            )
        self._frames = empty_pixels((len(self._places), height, width, 3))

    def place_of(self, index: int) -> np.ndarray | None:
        """Return where a frame belongs, (H, W, 3); None where it is not wanted (any more)."""
        if self._frames is None or not self.wants(index):
            return None
        place: np.ndarray = self._frames[self._places[index]]
        return place

    def took(self, index: int, time_s: float) -> None:
        """Say that a frame has been written, and when it is shown."""
        self._times_s[index] = time_s

    def finish(self) -> DecodedVideo:
        """Return what came, in order.

        Raises:
            MediaDecodeError: If nothing did.
        """
        if self._frames is None or not self._times_s:
            raise MediaDecodeError("None of the video's frames decodes.")
        there = [index for index in self._places if index in self._times_s]
        frames = self._frames
        for target, index in enumerate(there):
            if target != self._places[index]:
                frames[target] = frames[self._places[index]]
        return DecodedVideo(
            frames[: len(there)],
            tuple(there),
            tuple(self._times_s[index] for index in there),
            len(self._places) - len(there),
        )
