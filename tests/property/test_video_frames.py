"""Whatever frames are asked for, they are those of decoding a video from its beginning.

What becomes of a video, a broken one too, does not depend on the number of threads.
"""

import io
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.decode import batches, decode_frames, packet_index, probe, runs
from processors.errors import MediaTooLargeError, MmprepError
from processors.types import DecodeLimits, MediaOptions, Modality
from tests.helpers.mutate import mutate

NUM_FRAMES = 50
GOP = 12
MUTATIONS = 25
KINDS = {
    "h264": ("mp4", "libx264", {}),
    "h264_open": ("mp4", "libx264", {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}),
    "h264_pyramid": (
        "matroska",
        "libx264",
        {"x264-params": "b-pyramid=normal:bframes=8:b-adapt=0"},
    ),
    "h264_refresh": ("mp4", "libx264", {"x264-params": "intra-refresh=1:bframes=0"}),
    "h264_low_delay": ("matroska", "libx264", {"tune": "zerolatency"}),
    "h264_interlaced": ("mp4", "libx264", {"x264-params": "interlaced=1:bframes=2"}),
    "h264_rotated": ("mp4", "libx264", {}),
    "h264_ts": ("mpegts", "libx264", {}),
    "h264_avi": ("avi", "libx264", {"x264-params": "bframes=0"}),
    "h264_flv": ("flv", "libx264", {}),
    "hevc": ("mp4", "libx265", {"x265-params": "log-level=none:bframes=3:open-gop=1"}),
    "mpeg4": ("mp4", "mpeg4", {"bf": "2"}),
    "mpeg4_avi": ("avi", "mpeg4", {}),
    "mpeg2": ("mpegts", "mpeg2video", {"bf": "2"}),
    "mpeg2_ps": ("mpeg", "mpeg2video", {"bf": "2"}),
    "vp8": ("webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "10"}),
    "vp9": ("webm", "libvpx-vp9", {"auto-alt-ref": "1", "lag-in-frames": "10"}),
    "av1": ("mp4", "libsvtav1", {"preset": "12"}),
    "mjpeg": ("mov", "mjpeg", {}),
}


@cache
def made(name: str) -> bytes:
    """Return a video of moving blocks over grain."""
    container_format, codec, options = KINDS[name]
    random = np.random.default_rng(0)
    ground = random.integers(60, 200, (96, 160, 3), np.uint8)
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = 128, 64
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = GOP
        if name.endswith("rotated"):
            stream.set_display_rotation(90)
        for place in range(NUM_FRAMES):
            picture = ground[place % 20 : place % 20 + 64, place % 32 : place % 32 + 128].copy()
            picture[10:40, (3 * place) % 90 : (3 * place) % 90 + 30] = 5 * place
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def decoded_from_the_start(name: str) -> np.ndarray:
    """Return all frames that come out when everything goes in."""
    with av.open(io.BytesIO(made(name))) as container:
        frames = list(container.decode(video=0))
        upright = [np.rot90(f.to_ndarray(format="rgb24"), f.rotation // 90) for f in frames]
        return np.stack(upright)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads decode what is too small to be worth it."""
    monkeypatch.setattr(batches, "_LEAST_PIXELS", 0)
    monkeypatch.setattr(packet_index, "_LEAST_PACKETS", 1)


def need_encoder(name: str) -> None:
    if KINDS[name][1] not in av.codecs_available:
        pytest.skip(f"no encoder {KINDS[name][1]}")


def outcome(data: bytes, indices: Sequence[int], limits: DecodeLimits, threads: int) -> Any:
    """Return all that a caller gets."""
    try:
        video = decode_frames(
            data, indices, options=MediaOptions(), limits=limits, num_threads=threads
        )
    except MmprepError as error:
        return type(error), error.message
    return video.indices, video.pts_s, video.missing, video.frames.shape, video.frames.tobytes()


@pytest.mark.parametrize(
    ("seek_beyond", "threads"), [(0, 1), (64, 1), (64, 3)], ids=["seeks", "reads on", "threads"]
)
@pytest.mark.parametrize("name", KINDS)
def test_any_frames_equal_those_of_the_whole(
    name: str, seek_beyond: int, threads: int, monkeypatch: pytest.MonkeyPatch, small_batches: None
) -> None:
    """One, some or all frames, near or far apart, are the plain decoder's, bit for bit."""
    monkeypatch.setattr(runs, "_SEEK_BEYOND", seek_beyond)
    need_encoder(name)
    data, whole = made(name), decoded_from_the_start(name)
    info = probe(data, limits=DecodeLimits(), prefer=Modality.VIDEO)
    assert (info.num_frames, info.height, info.width, 3) == whole.shape

    def decode(indices: Sequence[int]) -> Any:
        options, limits = MediaOptions(), DecodeLimits()
        return decode_frames(data, indices, options=options, limits=limits, num_threads=threads)

    @given(wanted=st.sets(st.integers(0, len(whole) - 1), min_size=1))
    @settings(max_examples=30, deadline=None)
    def equal(wanted: set[int]) -> None:
        indices = sorted(wanted)
        some = decode(indices)
        assert some.indices == tuple(indices)
        assert np.array_equal(some.frames, whole[indices])

    equal()
    assert np.array_equal(decode(range(len(whole))).frames, whole)
    for place in range(len(whole)) if threads == 1 else ():
        assert np.array_equal(decode([place]).frames[0], whole[place])


@pytest.mark.parametrize("name", KINDS)
def test_broken_videos_do_not_depend_on_threads(name: str, small_batches: None) -> None:
    """Frames that are made up, frames that are missing and errors are those of a single thread."""
    need_encoder(name)
    limits = DecodeLimits(max_pixels=20_000_000)
    for seed in range(MUTATIONS):
        data = mutate(made(name), seed)
        chosen = random.Random(seed)
        indices = sorted(chosen.sample(range(NUM_FRAMES), chosen.choice((2, 8, 40))))
        alone = outcome(data, indices, limits, 1)
        assert outcome(data, indices, limits, 2) == alone, seed
        assert outcome(data, indices, limits, 4) == alone, seed


def test_threads_find_frames_too_large_as_one_does(small_batches: None) -> None:
    """The frames' limit holds in threads, and is told in the same words."""
    limits = DecodeLimits(max_pixels=10 * 128 * 64)
    kinds = [outcome(made("h264"), range(0, 50, 4), limits, threads) for threads in (1, 2)]
    assert kinds[0][0] is MediaTooLargeError
    assert kinds[1] == kinds[0]


def test_threads_end_with_the_time(small_batches: None) -> None:
    """Nobody decodes on when the time is over."""
    limits = DecodeLimits(max_decode_s=1e-6)
    assert "took longer" in outcome(made("h264"), range(50), limits, 2)[1]
