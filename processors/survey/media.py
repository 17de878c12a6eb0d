"""Small encoded media of the survey, made here."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
from PIL import Image


def png(width: int, height: int, seed: int) -> bytes:
    """Return an image of gradients with noise as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(_pixels(width, height, seed)).save(buffer, "PNG")
    return buffer.getvalue()


def wav(seconds: float, sample_rate_hz: int, seed: int) -> bytes:
    """Return a noisy tone as 16-bit mono WAV."""
    t = np.arange(round(seconds * sample_rate_hz)) / sample_rate_hz
    noise = np.random.default_rng(seed).standard_normal(t.size)
    samples = (0.3 * np.sin(2 * np.pi * 220 * t) + 0.05 * noise) * 32767
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(samples.clip(-32768, 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def mp4(num_frames: int, width: int, height: int, fps: int, seed: int) -> bytes:
    """Return a clip of changing pictures as MPEG-4."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(num_frames):
            pixels = _pixels(width, height, seed + index)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def _pixels(width: int, height: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 // width, y * 255 // height, (x + y + 40 * seed) % 256], axis=-1)
    noisy = base + random.integers(0, 30, base.shape)
    return noisy.clip(0, 255).astype(np.uint8)
