import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, WhisperFeatureExtractor

from processors import hf
from processors.fast import find_mel
from processors.fast.mel import GRAIN_FRAMES, LEAST_FRAMES, count_audible
from processors.fast.padding import SilentPad
from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES, available_families

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def whisper():
    return WhisperFeatureExtractor(feature_size=80)


def sound(num_samples, seed=0):
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.1).astype(np.float32)


def run(extractor, clips, **kwargs):
    return extractor(clips, sampling_rate=RATE_HZ, return_tensors="pt", **kwargs)


def assert_same(extractor, faster, clips, **kwargs):
    expected, given = run(extractor, clips, **kwargs), run(faster, clips, **kwargs)
    assert expected.keys() == given.keys()
    assert all(torch.equal(expected[name], given[name]) for name in expected)


def test_only_what_can_be_heard_is_computed(whisper):
    """A second of sound costs 128 frames of 3000, silence 64, a full window all."""
    audible = find_mel(whisper)._torch_extract_fbank_features
    for num_samples, frames in ((RATE_HZ, 128), (0, 64), (30 * RATE_HZ, None)):
        padded = np.zeros((1, 30 * RATE_HZ), np.float32)
        padded[0, :num_samples] = sound(num_samples)
        assert audible.frames_to_compute(padded) == frames


EDGES = [1, 2, 159, 160, 161, 200, 9399, 9400, 9401, 14519, 14520, 14521]
NEAR_FULL = [469_000, 479_599, 479_600, 479_601, 479_999, 480_000, 480_001, 500_000]


@pytest.mark.parametrize("num_samples", EDGES + NEAR_FULL)
def test_every_edge_is_equal(whisper, num_samples):
    """Clips that end beside a frame's, a grain's or the window's edge give the same bits."""
    faster = find_mel(whisper)
    assert_same(whisper, faster, [sound(num_samples)], return_attention_mask=True)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"do_normalize": True},
        {"max_length": 100_000},
        {"max_length": 100_017},
        {"padding": "longest"},
        {"padding": "longest", "pad_to_multiple_of": 48_001},
        {"return_attention_mask": True},
    ],
    ids=str,
)
def test_arguments_are_the_extractors_own(whisper, kwargs):
    """Whatever window a call's arguments make, the result is the plain one."""
    assert_same(whisper, find_mel(whisper), [sound(30_000)], **kwargs)


def test_any_number_of_frames_is_equal(whisper):
    """Products of matrices, and spectra, of any number of frames have the same bits."""
    audible = find_mel(whisper)._torch_extract_fbank_features
    random = np.random.default_rng(1)
    for frames in {*range(LEAST_FRAMES, 700, GRAIN_FRAMES), *random.integers(64, 3000, 12)}:
        waveform = sound(int(frames) * 160 + int(random.integers(160)))[None]
        plain = whisper._torch_extract_fbank_features(waveform)
        assert np.array_equal(audible.log_mel(waveform), plain)


def test_several_clips_are_equal(whisper):
    """Clips of one call may end at different places, one of them with silence of its own."""
    clips = [sound(20_000), np.zeros(50_000, np.float32), sound(33_333, seed=1)]
    clips[2][30_000:] = 0
    assert_same(whisper, find_mel(whisper), clips)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 1e-30, -0.0])
def test_odd_samples_are_equal(whisper, value):
    """Samples that are no sound at all spread no further than in the plain extractor."""
    clip = sound(20_000)
    clip[10_000] = clip[-1] = value
    plain = run(whisper, [clip])["input_features"]
    fast = run(find_mel(whisper), [clip])["input_features"]
    assert torch.equal(plain.view(torch.int32), fast.view(torch.int32))


def test_quiet_sound_is_floored_alike(whisper):
    """The floor, eight decades below the loudest, may lie above or below that of silence."""
    for scale in (1e-7, 1e-4, 1e3):
        assert_same(whisper, find_mel(whisper), [sound(20_000) * np.float32(scale)])


def test_extractors_of_another_kind_have_no_stand_in(whisper):
    """What adds noise, has no window, reaches far or computes otherwise is left as it is."""
    assert find_mel(object()) is None
    assert find_mel(WhisperFeatureExtractor(dither=1e-4)) is None
    assert find_mel(WhisperFeatureExtractor(n_fft=4096)) is None
    for name, value in (("n_samples", None), ("n_samples", 0), ("hop_length", 1.5)):
        changed = copy.copy(whisper)
        setattr(changed, name, value)
        assert find_mel(changed) is None


class Forward(WhisperFeatureExtractor):
    """Frames that depend on how many there are: the last one decides."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        features = super()._torch_extract_fbank_features(waveform, device)
        return features + np.float32(waveform.shape[-1])


class Uneven(WhisperFeatureExtractor):
    """Silent frames that are not alike."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        features = super()._torch_extract_fbank_features(waveform, device)
        return features + np.arange(features.shape[-1], dtype=np.float32)


