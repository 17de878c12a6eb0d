"""Audio clips: mixed to mono, then resampled, packet by packet and bounded on the way."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import av
import av.error
import numpy as np
import soxr

from processors.decode.clock import Clock
from processors.decode.container import AvObject, audio_stream, decoded, open_container, packets
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaTypeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

MIN_RATE_HZ, MAX_RATE_HZ = 1000, 768_000
RESAMPLER_QUALITY = "HQ"
_JOIN_SAMPLES = 1 << 16
"""Samples of all channels that are joined before they are averaged."""
_TYPES = {"flt": np.float32, "s16": np.int16}
"""Samples that are read as FFmpeg leaves them; it converts others."""
_MOST_PLANES = 7
_COUNTED_CODECS = frozenset({"opus", "aac", "mp3float", "mp3"})
"""Codecs that begin with samples nobody is to hear, so that headers tell too long a time."""
_COUNT_UP_TO_S = 1800.0
"""Of longer clips the packets are not counted for a few milliseconds' sake."""


def probe_audio(data: Buffer, kind: Container, limits: DecodeLimits) -> MediaInfo | None:
    """Read a container's best audio track; None where it has none.

    Raises:
        MediaDecodeError: If the container cannot be read, or tells no rate.
        UnsupportedMediaTypeError: If its codec is not served.
    """
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind, limits) as container:
        stream = audio_stream(container)
        if stream is None:
            return None
        rate = _checked_rate(stream.rate)
        nbytes = memoryview(data).nbytes
        seconds = _seconds(container, stream, kind, clock)
        return MediaInfo(
            kind=Modality.AUDIO,
            mime=kind.audio_mime,
            nbytes=nbytes,
            seconds=seconds,
            sample_rate=rate,
            channels=stream.channels,
            has_audio=True,
            exact=_is_exact(stream, seconds, nbytes),
        )


def decode_audio_of(
    data: Buffer,
    kind: Container,
    sample_rate_hz: int,
    options: MediaOptions,
    limits: DecodeLimits,
) -> np.ndarray:
    """Decode the best audio track to mono.

    Channels are averaged before resampling: a third of the work on stereo, equal up to 1e-7. What
    is held is what is asked for, at the rate that is asked for.

    Returns:
        float32 of shape (S,), contiguous, nominally in [-1, 1].

    Raises:
        MediaDecodeError: If none of it decodes, or it holds what is no number.
        UnsupportedMediaTypeError: If there is no audio, or its codec is not served.
        MediaTooLargeError: If it lasts longer than the limit; told while decoding.
    """
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind, limits) as container:
        stream = audio_stream(container)
        if stream is None:
            raise UnsupportedMediaTypeError("The medium holds no audio.")
        sound = _Sound(sample_rate_hz, options, limits)
        for mono, rate in _mono(container, stream, clock):
            if not sound.take(mono, rate):
                break
    return sound.finish()


