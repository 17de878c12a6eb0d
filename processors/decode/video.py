"""Videos: what their packets promise, and the frames that are asked for, one conversion each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from processors.decode.clock import Clock
from processors.decode.container import (
    AvObject,
    audio_stream,
    decoded,
    open_container,
    packets,
    video_stream,
)
from processors.decode.frames import DecodedVideo, FrameBuffer
from processors.decode.image import check_pixels
from processors.decode.packet_index import PacketIndex, index_packets, timing
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, Modality


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
        width, height = _first_size(data, kind, limits, clock)
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

    Only groups of pictures that hold a frame asked for are decoded, frames that nothing refers to
    are skipped, and each frame asked for is converted once, into its place.

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
        _decode_groups(data, kind, index, buffer, limits, clock)
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
    data: Buffer, kind: Container, limits: DecodeLimits, clock: Clock
) -> tuple[int, int]:
    """Return width and height as the first frame is shown."""
    with open_container(data, kind, limits) as container:
        stream = video_stream(container, limits)
        for packet in packets(container, stream, clock):
            for frame in decoded(packet):
                check_pixels(frame.width, frame.height, limits)
                turned = _quarter_turns(frame) % 2
                return (frame.height, frame.width) if turned else (frame.width, frame.height)
    raise MediaDecodeError("None of the video's frames decodes.")


def _quarter_turns(frame: AvObject) -> int:
    """Return by how many quarters a frame is to be turned, counterclockwise."""
    return round((frame.rotation or 0) / 90) % 4


def _take(frame: AvObject, index: int, start_s: float, buffer: FrameBuffer) -> None:
    """Convert a frame into its place."""
    turns = _quarter_turns(frame)
    width, height = frame.width, frame.height
    if buffer.size is None:
        buffer.allocate(*((height, width) if turns % 2 else (width, height)))
    place = buffer.place_of(index)
    if place is None:
        return
    target = np.rot90(place, -turns)
    # A track whose size changes on the way keeps its first one.
    rgb = frame.reformat(width=target.shape[1], height=target.shape[0], format="rgb24")
    plane = rgb.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    target[:] = rows[: rgb.height, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)
    buffer.took(index, float(frame.time or 0.0) - start_s)


def _decode_groups(
    data: Buffer,
    kind: Container,
    index: PacketIndex,
    buffer: FrameBuffer,
    limits: DecodeLimits,
    clock: Clock,
) -> None:
    """Decode the groups of pictures that hold wanted frames, seeking over the others."""
    wanted = {index.pts[place]: place for place in buffer.wanted if 0 <= place < len(index.pts)}
    if not wanted:
        return
    with open_container(data, kind, limits) as container:
        stream: AvObject = video_stream(container, limits)
        start_s = float(index.pts[0] * stream.time_base)
        for start, stop in _runs(index, sorted(wanted)):
            if start is not None:
                container.seek(start, stream=stream, backward=True)
            _decode_run(container, stream, stop, wanted, start_s, buffer, clock)


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
    start_s: float,
    buffer: FrameBuffer,
    clock: Clock,
) -> None:
    context = stream.codec_context
    mode = "DEFAULT"
    is_over = False
    for packet in packets(container, stream, clock):
        # What nothing refers to and nobody wants need not be decoded.
        needed = packet.pts is None or packet.pts in wanted
        if (chosen := "DEFAULT" if needed else "NONREF") != mode:
            mode = context.skip_frame = chosen
        for frame in decoded(packet):
            if frame.pts in wanted:
                _take(frame, wanted[frame.pts], start_s, buffer)
            # Frames come out in the order they are shown.
            is_over = is_over or (frame.pts is not None and frame.pts >= stop)
        if is_over:
            break
    context.skip_frame = "DEFAULT"
    context.flush_buffers()


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
                    _take(frame, place, start_s, buffer)
                if place >= last or not buffer.num_wanted:
                    return
