"""Whatever frames are asked for, they are those of decoding a video from its beginning."""

import io
from functools import cache

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.decode import decode_frames, probe, video
from processors.types import DecodeLimits, MediaOptions, Modality

NUM_FRAMES = 50
GOP = 12
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
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


@pytest.mark.parametrize("seek_beyond", [0, 64], ids=["seeks", "reads on"])
@pytest.mark.parametrize("name", KINDS)
def test_any_frames_equal_those_of_the_whole(name: str, seek_beyond: int, monkeypatch):
    """One, some or all frames, near or far apart, are the plain decoder's, bit for bit."""
    monkeypatch.setattr(video, "_SEEK_BEYOND", seek_beyond)
    if KINDS[name][1] not in av.codecs_available:
        pytest.skip(f"no encoder {KINDS[name][1]}")
    data, whole = made(name), decoded_from_the_start(name)
    info = probe(data, limits=DecodeLimits(), prefer=Modality.VIDEO)
    assert (info.width, info.height, info.num_frames) == (128, 64, len(whole))

    @given(wanted=st.sets(st.integers(0, len(whole) - 1), min_size=1))
    @settings(max_examples=30, deadline=None)
    def equal(wanted: set[int]) -> None:
        indices = sorted(wanted)
        some = decode_frames(data, indices, options=MediaOptions(), limits=DecodeLimits())
        assert some.indices == tuple(indices)
        assert np.array_equal(some.frames, whole[indices])

    equal()
    for place in range(len(whole)):
        one = decode_frames(data, [place], options=MediaOptions(), limits=DecodeLimits())
        assert np.array_equal(one.frames[0], whole[place])
