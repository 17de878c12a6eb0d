"""Videos: what their packets promise, and the frames that are asked for, one conversion each."""

from __future__ import annotations

from collections.abc import Sequence

from processors.decode.batches import BatchDecoder
from processors.decode.clock import Clock
from processors.decode.container import (
    AvObject,
    audio_stream,
    decoded,
    drained,
    is_indexed,
    open_container,
    open_video,
    packets,
    rewound,
    video_stream,
)
from processors.decode.frames import DecodedVideo, FrameBuffer
from processors.decode.image import check_pixels
from processors.decode.packet_index import PacketIndex, index_packets, timing
from processors.decode.runs import TimedFrame, quarter_turns, take
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
    data: Buffer,
    kind: Container,
    frame_indices: Sequence[int],
    limits: DecodeLimits,
    num_threads: int = 1,
) -> DecodedVideo:
    """Decode frames of the best video track by index, ascending and without repeats.

    Of each group of pictures only what precedes the last frame asked for is decoded, frames that
    nothing refers to are skipped, and each frame asked for is converted once, into its place.
    Groups are decoded at the same time, as far as there are threads.

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
            decoder = BatchDecoder(index, buffer, limits, clock)
            with rewound(container, stream, data, kind, limits) as track:
                decoder.decode(track, can_seek=is_indexed(kind), num_threads=num_threads)
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
        frames = decoded(packet, stream.codec_context)
        if is_first and not frames:
            # Most decoders hold frames back to put them in order; this one is to be seen at once.
            frames = drained(stream.codec_context) or decoded(packet, stream.codec_context)
        is_first = False
        for frame in frames:
            check_pixels(frame.width, frame.height, limits)
            turned = quarter_turns(frame) % 2
            return (frame.height, frame.width) if turned else (frame.width, frame.height)
    raise MediaDecodeError("None of the video's frames decodes.")


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
    with open_video(data, kind, limits) as (container, stream):
        for packet in packets(container, stream, clock):
            for frame in decoded(packet, stream.codec_context):
                place = places.get(frame.pts) if places else count
                count += 1
                if start_s is None:
                    start_s = float(frame.time or 0.0)
                if place is None:
                    continue
                if buffer.wants(place):
                    take(TimedFrame(frame, place, float(frame.time or 0.0) - start_s), buffer)
                if place >= last or not buffer.num_wanted:
                    return