class Transposed(WhisperFeatureExtractor):
    """Frames along another axis."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        return super()._torch_extract_fbank_features(waveform, device).swapaxes(1, 2)


class Other(WhisperFeatureExtractor):
    """Takes something else than waveforms."""

    def _torch_extract_fbank_features(self, waveform, lengths):
        return super()._torch_extract_fbank_features(waveform[:lengths])


@pytest.mark.parametrize("kind", [Forward, Uneven, Transposed, Other])
def test_the_proof_can_fail(kind):
    """An extractor for which silence cannot be filled in is found out."""
    assert find_mel(kind()) is None


class Louder(WhisperFeatureExtractor):
    """Frames that do not depend on each other, and are not Whisper's."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        return super()._torch_extract_fbank_features(waveform, device) * np.float32(2)


class Unfloored(WhisperFeatureExtractor):
    """Whisper's frames but for those of sound that can hardly be heard."""

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        return super()._torch_extract_fbank_features(waveform, device).clip(-1)


class WithoutFilters(WhisperFeatureExtractor):
    """Keeps its filters elsewhere."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._filters, self.mel_filters = self.mel_filters, None

    def _torch_extract_fbank_features(self, waveform, device="cpu"):
        whole = copy.copy(self)
        whole.mel_filters = self._filters
        return WhisperFeatureExtractor._torch_extract_fbank_features(whole, waveform, device)


@pytest.mark.parametrize("kind", [Louder, Unfloored, WithoutFilters])
def test_other_computations_are_the_extractors_own(kind):
    """Where frames are computed otherwise, silence is still not computed, and bits are kept."""
    faster = find_mel(kind())
    assert faster._torch_extract_fbank_features.log_mel is None
    assert_same(kind(), faster, [sound(30_000)])


class PadsBoth(WhisperFeatureExtractor):
    """Zeros stand on both sides of a clip."""

    def pad(self, *args, **kwargs):
        padded = super().pad(*args, **kwargs)
        padded["input_features"] = np.roll(padded["input_features"], 5, axis=1)
        return padded


@pytest.mark.parametrize(
    "kwargs",
    [
        {"padding_value": 0.5},
        {"padding_side": "left"},
        {"return_attention_mask": True},
    ],
    ids=str,
)
def test_padding_is_the_extractors_own(kwargs):
    """Where silence is not what is appended, nothing of ours is."""
    extractor = WhisperFeatureExtractor(**kwargs)
    assert_same(extractor, find_mel(extractor), [sound(20_000), sound(100)])
    assert isinstance(find_mel(extractor).pad, SilentPad) == ("return_attention_mask" in kwargs)


def test_the_proof_of_padding_can_fail():
    """Clips that stand elsewhere in the window are found out."""
    faster = find_mel(PadsBoth())
    assert not isinstance(faster.pad, SilentPad)
    assert_same(PadsBoth(), faster, [sound(20_000)])


def test_threads_share_a_stand_in(whisper):
    """Calls at the same time do not mix."""
    faster = find_mel(whisper)
    clips = [sound(4_000 * n, seed=n) for n in range(1, 9)]
    expected = [run(whisper, [clip])["input_features"] for clip in clips]
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(lambda clip: run(faster, [clip])["input_features"], clips))
    assert all(map(torch.equal, expected, given))


def test_the_original_is_left_alone(whisper):
    """Finding a stand-in changes nothing of the extractor it stands for."""
    before = dict(vars(whisper))
    assert find_mel(whisper) is not whisper
    assert vars(whisper) == before


@pytest.mark.parametrize("num_zeros", [0, 1, 8_191, 8_192, 8_193, 131_071, 131_072, 300_000])
@pytest.mark.parametrize("num_samples", [0, 1, 3, 8_192, 8_193, 131_072])
def test_count_audible(num_samples, num_zeros):
    """The last sample that is not zero is found, of whichever row."""
    row = np.concatenate([np.ones(num_samples), np.zeros(num_zeros)]).astype(np.float32)
    assert count_audible(np.stack([np.zeros_like(row), row])) == num_samples


WITH_WINDOW = {
    "whisper", "qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe", "qwen3_asr", "voxtral", "glmasr",
    "audioflamingo3", "musicflamingo", "dots3_note", "moss_transcribe_diarize",
}  # fmt: skip


@pytest.mark.parametrize(
    "family", [n for n in available_families() if Modality.AUDIO in FAMILIES[n].prompts]
)
def test_families(model_dir, family):
    """Every family whose extractor pads to a window has a stand-in; the others have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        processor = AutoProcessor.from_pretrained(model_dir(family))
    faster = find_mel(processor._audio_processor)
    assert (faster is not None) == (family in WITH_WINDOW)
    if faster is not None:
        assert faster._torch_extract_fbank_features.log_mel is not None
        assert hf.with_part(processor, Modality.AUDIO, faster)._audio_processor is faster


def test_the_least_is_above_the_sizes_that_differ():
    """The matrix product of so few frames has the bits of one of many, on this machine."""
    filters = torch.rand(80, 201)
    whole = torch.rand(1, 201, 3000)
    part = whole[..., :LEAST_FRAMES].contiguous()
    assert torch.equal(filters @ part, (filters @ whole)[..., :LEAST_FRAMES])
