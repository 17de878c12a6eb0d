"""Videos by their container: header to plan, chosen frames, the sound inside, what is missing."""

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from processors import decode
from processors.errors import FramesMissing
from processors.types import DecodeLimits, ItemInput, MediaOptions, Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.zoo.media import noise_video, tone
from tests.parity.served import Served, allocate, assert_joint, serve

ModelDir = Callable[[str], Path]
FPS = 8
RATE_HZ = 16_000


def mkv(frames: np.ndarray, sound: np.ndarray | None = None) -> bytes:
    """Return frames, and a sound of the same length, as Matroska."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        video = container.add_stream("mpeg4", rate=FPS)
        video.height, video.width = frames.shape[1:3]
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("pcm_s16le", rate=RATE_HZ) if sound is not None else None
        for picture in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
        if sound is not None and audio is not None:
            codes = (sound * 32767).astype("<i2")[None]
            block = av.AudioFrame.from_ndarray(codes, format="s16", layout="mono")
            block.sample_rate, block.time_base = RATE_HZ, Fraction(1, RATE_HZ)
            container.mux(audio.encode(block))
            container.mux(audio.encode())
    return buffer.getvalue()


def _metadata(served: Served, data: bytes, indices: list[int]) -> dict:
    info = decode.probe(data, limits=DecodeLimits(), prefer=Modality.VIDEO)
    return {
        "total_num_frames": info.num_frames,
        "fps": info.fps,
        "duration": info.seconds,
        "width": info.width,
        "height": info.height,
        "video_backend": "pyav",
        "frames_indices": indices,
    }


def _frames(data: bytes, indices: list[int]) -> np.ndarray:
    return decode.decode_frames(data, indices, options=MediaOptions(), limits=DecodeLimits()).frames


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "gemma4", "glm46v", "kimi_k25"])
def test_a_container_s_frames_are_processed_as_hugging_face_does(name: str, model_dir: ModelDir):
    """The plan's frames, decoded, give the call's ids and features."""
    family = FAMILIES[name]
    served = serve(name, model_dir(name))
    data = mkv(noise_video(24, 112, 84))
    plan, outputs = served.run(ItemInput(Modality.VIDEO, (data,)))
    indices = list(plan.state["frame_indices"])
    text = f"See {family.prompts[Modality.VIDEO]} now."
    joint = served.processor(
        text=text,
        videos=[
            _frames(data, list(dict.fromkeys(indices)))[np.unique(indices, return_inverse=True)[1]]
        ],
        video_metadata=[_metadata(served, data, indices)],
        do_sample_frames=False,
        return_tensors="pt",
        **family.video_call,
    )
    assert_joint(name, [(plan, outputs)], dict(joint))
    assert served.ids(text, [plan]) == joint["input_ids"][0].tolist()


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_a_video_s_own_sound_stands_among_its_frames(name: str, model_dir: ModelDir):
    """With `use_audio_in_video`, one placeholder becomes both, chunk by chunk."""
    family = FAMILIES[name]
    served = serve(name, model_dir(name))
    data = mkv(noise_video(24, 84, 84), tone(3.0))
    switch = {"use_audio_in_video": True}
    video, video_outputs = served.run(ItemInput(Modality.VIDEO, (data,), settings=switch))
    sound, sound_outputs = served.run(ItemInput(Modality.AUDIO, (data,), settings=switch))
    assert sound.replacement == ()
    assert sound.num_tokens == sum(
        part.times
        for part in video.replacement or ()
        if part.text == served.engine.info.placeholders[Modality.AUDIO].text
    )
    waveform = decode.decode_audio(
        data, sample_rate_hz=RATE_HZ, options=MediaOptions(), limits=DecodeLimits()
    )
    indices = list(video.state["frame_indices"])
    joint = served.processor(
        text=f"See {family.prompts[Modality.VIDEO]} now.",
        videos=[_frames(data, indices)],
        video_metadata=[_metadata(served, data, indices)],
        do_sample_frames=False,
        audio=[waveform],
        load_audio_from_video=True,
        audio_from_video_indices=[0],
        return_tensors="pt",
    )
    for name_, tensor in {**video_outputs, **sound_outputs}.items():
        assert torch.equal(tensor, torch.as_tensor(joint[name_])), name_
    text = "".join(part.text * part.times for part in video.replacement or ())
    placeholder = served.engine.info.placeholders[Modality.VIDEO].text
    whole = f"See {family.prompts[Modality.VIDEO]} now.".replace(placeholder, text)
    ids = served.processor.tokenizer(whole)["input_ids"]
    assert ids == joint["input_ids"][0].tolist()


def test_a_cut_video_is_planned_once_more(model_dir: ModelDir):
    """What does decode is planned exactly, with a warning, and then processed."""
    served = serve("qwen2_5_vl", model_dir("qwen2_5_vl"))
    whole = mkv(noise_video(32, 224, 168))
    planned = served.engine.plan(ItemInput(Modality.VIDEO, (whole,)))
    cut = ItemInput(Modality.VIDEO, (whole[: len(whole) * 2 // 3],))
    with pytest.raises(FramesMissing) as caught:
        served.engine.process(cut, planned, allocate(planned.tensors))
    plan = caught.value.plan
    assert plan.exact
    assert plan.warnings[0][0] == "frames_missing"
    kept, all_of_them = plan.state["frame_indices"], planned.state["frame_indices"]
    assert kept == all_of_them[: len(kept)]
    outputs = allocate(plan.tensors)
    served.engine.process(cut, plan, outputs)
    assert not outputs["pixel_values_videos"].isnan().any()


def test_a_part_of_a_video_keeps_its_times(model_dir: ModelDir):
    """Timestamps in the prompt are those of the whole video."""
    served = serve("qwen3_vl", model_dir("qwen3_vl"))
    data = mkv(noise_video(32, 64, 64))
    options = MediaOptions(start_s=2.0, end_s=4.0)
    plan = served.engine.plan(ItemInput(Modality.VIDEO, (data,), options))
    assert min(plan.state["frame_indices"]) == 16
    assert (plan.replacement or ())[0].text.startswith("<2.")
