"""Videos: what their packets promise, and the frames that are asked for, one conversion each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import av.error
import numpy as np

from processors.decode.container import AvObject, Clock, open_container
from processors.decode.image import check_pixels
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, MediaTooLargeError
from processors.types import DecodeLimits, MediaInfo, Modality

MAX_PACKETS = 2_000_000
"""Packets of one video that are looked at."""


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


@dataclass(frozen=True, slots=True)
class PacketIndex:
    """When frames are shown, by their packets."""

    pts: tuple[int, ...]
    """Ascending, in the stream's time base; empty where packets tell no time."""
    keyframes: tuple[int, ...]
    """Of those, where decoding can begin."""
    num_frames: int


def probe_video(data: Buffer, kind: Container, limits: DecodeLimits) -> MediaInfo | None:
    """Read a container's best video track; None where it has none.

    The packets are counted, since headers lie or say nothing, and the first frame is decoded for
    its size and rotation.

    Raises:
        MediaDecodeError: If nothing decodes.
        MediaTooLargeError: If its frames have more pixels than the limit.
    """
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind) as container:
        stream = _video_stream(container)
        if stream is None:
            return None
        has_audio = bool(container.streams.audio)
        audio = container.streams.best("audio") if has_audio else None
        index = _index(container, stream, clock)
        seconds, fps = _timing(container, stream, index)
        width, height, rotation = _first_frame(data, kind, limits, clock)
        if rotation % 180:
            width, height = height, width
        return MediaInfo(
            kind=Modality.VIDEO,
            mime=kind.video_mime,
            nbytes=memoryview(data).nbytes,
            width=width,
            height=height,
            num_frames=index.num_frames,
            fps=fps,
            seconds=seconds,
            sample_rate=audio.rate if audio is not None else None,
            channels=audio.channels if audio is not None else None,
            has_audio=has_audio,
            exact=False,
        )


def decode_frames_of(
    data: Buffer, kind: Container, frame_indices: Sequence[int], limits: DecodeLimits
) -> DecodedVideo:
    """Decode frames of the best video track by index, ascending and without repeats.

    Only groups of pictures that hold a frame asked for are decoded, frames that nothing refers to
    are skipped, and each frame asked for is converted once, into its place.

    Raises:
        MediaDecodeError: If none of them decodes.
        MediaTooLargeError: If they have more pixels than the limit.
    """
    if len(frame_indices) > limits.max_frames:
        raise MediaTooLargeError(
            f"{len(frame_indices)} frames are asked for; at most {limits.max_frames} are decoded."
        )
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind) as container:
        stream = _video_stream(container)
        if stream is None:
            raise MediaDecodeError("The medium holds no video.")
        index = _index(container, stream, clock)
    sink = _Sink(list(frame_indices), limits)
    if index.pts:
        _decode_groups(data, kind, index, sink, clock)
    if sink.num_wanted:
        _decode_all(data, kind, index, sink, clock)
    return sink.finish(index)


class _Sink:
    """Takes frames, each into its place."""

    def __init__(self, indices: list[int], limits: DecodeLimits) -> None:
        self._indices = indices
        self._place = {index: place for place, index in enumerate(indices)}
        self._limits = limits
        self._frames: np.ndarray | None = None
        self._pts: dict[int, float] = {}

    @property
    def num_wanted(self) -> int:
        """Frames still to come."""
        return len(self._indices) - len(self._pts)

    def wants(self, index: int) -> bool:
        """Return whether a frame is asked for and not there yet."""
        return index in self._place and index not in self._pts

    def take(self, index: int, frame: AvObject) -> None:
        """Convert a frame into its place."""
        turns = (getattr(frame, "rotation", 0) or 0) // 90 % 4
        if self._frames is None:
            check_pixels(frame.width, frame.height, self._limits)
            shape = (frame.width, frame.height) if turns % 2 else (frame.height, frame.width)
            total = len(self._indices) * shape[0] * shape[1]
            if total > self._limits.max_pixels:
                raise MediaTooLargeError(
                    f"The frames hold {total} pixels; at most {self._limits.max_pixels} are "
                    "decoded. Ask for fewer frames."
                )
            self._frames = np.empty((len(self._indices), *shape, 3), dtype=np.uint8)
        height, width = self._frames.shape[1:3]
        if turns % 2:
            height, width = width, height
        # A track whose size changes on the way keeps its first one.
        rgb = frame.reformat(width=width, height=height, format="rgb24").to_ndarray()
        self._frames[self._place[index]] = np.rot90(rgb, turns) if turns else rgb
        self._pts[index] = float(frame.time or 0.0)

    def finish(self, index: PacketIndex) -> DecodedVideo:
        """Return what came, in order.

        Raises:
            MediaDecodeError: If nothing did.
        """
        del index
        if self._frames is None:
            raise MediaDecodeError("None of the video's frames decodes.")
        there = [i for i in self._indices if i in self._pts]
        frames = self._frames
        if len(there) < len(self._indices):
            frames = np.ascontiguousarray(frames[[self._place[i] for i in there]])
        return DecodedVideo(
            frames,
            tuple(there),
            tuple(self._pts[i] for i in there),
            len(self._indices) - len(there),
        )


def _video_stream(container: AvObject) -> AvObject | None:
    streams = [s for s in container.streams.video if not _is_picture(s)]
    if not streams:
        return None
    best = container.streams.best("video")
    chosen = best if best in streams else streams[0]
    # One video, one thread: many are decoded at once, and the threads' hand-over costs.
    chosen.codec_context.thread_count = 1
    return chosen


def _is_picture(stream: AvObject) -> bool:
    """Return whether a track is a cover picture."""
    return "attached_pic" in str(getattr(stream, "disposition", "")).lower()


