"""Audio of any number of channels averages to mono; no read goes past the last of them."""

import io
import wave

import av
import numpy as np
import pytest
import soxr

from processors.decode import decode_audio
from processors.types import DecodeLimits, MediaOptions

RATE_HZ = 16_000
SAMPLES = 8_000
OPTIONS, LIMITS = MediaOptions(), DecodeLimits()


def sound_of(channels: int) -> np.ndarray:
    """int16 of shape (SAMPLES, channels)."""
    chance = np.random.default_rng(channels)
    return chance.integers(-20_000, 20_000, (SAMPLES, channels), dtype=np.int16)


def decoded(data: bytes) -> np.ndarray:
    return decode_audio(data, sample_rate_hz=RATE_HZ, options=OPTIONS, limits=LIMITS)


def as_wav(sound: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(sound.shape[1])
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(sound.tobytes())
    return out.getvalue()


def encoded(sound: np.ndarray, layout: str, codec: str, container: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=RATE_HZ, layout=layout)
        frame = av.AudioFrame.from_ndarray(sound.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate = RATE_HZ
        resampler = av.AudioResampler(stream.format, layout, RATE_HZ, stream.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 8, 9, 16, 28, 64])
def test_plain_samples_are_averaged(channels: int) -> None:
    """PCM has no loss: the mean of its channels."""
    sound = sound_of(channels)
    mono = (sound / np.float32(32768)).mean(axis=1, dtype=np.float64)
    np.testing.assert_allclose(decoded(as_wav(sound)), mono, rtol=0, atol=2e-7)


@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1", "7.1"])
@pytest.mark.parametrize(
    ("codec", "container"), [("flac", "flac"), ("aac", "mp4"), ("libopus", "ogg")]
)
def test_surround_sound_is_averaged(layout: str, codec: str, container: str) -> None:
    """The codecs that hold channels apart, up to as many as FFmpeg keeps without a table."""
    channels = av.AudioLayout(layout).nb_channels
    time_s = np.arange(SAMPLES) / RATE_HZ
    tone = np.round(8000 * np.sin(2 * np.pi * 440 * time_s)).astype(np.int16)
    sound = np.repeat(tone[:, None], channels, axis=1)
    mono = decoded(encoded(np.ascontiguousarray(sound), layout, codec, container))
    middle = mono[2000:6800]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(middle.size)))
    assert np.argmax(spectrum) == round(440 * middle.size / RATE_HZ)
    assert np.abs(middle).max() == pytest.approx(8000 / 32768, rel=0.2)


def converted(data: bytes) -> np.ndarray:
    """Samples made float32 and interleaved by FFmpeg, their channels averaged in order."""
    resampler, pieces = av.AudioResampler(format="flt"), []
    with av.open(io.BytesIO(data)) as file:
        for frame in file.decode(audio=0):
            for packed in resampler.resample(frame):
                channels = packed.layout.nb_channels
                pieces.append(packed.to_ndarray().reshape(-1, channels))
    samples = np.concatenate(pieces)
    total = samples[:, 0].copy()
    for channel in range(1, channels):
        total += samples[:, channel]
    return total if channels == 1 else total / np.float32(channels)


@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1", "7.1"])
@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("pcm_s16le", "wav"), ("pcm_u8", "wav"), ("pcm_s24le", "wav"), ("pcm_f32le", "wav"),
        ("pcm_f64le", "wav"), ("pcm_mulaw", "wav"), ("mp2", "mp2"), ("flac", "flac"),
        ("alac", "mp4"), ("aac", "mp4"), ("libmp3lame", "mp3"),
    ],
)  # fmt: skip
def test_samples_are_those_that_ffmpeg_converts(codec: str, container: str, layout: str) -> None:
    """Whichever are read where they are, in planes or beside each other: the same bits."""
    channels = av.AudioLayout(layout).nb_channels
    if channels > {"mp2": 2, "libmp3lame": 2, "alac": 6}.get(codec, 8):
        pytest.skip("the encoder does not take so many channels")
    data = encoded(sound_of(channels), layout, codec, container)
    assert np.array_equal(decoded(data), converted(data))


@pytest.mark.parametrize("codec", ["libmp3lame", "flac"])
def test_joined_frames_are_the_track_as_a_whole(codec: str) -> None:
    """Whatever frames a codec makes, the samples are those of averaging and resampling at once."""
    count = 110_250
    tone = np.sin(np.arange(count) / 20) * 0.4
    noise = np.random.default_rng(0).standard_normal((2, count)) * 0.05
    pcm = np.ascontiguousarray(((tone + noise) * 32767).astype(np.int16))
    file = io.BytesIO()
    with av.open(file, "w", format="mp3" if codec == "libmp3lame" else "flac") as out:
        stream = out.add_stream(codec, rate=44_100, layout="stereo")
        if codec == "flac":
            frame = av.AudioFrame.from_ndarray(pcm.T.reshape(1, -1).copy(), "s16", "stereo")
        else:
            frame = av.AudioFrame.from_ndarray(pcm, "s16p", "stereo")
        frame.sample_rate = 44_100
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    resampler = av.AudioResampler(format="fltp")
    with av.open(io.BytesIO(file.getvalue())) as container:
        left, right = np.concatenate(
            [p.to_ndarray() for f in container.decode(audio=0) for p in resampler.resample(f)], 1
        )
    expected = soxr.resample((left + right) / np.float32(2), 44_100, 16_000, quality="HQ")
    given = decode_audio(
        file.getvalue(), sample_rate_hz=16_000, options=MediaOptions(), limits=DecodeLimits()
    )
    assert np.array_equal(given, expected)
