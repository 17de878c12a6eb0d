"""Every medium of the test set gets its right answer from the decoder."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processors.decode import (
    batches,
    check_modality,
    decode_audio,
    decode_frames,
    decode_image,
    probe,
)
from processors.errors import MmprepError
from processors.types import DecodeLimits, MediaOptions, Modality

ROOT = Path(__file__).parents[4]
MEDIA = ROOT.parent / "shared" / "media"
SMALL = ROOT / "tests" / "resources" / "media"
LIMITS = DecodeLimits()
OPTIONS = MediaOptions()


def manifest() -> list[dict[str, str]]:
    if not (MEDIA / "manifest.csv").exists():
        return []
    with open(MEDIA / "manifest.csv", newline="") as table:
        return list(csv.DictReader(table))


def sent_as(row: dict[str, str]) -> Modality:
    """What a file is sent as: broken ones as what they pretend to be."""
    if row["kind"] in list(Modality):
        return Modality(row["kind"])
    suffix = row["file"].rsplit(".", 1)[-1]
    if suffix in ("mp4", "mkv", "webm", "mov", "avi"):
        return Modality.VIDEO
    return Modality.AUDIO if suffix in ("wav", "opus", "flac", "mp3") else Modality.IMAGE


def videos() -> list[Path]:
    """Return the test set's and, where it is there, the large set's, broken ones too."""
    suffixes = {".mp4", ".mkv", ".webm", ".mov", ".avi", ".ts"}
    return [p for p in [*SMALL.iterdir(), *MEDIA.glob("*/*")] if p.suffix in suffixes]


def decode(data: bytes, modality: Modality) -> tuple[Any, np.ndarray]:
    info = probe(data, limits=LIMITS, prefer=modality)
    check_modality(info, modality)
    if modality is Modality.IMAGE:
        return info, decode_image(data, options=OPTIONS, limits=LIMITS)
    if modality is Modality.VIDEO:
        wanted = range(min(info.num_frames or 0, LIMITS.max_frames))
        video = decode_frames(data, list(wanted), options=OPTIONS, limits=LIMITS)
        return info, video.frames
    rate = info.sample_rate or 16_000
    return info, decode_audio(data, sample_rate_hz=rate, options=OPTIONS, limits=LIMITS)


def refusal(data: bytes, modality: Modality) -> MmprepError | None:
    try:
        decode(data, modality)
    except MmprepError as error:
        return error
    return None


def may_be_refused(row: dict[str, str]) -> bool:
    return bool(row["code"]) or not row["expect"].startswith("accept") or "4xx" in row["expect"]


def must_be_refused(row: dict[str, str]) -> bool:
    open_ended = any(word in row["expect"] for word in (" or ", "as audio", "unless", "when"))
    return bool(row["code"]) and not open_ended


@pytest.mark.parametrize("row", manifest(), ids=lambda row: row["file"])
def test_the_manifests_answer(row: dict[str, str]) -> None:
    """Size, orientation, colours, frames, seconds; or the code, for what is broken."""
    modality = sent_as(row)
    data = (MEDIA / row["file"]).read_bytes()
    error = refusal(data, modality)
    if error is not None:
        assert may_be_refused(row), error.message
        assert not row["code"] or error.code in row["code"]
        return
    assert not must_be_refused(row)
    check_answer(row, modality, *decode(data, modality))


def check_answer(row: dict[str, str], modality: Modality, info: Any, decoded: np.ndarray) -> None:
    if row["width"] and modality is not Modality.AUDIO:
        assert (info.width, info.height) == (int(row["width"]), int(row["height"]))
    if modality is Modality.IMAGE:
        assert decoded.shape[:2] == (info.height, info.width)
        if row["exif_orientation"]:
            assert info.orientation == int(row["exif_orientation"])
        if row["mean_rgb_on_white"]:
            mean = [float(x) for x in row["mean_rgb_on_white"].split()]
            assert np.abs(decoded.reshape(-1, 3).mean(0) - mean).max() <= 1.01
    elif modality is Modality.VIDEO:
        assert decoded.shape[1:3] == (info.height, info.width)
        if row["n_frames"]:
            assert len(decoded) == int(row["n_frames"])
    else:
        if row["channels"]:
            assert info.channels == int(row["channels"])
        if row["seconds"]:
            assert abs(len(decoded) / info.sample_rate - float(row["seconds"])) < 0.002


def small(name: str) -> bytes:
    return (SMALL / name).read_bytes()


def test_orientation_is_applied() -> None:
    """The turned photograph equals the upright one but for the codec's noise."""
    upright = decode_image(small("rgb_small.jpg"), options=OPTIONS, limits=LIMITS).astype(int)
    turned = decode_image(small("exif_o6.jpg"), options=OPTIONS, limits=LIMITS).astype(int)
    assert probe(small("exif_o6.jpg"), limits=LIMITS).orientation == 6
    assert np.abs(upright - turned).mean() < 6 < np.abs(upright - upright[::-1]).mean()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    """A ramp over 65,536 greys keeps 256 levels."""
    ramp = decode_image(small("gray16_ramp.png"), options=OPTIONS, limits=LIMITS)
    assert len(np.unique(ramp)) == 256


