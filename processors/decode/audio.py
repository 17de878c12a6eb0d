"""Audio clips: mixed to mono, then resampled, bounded while they decode."""

from __future__ import annotations

import av
import av.error
import numpy as np
import soxr

from processors.decode.container import AvObject, Clock, open_container
from processors.decode.sniff import Buffer, Container
from processors.errors import MediaDecodeError, MediaTooLargeError
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality

_PLAIN = frozenset({"wav", "aiff", "au"})
"""Containers whose length is that of their bytes."""


def probe_audio(data: Buffer, kind: Container, limits: DecodeLimits) -> MediaInfo | None:
    """Read a container's best audio track; None where it has none.

    Raises:
        MediaDecodeError: If the container cannot be read, or tells no rate.
    """
    clock = Clock(limits.max_decode_s)
    with open_container(data, kind) as container:
        if not container.streams.audio:
            return None
        stream = container.streams.best("audio") or container.streams.audio[0]
        if not stream.rate:
            raise MediaDecodeError("The audio track tells no sample rate.")
        return MediaInfo(
            kind=Modality.AUDIO,
            mime=kind.audio_mime,
            nbytes=memoryview(data).nbytes,
            seconds=_seconds(container, stream, clock),
            sample_rate=stream.rate,
            channels=stream.channels,
            has_audio=True,
            exact=kind.demuxer in _PLAIN,
        )


def decode_audio_of(
    data: Buffer,
    kind: Container,
    sample_rate_hz: int,
    options: MediaOptions,
    limits: DecodeLimits,
) -> np.ndarray:
    """Decode the best audio track to mono.

    Channels are averaged before resampling: a third of the work on stereo, equal up to 1e-7.

    Returns:
        float32 of shape (S,), contiguous, nominally in [-1, 1].

    Raises:
        MediaDecodeError: If there is no audio, or none of it decodes.
        MediaTooLargeError: If it lasts longer than the limit; told while decoding.
    """
    clock = Clock(limits.max_decode_s)
    start_s = options.start_s or 0.0
    with open_container(data, kind) as container:
        if not container.streams.audio:
            raise MediaDecodeError("The medium holds no audio.")
        stream = container.streams.best("audio") or container.streams.audio[0]
        rate = int(stream.rate or 0)
        if not rate:
            raise MediaDecodeError("The audio track tells no sample rate.")
        most = round((start_s + limits.max_audio_s) * rate)
        end = None if options.end_s is None else round(options.end_s * rate)
        mono = _decode_mono(container, stream, most, end, clock)
    mono = mono[round(start_s * rate) : end]
    if not mono.size:
        raise MediaDecodeError("None of the audio decodes, or none lies between start and end.")
    if rate == sample_rate_hz:
        return mono
    resampled = soxr.resample(mono, rate, sample_rate_hz, quality="HQ")
    if not resampled.size:
        raise MediaDecodeError("The audio is shorter than one sample at the model's rate.")
    return np.ascontiguousarray(resampled, dtype=np.float32)


def _decode_mono(
    container: AvObject,
    stream: AvObject,
    most: int,
    end: int | None,
    clock: Clock,
) -> np.ndarray:
    chunks: list[np.ndarray] = []
    count = 0
    resampler = av.AudioResampler(format="fltp")
    demuxed = container.demux(stream)
    while end is None or count < end:
        clock.check()
        try:
            packet = next(demuxed)
            frames = packet.decode()
        except (StopIteration, av.error.EOFError):
            break
        except av.error.InvalidDataError:
            continue
        for frame in frames:
            for planar in resampler.resample(frame):
                samples = planar.to_ndarray()
                count += samples.shape[-1]
                if count > most:
                    raise MediaTooLargeError(
                        f"The audio is longer than the limit of {most / stream.rate:g} s."
                    )
                chunks.append(samples.mean(axis=0, dtype=np.float32))
    return np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.float32)


def _seconds(container: AvObject, stream: AvObject, clock: Clock) -> float | None:
    """Return how long a track lasts, by its header or by its packets."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if container.duration and container.duration > 0 and not container.streams.video:
        return float(container.duration) / 1e6
    total = 0
    for packet in container.demux(stream):
        clock.check()
        total += packet.duration or 0
    return float(total * stream.time_base) if total and stream.time_base else None