def _index(container: AvObject, stream: AvObject, clock: Clock) -> PacketIndex:
    pts: list[int] = []
    keyframes: list[int] = []
    count = 0
    timed = True
    try:
        for packet in container.demux(stream):
            clock.check()
            if not packet.size or packet.is_discard:
                continue
            count += 1
            if count > MAX_PACKETS:
                raise MediaTooLargeError("The video has too many packets.")
            if packet.pts is None:
                timed = False
                continue
            pts.append(packet.pts)
            if packet.is_keyframe:
                keyframes.append(packet.pts)
    except av.error.FFmpegError as error:
        if not count:
            raise MediaDecodeError("The video is cut or corrupt.") from error
    unique = sorted(set(pts))
    if not timed or len(unique) != count:
        return PacketIndex((), (), count)
    return PacketIndex(tuple(unique), tuple(sorted(keyframes)), count)


def _timing(
    container: AvObject,
    stream: AvObject,
    index: PacketIndex,
) -> tuple[float | None, float | None]:
    """Return seconds and frames per second, by the packets' own times where they tell."""
    rate = float(stream.average_rate) if stream.average_rate else None
    if len(index.pts) > 1 and stream.time_base:
        span = float((index.pts[-1] - index.pts[0]) * stream.time_base)
        if span > 0:
            fps = (len(index.pts) - 1) / span
            return span + 1 / fps, fps
    seconds = container.duration / 1e6 if container.duration and container.duration > 0 else None
    if seconds is None and rate and index.num_frames:
        seconds = index.num_frames / rate
    return seconds, rate


def _first_frame(
    data: Buffer, kind: Container, limits: DecodeLimits, clock: Clock
) -> tuple[int, int, int]:
    """Return width, height and rotation as the first frame has them."""
    with open_container(data, kind) as container:
        stream = _video_stream(container)
        if stream is None:
            raise MediaDecodeError("The medium holds no video.")
        context = stream.codec_context
        check_pixels(max(context.width, 1), max(context.height, 1), limits)
        for frame in _frames(container, stream, clock):
            check_pixels(frame.width, frame.height, limits)
            return frame.width, frame.height, int(getattr(frame, "rotation", 0) or 0)
    raise MediaDecodeError("None of the video's frames decodes.")


def _frames(container: AvObject, stream: AvObject, clock: Clock) -> Iterator[AvObject]:
    """Yield frames in the order they are shown; packets that do not decode are skipped."""
    demuxed = container.demux(stream)
    while True:
        clock.check()
        try:
            packet = next(demuxed)
            yield from packet.decode()
        except StopIteration:
            return
        except av.error.EOFError:
            return
        except av.error.InvalidDataError:
            continue


def _decode_groups(
    data: Buffer, kind: Container, index: PacketIndex, sink: _Sink, clock: Clock
) -> None:
    """Decode the groups of pictures that hold wanted frames, seeking over the others."""
    wanted = {pts: place for place, pts in enumerate(index.pts) if sink.wants(place)}
    if not wanted:
        return
    with open_container(data, kind) as container:
        stream = _video_stream(container)
        for start, stop in _runs(index, sorted(wanted)):
            if start is not None:
                container.seek(start, stream=stream, backward=True)
            _decode_run(container, stream, stop, wanted, sink, clock)


def _runs(index: PacketIndex, wanted: list[int]) -> list[tuple[int | None, int]]:
    """Return (where to seek to, last wanted time) of each run of neighbouring groups."""
    keys = np.array(index.keyframes or index.pts[:1])
    groups = np.maximum(np.searchsorted(keys, wanted, side="right") - 1, 0)
    runs: list[tuple[int | None, int]] = []
    previous = -2
    for group, pts in zip(groups.tolist(), wanted, strict=True):
        if group - previous <= 1 and runs:
            runs[-1] = (runs[-1][0], pts)
        else:
            runs.append((int(keys[group]) if group > 0 else None, pts))
        previous = group
    return runs


def _decode_run(
    container: AvObject,
    stream: AvObject,
    stop: int,
    wanted: dict[int, int],
    sink: _Sink,
    clock: Clock,
) -> None:
    context = stream.codec_context
    left = sum(sink.wants(place) for pts, place in wanted.items() if pts <= stop)
    mode = "DEFAULT"
    try:
        for packet in container.demux(stream):
            clock.check()
            # What nothing refers to and nobody wants need not be decoded.
            needed = packet.pts is None or packet.pts in wanted
            if (chosen := "DEFAULT" if needed else "NONREF") != mode:
                mode = context.skip_frame = chosen
            for frame in _decode_packet(packet):
                place = wanted.get(frame.pts) if frame.pts is not None else None
                if place is not None and sink.wants(place):
                    sink.take(place, frame)
                    left -= 1
            if not left:
                break
    except av.error.EOFError:
        pass
    context.skip_frame = "DEFAULT"
    context.flush_buffers()


def _decode_packet(packet: AvObject) -> list[AvObject]:
    try:
        return list(packet.decode())
    except av.error.InvalidDataError:
        return []


def _decode_all(
    data: Buffer, kind: Container, index: PacketIndex, sink: _Sink, clock: Clock
) -> None:
    """Decode from the start, for frames that seeking did not find or that tell no time."""
    places = {pts: place for place, pts in enumerate(index.pts)}
    with open_container(data, kind) as container:
        stream = _video_stream(container)
        for count, frame in enumerate(_frames(container, stream, clock)):
            place = places.get(frame.pts) if places else count
            if place is not None and sink.wants(place):
                sink.take(place, frame)
                if not sink.num_wanted:
                    return