@pytest.mark.parametrize(("alpha", "channels"), [("white", 3), ("drop", 3), ("keep", 4)])
def test_alpha_by_option(alpha: Any, channels: int) -> None:
    """Hidden noise shows only where alpha is dropped."""
    options = MediaOptions(alpha=alpha)
    pixels = decode_image(small("rgba_hidden_noise.png"), options=options, limits=LIMITS)
    assert pixels.shape[2] == channels
    assert pixels.flags.writeable
    bare = decode_image(
        small("rgba_hidden_noise.png"), options=MediaOptions(alpha="drop"), limits=LIMITS
    )
    assert np.array_equal(pixels[..., :3], bare) == (alpha != "white")


def test_an_animation_is_an_image_or_a_video() -> None:
    """The first picture, or all of them, by how it was sent."""
    data = small("anim_5frames.gif")
    assert probe(data, limits=LIMITS, prefer=Modality.IMAGE).kind is Modality.IMAGE
    info = probe(data, limits=LIMITS, prefer=Modality.VIDEO)
    assert (info.kind, info.num_frames) == (Modality.VIDEO, 5)
    video = decode_frames(data, [0, 2, 4, 7], options=OPTIONS, limits=LIMITS)
    assert (video.indices, video.missing) == ((0, 2, 4), 1)
    first = decode_image(data, options=OPTIONS, limits=LIMITS)
    assert np.array_equal(video.frames[0], first)


def test_any_selection_equals_the_full_decode() -> None:
    """Seeking and skipping change nothing about the frames."""
    data = small("odd_25_frames.mp4")
    whole = decode_frames(data, list(range(25)), options=OPTIONS, limits=LIMITS)
    assert len(whole.frames) == 25
    for wanted in ([0], [24], [3, 4, 20], list(range(1, 25, 5))):
        some = decode_frames(data, wanted, options=OPTIONS, limits=LIMITS)
        assert some.indices == tuple(wanted)
        assert np.array_equal(some.frames, whole.frames[wanted])


