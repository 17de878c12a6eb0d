"""Synthetic media: the same arrays for the same arguments."""

import numpy as np
from PIL import Image

SAMPLE_RATE_HZ = 16000


def noise_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an RGB image of gradients with noise, so that every resize filter shows."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 // width, y * 255 // height, (x + y + 40 * seed) % 256], axis=-1)
    return Image.fromarray((base + random.integers(0, 30, base.shape)).clip(0, 255).astype("uint8"))


def noise_video(num_frames: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return uint8 frames (T, H, W, 3)."""
    return np.stack([np.asarray(noise_image(width, height, seed + t)) for t in range(num_frames)])


def video_metadata(num_frames: int, width: int, height: int, fps: float = 8.0) -> dict:
    """Return what a container says of such a clip when every frame of it is given."""
    return {
        "total_num_frames": num_frames,
        "fps": fps,
        "duration": num_frames / fps,
        "width": width,
        "height": height,
        "video_backend": "synthetic",
        "frames_indices": list(range(num_frames)),
    }


def tone(seconds: float, sample_rate_hz: int = SAMPLE_RATE_HZ, seed: int = 0) -> np.ndarray:
    """Return a noisy tone, float32 mono (S,)."""
    t = np.arange(round(seconds * sample_rate_hz)) / sample_rate_hz
    noise = np.random.default_rng(seed).standard_normal(t.size)
    return (0.3 * np.sin(2 * np.pi * (220 + 110 * seed) * t) + 0.05 * noise).astype(np.float32)
