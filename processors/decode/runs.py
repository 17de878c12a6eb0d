"""Runs of a video's packets, read and decoded, and the wanted ones of their frames converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from processors.decode.clock import Clock
from processors.decode.container import AvObject, Track, decoded, drained, packets
from processors.decode.frames import FrameBuffer
from processors.decode.packet_index import Run, is_shown

_SEEK_BEYOND = 64
"""Packets that are read and dropped rather than sought over."""
_KEEP_THEIR_MODE = frozenset({"libdav1d"})
"""Decoders that are told once, as they are opened, which frames to skip."""


class RunReader:
    """Reads a track's runs of packets one after another.

    Args:
        track: At the beginning.
        clock: Runs while packets are read.
        can_seek: Whether seeking meets packets.
    """

    def __init__(self, track: Track, clock: Clock, *, can_seek: bool) -> None:
        self._container, self._stream = track
        self._clock = clock
        self._can_seek = can_seek
        self._packets = packets(self._container, self._stream, clock)

    def read(self, run: Run) -> Iterator[AvObject]:
        """Yield the packets of a run that follows the one read before."""
        if self._can_seek and run.skipped > _SEEK_BEYOND:
            self._container.seek(run.first, stream=self._stream, backward=True)
            self._packets = packets(self._container, self._stream, self._clock)
        codec = self._stream.codec_context.name
        count = 0
        for packet in self._packets:
            is_counted = is_shown(packet, codec)
            if not count and not (is_counted and packet.pts == run.first):
                continue
            count += is_counted
            yield packet
            if count == run.count or (is_counted and packet.pts == run.last):
                return


def decode_run(
    run: Run, packets: Iterable[AvObject], decoder: AvObject, clock: Clock
) -> Iterator[AvObject]:
    """Decode a run of packets, of those that nothing refers to only what is wanted.

    Returns:
        The frames that are wanted.
    """
    mode = "DEFAULT"
    for packet in packets:
        clock.check()
        needed = packet.pts is None or packet.pts in run.wanted or decoder.name in _KEEP_THEIR_MODE
        if (chosen := "DEFAULT" if needed else "NONREF") != mode:
            mode = decoder.skip_frame = chosen
        yield from (frame for frame in decoded(packet, decoder) if frame.pts in run.wanted)
    yield from (frame for frame in drained(decoder) if frame.pts in run.wanted)
    decoder.skip_frame = "DEFAULT"


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A frame as it comes out of a decoder."""

    frame: AvObject
    index: int
    """Which one of the video it is."""
    time_s: float
    """When it is shown, from the first one."""


def take(timed: TimedFrame, buffer: FrameBuffer) -> None:
    """Convert a frame into its place.

    Raises:
        MediaTooLargeError: If it is the first one, and all of its size are too large.
    """
    frame = timed.frame
    turns = quarter_turns(frame)
    width, height = frame.width, frame.height
    if buffer.size is None:
        buffer.allocate(*((height, width) if turns % 2 else (width, height)))
    place = buffer.place_of(timed.index)
    if place is None:
        return
    target = np.rot90(place, -turns)
    # A track whose size changes on the way keeps its first one.
    # By default a thread for every core is started anew for each frame.
    rgb = frame.reformat(width=target.shape[1], height=target.shape[0], format="rgb24", threads=1)
    plane = rgb.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    target[:] = rows[: rgb.height, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)
    buffer.took(timed.index, timed.time_s)


def quarter_turns(frame: AvObject) -> int:
    """Return by how many quarters a frame is to be turned, counterclockwise."""
    return round((frame.rotation or 0) / 90) % 4
