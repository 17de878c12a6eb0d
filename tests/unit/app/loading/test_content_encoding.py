"""Inflating: complete, in bounded pieces, however the stream is cut into chunks."""

import gzip
import itertools
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading.content_encoding import PIECE_BYTES, Inflater, find_inflater
from app.loading.errors import MediaUpstreamError


def inflate(coding: str, chunks: Sequence[bytes]) -> bytes:
    inflater = find_inflater(coding)
    assert isinstance(inflater, Inflater)
    pieces = [p for chunk in chunks for p in inflater.pieces(chunk)] + list(inflater.finish())
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("coding", ENCODERS)
@given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=6))
def test_every_cut_gives_the_same(coding: str, data: bytes, places: list[int]) -> None:
    """Chunk borders mean nothing."""
    assert inflate(coding, cut(ENCODERS[coding](data), places)) == data
    raw = zlib.compress(data)[2:-4]
    assert inflate("deflate", cut(raw, places) if data else [raw]) == data


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 50 * PIECE_BYTES])
@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
def test_what_swells_comes_in_pieces(size: int, chunk: int) -> None:
    """Nothing is lost between pieces, nor at the very end."""
    data = gzip.compress(bytes(size), 9)
    chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    assert inflate("gzip", chunks) == bytes(size)


@given(st.binary(max_size=200))
def test_any_bytes_are_inflated_or_refused(data: bytes) -> None:
    """Garbage is the upstream's failure and nothing else."""
    for coding in ("gzip", "deflate"):
        for text in (data, gzip.compress(b"head") + data, zlib.compress(data)[:-1]):
            try:
                inflate(coding, [text])
            except MediaUpstreamError:
                continue


def test_nothing_to_undo() -> None:
    """No header, or identity however often, is the plain body."""
    for coding in ("", "identity", " Identity , identity"):
        assert find_inflater(coding) is None
