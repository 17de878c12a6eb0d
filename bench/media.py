"""The benchmark's JPEGs: photo-like, from a seed, each different from every other."""

import io
import itertools
import struct
from collections.abc import Iterator

import numpy as np
from PIL import Image

SIZES = ((512, 512), (1024, 768), (1920, 1080), (4000, 3000))


def make_jpeg(width: int, height: int, seed: int) -> bytes:
    """A JPEG with smooth shapes and sensor grain, so that it decodes at a photo's cost."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 64 + 2, width // 64 + 2, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    grain = rng.normal(0, 4, (height, width, 1))
    pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def distinct(data: bytes) -> Iterator[bytes]:
    """The same JPEG or MP4 for ever, with a comment that makes every file another to a cache."""
    for number in itertools.count():
        if data[4:8] == b"ftyp":
            yield data + struct.pack(">I4sQ", 16, b"free", number)
        else:
            comment = b"\xff\xfe" + struct.pack(">HQ", 10, number)
            yield data[:2] + comment + data[2:]
