"""What a video's packets tell: how many frames, when each is shown, where decoding can begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import av.error
import numpy as np

from processors.decode.clock import Clock
from processors.decode.container import AvObject, packets
from processors.errors import MediaDecodeError, MediaTooLargeError

MAX_PACKETS = 2_000_000
"""Packets of one video that are looked at."""
_LEAST_PACKETS = 16
"""Packets that take much longer to decode than it takes to begin with a new decoder."""
_RATE_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class PacketIndex:
    """When frames are shown, by their packets."""

    pts: tuple[int, ...]
    """Ascending, in the track's time base; empty where packets do not tell all times apart."""
    order: tuple[int, ...]
    """The same in the order of the packets, which is that of decoding."""
    keyframes: tuple[int, ...]
    """Places in `order` where decoding can begin."""
    num_frames: int
    last_duration: int
    """How long the last packet tells its frame is shown, in the track's time base; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Run:
    """Packets to decode one after another, by the times of their frames."""

    first: int
    last: int
    count: int
    """How many packets they are, both included."""
    skipped: int
    """How many lie between the run before, or the file's beginning, and this one."""
    wanted: frozenset[int]
    """The times of the frames that are wanted."""


def find_runs(index: PacketIndex, wanted: Iterable[int]) -> list[Run]:
    """Return the packets that frames shown at certain times need, in the order of decoding.

    A frame needs what lies between the last place where decoding can begin and its own packet. One
    that is shown before the keyframe it follows may refer to what stands before that one as well.
    Each run begins where decoding can, and no packet is needed by two.

    Args:
        index: Of all packets; it has times.
        wanted: Times in `index.pts`.
    """
    places = {pts: place for place, pts in enumerate(index.order)}
    spans = []
    for last in sorted(places[pts] for pts in wanted):
        key = bisect_right(index.keyframes, last) - 1
        if key >= 0 and index.order[last] < index.order[index.keyframes[key]]:
            key -= 1
        spans.append((index.keyframes[key] if key >= 0 else 0, last))
    joined: list[tuple[int, int, list[int]]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            begin, end, times = joined[-1]
            joined[-1] = (begin, max(end, last), times)
        else:
            joined.append((first, last, []))
        joined[-1][2].append(index.order[last])
    ends = [-1, *(last for _, last, _ in joined)]
    return [
        Run(
            index.order[first],
            index.order[last],
            last - first + 1,
            first - end - 1,
            frozenset(times),
        )
        for (first, last, times), end in zip(joined, ends, strict=False)
    ]


def split_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """Return runs in batches, each worth a decoder of its own."""
    batches: list[list[Run]] = []
    count = _LEAST_PACKETS
    for run in runs:
        if count >= _LEAST_PACKETS:
            batches.append([])
            count = 0
        batches[-1].append(run)
        count += run.count
    return batches


def index_packets(container: AvObject, stream: AvObject, clock: Clock) -> PacketIndex:
    """Read a video track's packets, decoding nothing.

    Raises:
        MediaDecodeError: If it has none, or they take too long.
        MediaTooLargeError: If they are more than any clip has.
    """
    times: dict[int, int] = {}
    keyframes: list[int] = []
    count = 0
    codec = stream.codec_context.name
    try:
        for packet in packets(container, stream, clock):
            if not is_shown(packet, codec):
                continue
            count += 1
            if count > MAX_PACKETS:
                raise MediaTooLargeError("The video has too many packets.")
            if packet.pts is not None:
                if packet.is_keyframe:
                    keyframes.append(len(times))
                times[packet.pts] = packet.duration or 0
    except av.error.FFmpegError as error:
        if not count:
            raise MediaDecodeError("The video is cut or corrupt.") from error
    if not count:
        raise MediaDecodeError("The video has no frames.")
    if len(times) != count:
        return PacketIndex((), (), (), count, 0)
    pts = sorted(times)
    return PacketIndex(tuple(pts), tuple(times), tuple(keyframes), count, times[pts[-1]])


def is_shown(packet: AvObject, codec: str) -> bool:
    """Return whether a packet holds a frame that somebody sees."""
    if not packet.size or packet.is_discard:
        return False
    is_hidden = _HIDDEN.get(codec)
    return is_hidden is None or not is_hidden(packet)


def timing(
    container: AvObject, stream: AvObject, index: PacketIndex
) -> tuple[float | None, float | None]:
    """Return a video's seconds and its mean frames per second.

    The container's rate is taken where it agrees with the packets' own times (it is exact, they may
    be rounded to milliseconds), else theirs.
    """
    told = float(stream.average_rate) if stream.average_rate else None
    seconds = _seconds(container, index, stream.time_base, told)
    if not seconds:
        return seconds, told
    measured = index.num_frames / seconds
    if told and abs(told - measured) <= _RATE_TOLERANCE * measured:
        return seconds, told
    return seconds, measured


def _seconds(
    container: AvObject, index: PacketIndex, time_base: Fraction | None, rate: float | None
) -> float | None:
    if len(index.pts) > 1 and time_base:
        span = index.pts[-1] - index.pts[0]
        shortest = min(np.diff(index.pts))
        # Where the last packet tells no sensible time, its frame is shown as long as the others.
        is_told = 2 * index.last_duration >= shortest
        last = index.last_duration if is_told else span / (len(index.pts) - 1)
        return (span + last) * float(time_base)
    if container.duration and container.duration > 0:
        return float(container.duration) / 1e6
    return index.num_frames / rate if rate else None


def _is_hidden_vp8(packet: AvObject) -> bool:
    return not memoryview(packet)[0] & 0x10


def _is_hidden_vp9(packet: AvObject) -> bool:
    data = memoryview(packet)
    head = data[0]
    is_superframe = data[-1] & 0xE0 == 0xC0
    is_profile_3 = head & 0x30 == 0x30
    if is_superframe or is_profile_3:
        return False
    shows_existing, is_shown = head & 0x08, head & 0x02
    return not shows_existing and not is_shown


_HIDDEN: dict[str, Callable[[AvObject], bool]] = {
    "vp8": _is_hidden_vp8,
    "vp9": _is_hidden_vp9,
    "libvpx-vp9": _is_hidden_vp9,
}
"""Codecs whose packets may hold a frame that others refer to and nobody sees."""
