"""A consumer of the chaos run: asks for pictures of one colour and checks what it reads.

`python -m tests.helpers.chaos_consumer URL SEED`: prints a line per request, until it is killed.
"""

import io
import random
import sys

import numpy as np
from PIL import Image

from transport.client import Client
from transport.errors import ApiError, FeatureLost

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
SIZES = (56, 84, 112, 224, 336)


def picture(colour: tuple[int, ...], side: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, "PNG")
    return out.getvalue()


def is_right(pixels: np.ndarray, colour: tuple[int, ...]) -> bool:
    """Whether every value is its channel's: a stale or mixed read shows another colour."""
    expected = (np.array(colour) / 255 - MEAN) / STD
    channels = pixels.reshape(len(pixels), 3, -1)
    return bool(np.allclose(channels, expected[None, :, None], atol=1e-4))


def main() -> None:
    """Ask, read, check, release or forget, for ever."""
    url, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    with Client(url) as client:
        while True:
            colour = tuple(chance.randrange(256) for _ in range(3))
            side = chance.choice(SIZES)
            try:
                answer = client.preprocess(
                    prompt=IMAGE,
                    images=[picture(colour, side)],
                    transport=["shm"],
                    lease_ttl_s=0.5,
                )
                tensors = client.open_item(answer.items[0])
            except FeatureLost:
                print("lost", flush=True)
                continue
            except ApiError as error:
                print(f"refused {error.code}", flush=True)
                continue
            rows = (side // 14) ** 2
            right = len(tensors["pixel_values"]) >= 4 and is_right(tensors["pixel_values"], colour)
            print("right" if right else f"WRONG {colour} {side} {rows}", flush=True)
            if chance.random() < 0.8:
                client.release(answer)


if __name__ == "__main__":
    main()
