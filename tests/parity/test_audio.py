"""Audio of every family: ids and features equal those of the joint Hugging Face call."""

import io
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from processors import decode
from processors.errors import MediaTooLargeError, UnsupportedOptionError
from processors.types import DecodeLimits, ItemInput, MediaOptions, Modality, PadSpec
from tests.helpers.model_zoo import FAMILIES, available_families, make_sample
from tests.helpers.zoo.media import tone
from tests.parity.served import Served, assert_joint, serve

AUDIO_FAMILIES = [n for n in available_families() if Modality.AUDIO in FAMILIES[n].prompts]
NOT_JOINT = {"voxtral": "its call takes no text with audio", "wav2vec2": "its call does not pad"}


def wav(samples: np.ndarray, sample_rate_hz: int) -> bytes:
    """Return a waveform as a 16-bit WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(sample_rate_hz)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def audio_item(samples: np.ndarray, rate: int, index: int = 0, **kwargs) -> ItemInput:
    """Return a clip as an item."""
    return ItemInput(Modality.AUDIO, (wav(samples, rate),), MediaOptions(), kwargs, index)


def _decoded(item: ItemInput, rate: int) -> np.ndarray:
    return decode.decode_audio(
        item.data[0], sample_rate_hz=rate, options=item.options, limits=DecodeLimits()
    )


@pytest.mark.parametrize("name", [n for n in AUDIO_FAMILIES if n not in NOT_JOINT])
def test_clips_equal_the_joint_call(name: str, model_dir: Callable[[str], Path]):
    """Two clips of different length in one prompt, or each alone where the call wants that."""
    family = FAMILIES[name]
    served = serve(name, model_dir(name))
    rate = served.processor._audio_processor.sampling_rate
    sample = make_sample(family, audios=[1.3, 2.2])
    items = [audio_item(clip, rate, i) for i, clip in enumerate(sample.audios)]
    results = [served.run(item) for item in items]
    frame = family.prompts[Modality.AUDIO]
    text = f"Hear {frame} and {frame}."
    call = family.call(make_sample(family, audios=[0.1], text=text))
    clips = [_decoded(item, rate) for item in items]
    try:
        joint = served.processor(**call | {"audio": clips})
    except ValueError:
        _assert_alone(served, call, f"Hear {frame}.", clips, results)
        return

    assert_joint(name, results, dict(joint))
    if frame:
        assert served.ids(text, [plan for plan, _ in results]) == joint["input_ids"][0].tolist()


def _assert_alone(served: Served, call, text, clips, results) -> None:
    for clip, (plan, outputs) in zip(clips, results, strict=True):
        alone = served.processor(**call | {"audio": [clip], "text": [text]})
        assert_joint(served.family.name, [(plan, outputs)], dict(alone))
        assert served.ids(text, [plan]) == alone["input_ids"][0].tolist()


def test_nothing_is_cut_unless_asked(model_dir: Callable[[str], Path]):
    """A clip beyond a fixed window is refused with both lengths, or truncated where asked."""
    served = serve("qwen2_audio", model_dir("qwen2_audio"))
    sound = np.zeros(31 * 16000, np.float32)
    with pytest.raises(MediaTooLargeError, match=r"31\.0 s.*30\.0 s"):
        served.engine.plan(audio_item(sound, 16000))
    plan = served.engine.plan(audio_item(sound, 16000, truncation=True))
    assert plan.tensors[0].shape == (1, 128, 3000)


def test_a_chunking_processor_takes_longer_clips(model_dir: Callable[[str], Path]):
    """A family that cuts sound into windows by itself is not bounded by one window."""
    served = serve("voxtral", model_dir("voxtral"))
    plan, outputs = served.run(audio_item(np.zeros(31 * 16000, np.float32), 16000))
    assert outputs["input_features"].shape == (2, 128, 3000)
    assert plan.num_tokens == 750


def test_voxtral_s_chunks_are_its_extractor_s(model_dir: Callable[[str], Path]):
    """Its call takes no text with audio: features are the extractor's, cut into its windows."""
    served = serve("voxtral", model_dir("voxtral"))
    item = audio_item(tone(33.0, 16000), 16000)
    plan, outputs = served.run(item)
    features = served.processor.feature_extractor(
        _decoded(item, 16000),
        sampling_rate=16000,
        padding=True,
        truncation=False,
        pad_to_multiple_of=30 * 16000,
        return_tensors="pt",
    )["input_features"]
    expected = torch.stack(features[0].split(3000, dim=1))
    assert torch.equal(outputs["input_features"], expected)
    assert plan.num_tokens == 2 * 375


MARKED = {"qwen2_audio": 133, "qwen2_5_omni": 133, "glmasr": 133, "qwen3_asr": 133, "gemma4": 132}
"""Frames of sound in 1.33 s, by the mask of the processor."""


@pytest.mark.parametrize("name", MARKED)
def test_padding_is_trimmed_where_asked(name: str, model_dir: Callable[[str], Path]):
    """Only frames that the processor's mask marks are sent, as they are; the ids do not change."""
    served = serve(name, model_dir(name))
    rate = served.processor._audio_processor.sampling_rate
    item = audio_item(np.full(int(1.33 * rate), 0.25, np.float32), rate)
    whole, untrimmed = served.run(item)
    plan, trimmed = served.run(replace(item, options=MediaOptions(trim_padding=True)))

    assert plan.replacement == whole.replacement
    specs = {spec.name: spec for spec in plan.tensors}
    (mask,) = (name for name in trimmed if name.endswith("mask"))
    assert trimmed[mask].shape == (1, MARKED[name])
    assert trimmed[mask].all()
    assert specs["input_features"].pad == PadSpec((1 if name == "gemma4" else 2,), 0.0)
    for tensor_name, tensor in trimmed.items():
        kept = tuple(slice(0, size) for size in tensor.shape)
        assert torch.equal(untrimmed[tensor_name][kept], tensor)
        assert tensor.numel() < untrimmed[tensor_name].numel()


def test_chunks_are_trimmed_to_the_longest(model_dir: Callable[[str], Path]):
    """A clip of several windows has no padding that all of its chunks share."""
    served = serve("audioflamingo3", model_dir("audioflamingo3"))
    item = audio_item(np.full(31 * 16000, 0.25, np.float32), 16000)
    plan = served.engine.plan(replace(item, options=MediaOptions(trim_padding=True)))
    assert plan.tensors[0].shape == (2, 128, 3000)


@pytest.mark.parametrize("name", ["phi4_multimodal", "wav2vec2"])
def test_what_is_not_padded_is_not_trimmed(name: str, model_dir: Callable[[str], Path]):
    """Where features are as long as the clip, the option changes nothing."""
    served = serve(name, model_dir(name))
    rate = served.processor._audio_processor.sampling_rate
    item = audio_item(np.full(rate, 0.25, np.float32), rate)
    asked = replace(item, options=MediaOptions(trim_padding=True))
    assert served.engine.plan(asked) == served.engine.plan(item)


@pytest.mark.parametrize("name", ["whisper", "voxtral"])
def test_unmarked_padding_cannot_be_trimmed(name: str, model_dir: Callable[[str], Path]):
    """A window whose processor marks nothing is refused, not guessed at."""
    served = serve(name, model_dir(name))
    item = audio_item(np.zeros(16000, np.float32), 16000)
    with pytest.raises(UnsupportedOptionError, match="fixed window"):
        served.engine.plan(replace(item, options=MediaOptions(trim_padding=True)))
