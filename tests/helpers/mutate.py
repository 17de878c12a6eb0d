"""Mutated copies of media files: flipped bits, cuts, lies in headers, blocks moved about."""

from __future__ import annotations

import random
from collections.abc import Callable

HEADER_BYTES = 512
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Mutation = Callable[[bytearray, random.Random], None]


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_header_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(min(len(data), HEADER_BYTES))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def lie(data: bytearray, rng: random.Random) -> None:
    """Write an extreme number somewhere in the header, as sizes and counts are written."""
    for _ in range(rng.choice((1, 1, 3))):
        width = rng.choice((1, 2, 4))
        value = rng.choice(EXTREMES) & ((1 << 8 * width) - 1)
        at = rng.randrange(min(len(data), HEADER_BYTES))
        data[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))


def lie_anywhere(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at : at + 4] = rng.choice(EXTREMES).to_bytes(4, rng.choice(("big", "little")))


def blank(data: bytearray, rng: random.Random) -> None:
    at, size = rng.randrange(len(data)), rng.choice((4, 64, 1024))
    data[at : at + size] = bytes([rng.choice((0, 0xFF))]) * len(data[at : at + size])


def move_block(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((4, 16, 256))
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    block = data[source : source + size]
    if rng.random() < 0.5:
        del data[source : source + size]
    data[target:target] = block


def add_noise(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.choice((1, 100, 5000)))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_header_bits, cut, lie, lie_anywhere, blank, move_block, add_noise,
)  # fmt: skip


def mutate(data: bytes, seed: int) -> bytes:
    """Return a mutated copy, the same one for the same seed."""
    rng = random.Random(seed)
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not mutated:
            break
        rng.choice(MUTATIONS)(mutated, rng)
    return bytes(mutated)
