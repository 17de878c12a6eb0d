"""The benchmark's videos and sounds, from a seed."""

import io
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from bench.facts import SEED

FPS = 30
SAMPLE_RATE_HZ = 16_000


def make_clip(path: Path, width: int, height: int, seconds: int, *, quality: int = 23) -> None:
    """Write an H.264 clip of a camera that pans over a scene, with x264's own groups of pictures.

    Args:
        path: An `.mp4`.
        width: Of the frames, in pixels.
        height: Likewise.
        seconds: Its length.
        quality: x264's constant rate factor.
    """
    rng = np.random.default_rng(SEED)
    coarse = rng.integers(0, 256, (height // 24, width // 24, 3), np.uint8)
    big = (width + 8 * FPS, height + 4 * FPS)
    scene = np.asarray(Image.fromarray(coarse).resize(big, Image.Resampling.BICUBIC))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": str(quality)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(seconds * FPS):
            # To and fro, so that any length fits the scene.
            step = abs(number % (4 * FPS) - 2 * FPS)
            x, y = 4 * step, 2 * step
            window = np.ascontiguousarray(scene[y : y + height, x : x + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(window, format="rgb24")))
        container.mux(stream.encode(None))


def repeat_clip(source: Path, path: Path, times: int) -> None:
    """Write a clip that shows another one so many times, its packets as they are."""
    with av.open(str(source)) as reader, av.open(str(path), "w") as writer:
        stream = reader.streams.video[0]
        packets = [p for p in reader.demux(stream) if p.dts is not None]
        frame = int(Fraction(1, FPS) / stream.time_base)
        shift = frame * len(packets)
        copy = writer.add_stream_from_template(stream)
        for number in range(times):
            reader.seek(0)
            for packet in reader.demux(stream):
                if packet.dts is None:
                    continue
                packet.pts += number * shift
                packet.dts += number * shift
                packet.stream = copy
                writer.mux(packet)


def make_sound(seconds: float) -> bytes:
    """Return a WAV file of a noisy tone, 16 kHz mono."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(_noisy_tone(seconds, SAMPLE_RATE_HZ, 1).tobytes())
    return out.getvalue()


def make_stereo(seconds: float, rate_hz: int) -> bytes:
    """Return an MP3 file of a tone with other noise in each channel."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=rate_hz, layout="stereo")
        frame = av.AudioFrame.from_ndarray(_noisy_tone(seconds, rate_hz, 2), "s16p", "stereo")
        frame.sample_rate = rate_hz
        for piece in (frame, None):
            container.mux(stream.encode(piece))
    return out.getvalue()


def _noisy_tone(seconds: float, rate_hz: int, num_channels: int) -> np.ndarray:
    """Return int16 of shape (channels, S)."""
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    noise = np.random.default_rng(SEED).standard_normal((num_channels, t.size))
    tone = 0.3 * np.sin(2 * np.pi * 220 * t) + 0.05 * noise
    return (tone * 32767).astype("<i2")