class _Sound:
    """Takes mono samples as they are decoded; keeps the part that is asked for, resampled."""

    def __init__(self, sample_rate_hz: int, options: MediaOptions, limits: DecodeLimits) -> None:
        self._target_hz = sample_rate_hz
        self._options = options
        self._max_audio_s = limits.max_audio_s
        self._rate_hz = 0
        self._position = 0
        self._resampler: soxr.ResampleStream | None = None
        self._chunks: list[np.ndarray] = []

    def take(self, mono: np.ndarray, rate_hz: int) -> bool:
        """Take the next samples; False where no more are needed.

        Raises:
            MediaTooLargeError: If they are more than the limit.
            MediaDecodeError: If the rate is none, or changes on the way.
        """
        if not self._rate_hz:
            self._start(_checked_rate(rate_hz))
        if rate_hz != self._rate_hz:
            raise MediaDecodeError("The sample rate changes within the clip.")
        begin = self._position
        self._position += mono.size
        part = mono[max(self._first - begin, 0) : max(self._stop - begin, 0)]
        if self._position - self._first > self._most and part.size:
            raise MediaTooLargeError(
                f"The audio is longer than the limit of {self._max_audio_s:g} s."
            )
        self._keep(part, last=False)
        return self._position < self._stop

    def finish(self) -> np.ndarray:
        """Return all that was kept.

        Raises:
            MediaDecodeError: If it is nothing, or holds what is no number.
        """
        if self._rate_hz:
            self._keep(np.zeros(0, np.float32), last=True)
        sound = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.float32)
        if not sound.size:
            raise MediaDecodeError(
                "None of the audio decodes, or less than a sample of it lies between start and end."
            )
        if not np.isfinite(sound).all():
            raise MediaDecodeError("The audio holds samples that are no numbers.")
        return sound

    def _start(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._first = round((self._options.start_s or 0.0) * rate_hz)
        end_s = self._options.end_s
        self._stop = 1 << 62 if end_s is None else round(end_s * rate_hz)
        self._most = min(round(self._max_audio_s * rate_hz), 1 << 62)
        if rate_hz != self._target_hz:
            self._resampler = soxr.ResampleStream(
                rate_hz, self._target_hz, 1, dtype="float32", quality=RESAMPLER_QUALITY
            )

    def _keep(self, part: np.ndarray, *, last: bool) -> None:
        if self._resampler is not None and (part.size or last):
            part = self._resampler.resample_chunk(np.ascontiguousarray(part), last=last)
        if part.size:
            self._chunks.append(part)


def _mono(container: AvObject, stream: AvObject, clock: Clock) -> Iterator[tuple[np.ndarray, int]]:
    """Yield a track's samples, its channels averaged, and their rate.

    Frames are joined first: an MP3's or an Opus track's are a few hundredths of a second each, and
    averaging and resampling them one by one costs half as much as decoding them.
    """
    form: tuple[object, ...] | None = None
    joined: list[list[np.ndarray]] = []
    channels = rate = count = 0
    for frame in _frames(container, stream, clock):
        if form != (next_form := _form_of(frame)) or count >= _JOIN_SAMPLES:
            if joined:
                yield _average(joined, channels), rate
            form, joined, count = next_form, [], 0
            channels, rate = frame.layout.nb_channels, frame.sample_rate
        joined.append(_planes_of(frame))
        count += frame.samples * channels
    if joined:
        yield _average(joined, channels), rate


def _frames(container: AvObject, stream: AvObject, clock: Clock) -> Iterator[AvObject]:
    """Yield a track's frames, their samples of a type that is read."""
    resampler: AvObject = None
    form: tuple[object, ...] | None = None
    for packet in packets(container, stream, clock):
        for frame in decoded(packet, stream.codec_context):
            if _is_read(frame):
                yield frame
                continue
            if (next_form := _form_of(frame)) != form:
                form = next_form
                resampler = av.AudioResampler(format="flt")
            yield from resampler.resample(frame)


def _form_of(frame: AvObject) -> tuple[object, ...]:
    return frame.format.name, frame.layout.name, frame.layout.nb_channels, frame.sample_rate


def _is_read(frame: AvObject) -> bool:
    """Return whether samples are read where they are; a converter takes milliseconds to set up.

    PyAV counts the planes of a frame up to a null pointer, and with eight planes or more there need
    not be one.
    """
    is_bounded = not frame.format.is_planar or frame.layout.nb_channels <= _MOST_PLANES
    return is_bounded and frame.format.packed.name in _TYPES


def _planes_of(frame: AvObject) -> list[np.ndarray]:
    """Return a frame's samples: a plane for each channel, or one of all, interleaved."""
    channels = frame.layout.nb_channels
    num_planes = channels if frame.format.is_planar else 1
    dtype = _TYPES[frame.format.packed.name]
    planes, count = frame.planes, frame.samples * channels // num_planes
    return [np.frombuffer(planes[place], dtype, count) for place in range(num_planes)]


def _average(joined: list[list[np.ndarray]], channels: int) -> np.ndarray:
    """Return the mean of frames' channels, added in their order; float32 of shape (S,)."""
    planes = [np.concatenate(parts) for parts in zip(*joined, strict=True)]
    if len(planes) != channels:
        planes = list(planes[0].reshape(-1, channels).T)
    total: np.ndarray = _scaled(planes[0])
    if channels == 1:
        return total
    total = total + _scaled(planes[1])
    for plane in planes[2:]:
        total += _scaled(plane)
    total /= np.float32(channels)
    return total


def _scaled(samples: np.ndarray) -> np.ndarray:
    """Return samples as float32, nominally in [-1, 1]."""
    if samples.dtype == np.float32:
        return samples
    scaled: np.ndarray = samples.astype(np.float32)
    scaled *= np.float32(1 / 32768)
    return scaled


def _checked_rate(rate_hz: int | None) -> int:
    if not rate_hz or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise MediaDecodeError(
            f"The audio's sample rate is missing or not within {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz."
        )
    return int(rate_hz)


def _is_exact(stream: AvObject, seconds: float | None, nbytes: int) -> bool:
    """Return whether the bytes of plain samples are as many as the header tells."""
    context = stream.codec_context
    if seconds is None or context.format is None or not context.name.startswith("pcm_"):
        return False
    told_bytes = round(seconds * stream.rate) * stream.channels * context.format.bytes
    return bool(told_bytes <= nbytes)


def _seconds(container: AvObject, stream: AvObject, kind: Container, clock: Clock) -> float | None:
    """Return how long a track lasts, by its header or by its packets."""
    told: float | None = None
    if stream.duration and stream.time_base:
        told = float(stream.duration * stream.time_base)
    elif container.duration and container.duration > 0 and not container.streams.video:
        told = float(container.duration) / 1e6
    is_counted = stream.codec_context.name in _COUNTED_CODECS
    if told is not None and told > 0 and (not is_counted or told > _COUNT_UP_TO_S):
        return told
    return _count_seconds(container, stream, kind, clock) or told


def _count_seconds(
    container: AvObject, stream: AvObject, kind: Container, clock: Clock
) -> float | None:
    """Return a track's length by its packets, less what they mark as not to be heard."""
    if not stream.time_base:
        return None
    ticks = skipped = 0
    try:
        for packet in packets(container, stream, clock):
            if packet.is_discard:
                continue
            ticks += packet.duration or 0
            if packet.has_sidedata("skip_samples"):
                at_start, at_end = struct.unpack_from("<II", _side_data(packet))
                # In Ogg the last packet's own time is already the shorter one.
                skipped += at_start + (at_end if kind.demuxer != "ogg" else 0)
    except av.error.FFmpegError:
        # What stands before the damage is what can be decoded.
        pass
    seconds = float(ticks * stream.time_base) - skipped / stream.rate
    return seconds if seconds > 0 else None


def _side_data(packet: AvObject) -> bytes:
    return bytes(packet.get_sidedata("skip_samples"))