def test_times_come_from_the_packets() -> None:
    """A variable frame rate with a gap of two seconds keeps its times."""
    data = small("vfr_20_frames.mkv")
    video = decode_frames(data, list(range(20)), options=OPTIONS, limits=LIMITS)
    steps = np.diff(video.pts_s)
    assert steps.max() == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("path", videos(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_threads_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames of a video, or what is told of a broken one, are those of a single thread."""
    monkeypatch.setattr(batches, "_LEAST_PIXELS", 0)
    data = path.read_bytes()
    limits = DecodeLimits(max_pixels=1_000_000_000, max_frames=800)

    def outcome(threads: int) -> Any:
        try:
            video = decode_frames(
                data, range(800), options=OPTIONS, limits=limits, num_threads=threads
            )
        except MmprepError as error:
            return type(error), error.message
        return video.indices, video.pts_s, video.missing, video.frames.tobytes()

    assert outcome(3) == outcome(1)


def test_a_video_is_not_an_image() -> None:
    """Bytes decide, not the field they came in."""
    info = probe(small("one_frame.mp4"), limits=LIMITS, prefer=Modality.IMAGE)
    with pytest.raises(MmprepError) as caught:
        check_modality(info, Modality.IMAGE)
    assert caught.value.code == "unsupported_media_type"


def test_the_audio_track_of_a_video() -> None:
    """Two seconds of 440 Hz, found by its zero crossings."""
    data = small("audio_and_video.mp4")
    assert probe(data, limits=LIMITS, prefer=Modality.AUDIO).kind is Modality.AUDIO
    assert probe(data, limits=LIMITS, prefer=Modality.VIDEO).has_audio
    sound = decode_audio(data, sample_rate_hz=16_000, options=OPTIONS, limits=LIMITS)
    assert sound.dtype == np.float32
    crossings = np.count_nonzero(np.diff(np.signbit(sound[1600:-1600])))
    assert crossings / (len(sound) - 3200) * 16_000 / 2 == pytest.approx(440, abs=4)


def test_channels_are_averaged_and_cut() -> None:
    """The left channel alone comes out at half its height; start and end are honoured."""
    data = small("stereo_left_only_8k.wav")
    whole = decode_audio(data, sample_rate_hz=8000, options=OPTIONS, limits=LIMITS)
    assert len(whole) == 12_000
    options = MediaOptions(start_s=0.5, end_s=1.0)
    part = decode_audio(data, sample_rate_hz=8000, options=options, limits=LIMITS)
    assert np.array_equal(part, whole[4000:8000])
    assert 0.05 < np.abs(whole).max() <= 0.5


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("rgb_small.jpg", DecodeLimits(max_pixels=1000)),
        ("odd_25_frames.mp4", DecodeLimits(max_pixels=1000)),
        ("odd_25_frames.mp4", DecodeLimits(max_frames=3)),
        ("anim_5frames.gif", DecodeLimits(max_pixels=1000)),
        ("stereo_left_only_8k.wav", DecodeLimits(max_audio_s=0.5)),
    ],
)
def test_limits_hold(name: str, limits: DecodeLimits) -> None:
    """Too many pixels, frames or seconds are told, not decoded."""
    data = small(name)
    modality = sent_as({"kind": "?", "file": name})
    if name.endswith("gif"):
        modality = Modality.VIDEO

    def attempt() -> None:
        if modality is Modality.AUDIO:
            decode_audio(data, sample_rate_hz=8000, options=OPTIONS, limits=limits)
        elif modality is Modality.VIDEO:
            decode_frames(data, list(range(5)), options=OPTIONS, limits=limits)
        else:
            probe(data, limits=limits)

    with pytest.raises(MmprepError) as caught:
        attempt()
    assert caught.value.code == "media_too_large"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("vector.svg", "unsupported_media_type"),
        ("html_error_page.jpg", "unsupported_media_type"),
        ("jpeg_header_only.jpg", "media_decode_failed"),
        ("empty_no_samples.wav", "media_decode_failed"),
    ],
)
def test_broken_files_are_told(name: str, code: str) -> None:
    """The contract's code for what is refused."""
    with pytest.raises(MmprepError) as caught:
        decode(small(name), sent_as({"kind": "?", "file": name}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "media_decode_failed"),
        (b"no medium at all", "media_decode_failed"),
        (b"%PDF-1.7", "unsupported_media_type"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\nhttp://127.0.0.1/x.ts", "unsupported_media_type"),
        (b"<!-- a -->" * 300, "media_decode_failed"),
    ],
)
def test_what_is_no_medium(data: bytes, code: str) -> None:
    """A playlist is never followed, and no pattern takes long."""
    with pytest.raises(MmprepError) as caught:
        probe(data, limits=LIMITS)
    assert caught.value.code == code
