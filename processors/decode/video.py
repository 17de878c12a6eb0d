"""Videos: what their packets promise, and the frames that are asked for, one conversion each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from processors.decode.clock import Clock
from processors.decode.container import (
    AvObject,
    audio_stream,
    decoded,
    drained,
    is_indexed,
    open_container,
    packets,
    rewound,
    video_stream,
)
from processors.decode.frames import DecodedVideo, FrameBuffer
from processors.decode.image import check_pixels
from processors.decode.packet_index import (
    PacketIndex,
    Run,
    find_runs,
    index_packets,
    is_shown,
    timing,
)
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, Modality

_SEEK_BEYOND = 64
"""Packets that are read and dropped rather than sought over."""
_KEEP_THEIR_MODE = frozenset({"libdav1d"})
"""Decoders that are told once, as they are opened, which frames to skip."""


def probe_video(data: Buffer, kind: Container, limits: DecodeLimits) -> MediaInfo | None:
    """Read a container's best video track; None where it has none.

    The packets are counted, since headers lie or say nothing, and the first frame is decoded for
    its size and rotation.

    Raises:
        MediaDecodeError: If nothing decodes.
        UnsupportedMediaTypeError: If its codec is not served.
        MediaTooLargeError: If its frames have more pixels than the limit.
    """
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind, limits) as container:
        stream = video_stream(container, limits)
        if stream is None:
            return None
        check_pixels(stream.codec_context.width, stream.codec_context.height, limits)
        sound = _sound(container)
        index = index_packets(container, stream, clock)
        seconds, fps = timing(container, stream, index)
        with rewound(container, stream, data, kind, limits) as again:
            width, height = _first_size(*again, limits, clock)
        return MediaInfo(
            kind=Modality.VIDEO,
            mime=kind.video_mime,
            nbytes=memoryview(data).nbytes,
            width=width,
            height=height,
            num_frames=index.num_frames,
            fps=fps,
            seconds=seconds,
            sample_rate=sound.rate if sound is not None else None,
            channels=sound.channels if sound is not None else None,
            has_audio=sound is not None,
            exact=False,
        )


def decode_frames_of(
    data: Buffer, kind: Container, frame_indices: Sequence[int], limits: DecodeLimits
) -> DecodedVideo:
    """Decode frames of the best video track by index, ascending and without repeats.

    Of each group of pictures only what precedes the last frame asked for is decoded, frames that
    nothing refers to are skipped, and each frame asked for is converted once, into its place.

    Raises:
        MediaDecodeError: If none of them decodes.
        UnsupportedMediaTypeError: If there is no video, or its codec is not served.
        MediaTooLargeError: If they have more pixels than the limit.
    """
    clock = Clock(limits.max_decode_s)
    buffer = FrameBuffer(frame_indices, limits)
    with open_container(data, kind, limits) as container:
        stream = video_stream(container, limits)
        if stream is None:
            raise UnsupportedMediaTypeError("The medium holds no video.")
        check_pixels(stream.codec_context.width, stream.codec_context.height, limits)
        index = index_packets(container, stream, clock)
        if index.pts:
            with rewound(container, stream, data, kind, limits) as again:
                _decode_runs(*again, index, buffer, clock, can_seek=is_indexed(kind))
    if buffer.num_wanted:
        _decode_all(data, kind, index, buffer, limits, clock)
    return buffer.finish()


def _sound(container: AvObject) -> AvObject | None:
    """Return the audio track of a video; an unknown codec's is none."""
    try:
        return audio_stream(container)
    except UnsupportedMediaTypeError:
        return None


def _first_size(
    container: AvObject, stream: AvObject, limits: DecodeLimits, clock: Clock
) -> tuple[int, int]:
    """Return width and height as the first frame is shown."""
    is_first = True
    for packet in packets(container, stream, clock):
        frames = decoded(packet)
        if is_first and not frames:
            # Most decoders hold frames back to put them in order; this one is to be seen at once.
            frames = drained(stream.codec_context) or decoded(packet)
        is_first = False
        for frame in frames:
            check_pixels(frame.width, frame.height, limits)
            turned = _quarter_turns(frame) % 2
            return (frame.height, frame.width) if turned else (frame.width, frame.height)
    raise MediaDecodeError("None of the video's frames decodes.")


def _quarter_turns(frame: AvObject) -> int:
    """Return by how many quarters a frame is to be turned, counterclockwise."""
    return round((frame.rotation or 0) / 90) % 4


def _take(frame: AvObject, index: int, time_s: float, buffer: FrameBuffer) -> None:
    """Convert a frame into its place; it is shown `time_s` after the first one."""
    turns = _quarter_turns(frame)
    width, height = frame.width, frame.height
    if buffer.size is None:
        buffer.allocate(*((height, width) if turns % 2 else (width, height)))
    place = buffer.place_of(index)
    if place is None:
        return
    target = np.rot90(place, -turns)
    # A track whose size changes on the way keeps its first one.
    # By default a thread for every core is started anew for each frame.
    rgb = frame.reformat(width=target.shape[1], height=target.shape[0], format="rgb24", threads=1)
    plane = rgb.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    target[:] = rows[: rgb.height, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)
    buffer.took(index, time_s)


def _decode_runs(
    container: AvObject,
    stream: AvObject,
    index: PacketIndex,
    buffer: FrameBuffer,
    clock: Clock,
    *,
    can_seek: bool,
) -> None:
    """Decode what the wanted frames need, and nothing between."""
    places = {index.pts[place]: place for place in buffer.wanted if 0 <= place < len(index.pts)}
    following = packets(container, stream, clock)
    for run in find_runs(index, places):
        if can_seek and run.skipped > _SEEK_BEYOND:
            container.seek(run.first, stream=stream, backward=True)
            following = packets(container, stream, clock)
        for frame in _frames_of(run, following, stream.codec_context, places):
            if frame.pts in places:
                time_s = float((frame.pts - index.pts[0]) * stream.time_base)
                _take(frame, places[frame.pts], time_s, buffer)


def _frames_of(
    run: Run, following: Iterator[AvObject], context: AvObject, wanted: Collection[int]
) -> Iterator[AvObject]:
    """Decode a run of packets, of those that nothing refers to only what is wanted."""
    mode = "DEFAULT"
    is_begun = False
    for packet in following:
        is_begun = is_begun or (packet.pts == run.first and is_shown(packet, context.name))
        if not is_begun:
            continue
        needed = packet.pts is None or packet.pts in wanted or context.name in _KEEP_THEIR_MODE
        if (chosen := "DEFAULT" if needed else "NONREF") != mode:
            mode = context.skip_frame = chosen
        yield from decoded(packet)
        if packet.pts == run.last and is_shown(packet, context.name):
            break
    yield from drained(context)
    context.skip_frame = "DEFAULT"


def _decode_all(
    data: Buffer,
    kind: Container,
    index: PacketIndex,
    buffer: FrameBuffer,
    limits: DecodeLimits,
    clock: Clock,
) -> None:
    """Decode from the start, for frames that seeking did not find or that tell no time."""
    places = {pts: place for place, pts in enumerate(index.pts)}
    last = buffer.wanted[-1]
    count = 0
    start_s: float | None = None
    with open_container(data, kind, limits) as container:
        stream = video_stream(container, limits)
        for packet in packets(container, stream, clock):
            for frame in decoded(packet):
                place = places.get(frame.pts) if places else count
                count += 1
                if start_s is None:
                    start_s = float(frame.time or 0.0)
                if place is None:
                    continue
                if buffer.wants(place):
                    _take(frame, place, float(frame.time or 0.0) - start_s, buffer)
                if place >= last or not buffer.num_wanted:
                    return
