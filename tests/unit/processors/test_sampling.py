"""Which frames are chosen from what a header says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoVideoProcessor
from transformers.video_utils import VideoMetadata

from processors import hf
from processors.errors import InvalidRequestError, MediaDecodeError
from processors.sampling import Selection, select_frames, thin
from processors.types import DecodeLimits, MediaInfo, MediaOptions, Modality, ModelSpec

ModelDir = Callable[[str], Path]
LIMITS = DecodeLimits()


def _info(num_frames: int, fps: float = 30.0) -> MediaInfo:
    return MediaInfo(
        Modality.VIDEO,
        "video/mp4",
        1,
        width=64,
        height=56,
        num_frames=num_frames,
        fps=fps,
        seconds=num_frames / fps,
    )


def _select(
    part, info: MediaInfo, options: MediaOptions | None = None, default_fps=2.0, **kwargs
) -> Selection:
    return select_frames(part, info, kwargs, kwargs, options or MediaOptions(), LIMITS, default_fps)


@pytest.fixture
def qwen2(model_dir: ModelDir):
    """A processor that samples only when told to."""
    return AutoVideoProcessor.from_pretrained(model_dir("qwen2_5_vl"))


@pytest.fixture
def qwen3(model_dir: ModelDir):
    """A processor that samples by itself, two frames a second."""
    return AutoVideoProcessor.from_pretrained(model_dir("qwen3_vl"))


@pytest.mark.parametrize("name", ["qwen3_vl", "glm4v", "glm46v", "gemma4", "kimi_k25"])
@pytest.mark.parametrize("num_frames", [9, 100, 301])
def test_a_processor_s_own_rule_is_followed(name: str, num_frames: int, model_dir: ModelDir):
    """The frames are those that the processor's own call would take from the whole video."""
    part = AutoVideoProcessor.from_pretrained(model_dir(name))
    assert part.do_sample_frames
    info = _info(num_frames)
    chosen = _select(part, info).frame_indices
    whole = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (num_frames, 56, 64, 3))
    metadata = VideoMetadata(num_frames, info.fps, 64, 56, info.seconds, "pyav")
    try:
        result = part(
            videos=[whole], video_metadata=[metadata], return_metadata=True, return_tensors="pt"
        )
    except ValueError:
        # The rule wants more frames than there are: all of them are the closest to it.
        assert chosen == tuple(range(num_frames))
        return
    assert chosen == tuple(int(i) for i in result["video_metadata"][0].frames_indices)


def test_two_frames_a_second_where_the_processor_does_not_sample(qwen2):
    """The setting says how many; they are spread evenly from the first on."""
    assert _select(qwen2, _info(90)).frame_indices == (0, 15, 30, 45, 60, 75)
    assert _select(qwen2, _info(90), default_fps=1.0).frame_indices == (0, 30, 60)
    assert _select(qwen2, _info(1)).frame_indices == (0,)


def test_a_caller_s_fps_and_num_frames_use_the_processor_s_rule(qwen2, qwen3):
    """Also where it does not sample by itself."""
    assert len(_select(qwen2, _info(90), fps=4).frame_indices) == 12
    assert len(_select(qwen2, _info(90), num_frames=8).frame_indices) == 8
    assert _select(qwen3, _info(90), num_frames=4).frame_indices == (0, 30, 59, 89)


def test_a_rule_that_cannot_choose_is_the_caller_s_fault(qwen2):
    """More frames asked for than there are."""
    with pytest.raises(InvalidRequestError, match="5 frames"):
        _select(qwen2, _info(5), num_frames=64)


def test_a_part_of_the_video_is_chosen_from(qwen2):
    """Indices stay those of the whole video, so that timestamps are true."""
    options = MediaOptions(start_s=1.0, end_s=2.0)
    chosen = _select(qwen2, _info(90), options)
    assert chosen == Selection((30, 45), 30, 30.0, 1.0)
    for start_s, end_s in ((5.0, None), (2.0, 2.0), (None, 0.0)):
        with pytest.raises(InvalidRequestError):
            _select(qwen2, _info(90), MediaOptions(start_s=start_s, end_s=end_s))


def test_more_than_the_limit_is_thinned(qwen2):
    """The first and the last frame stay."""
    options = MediaOptions(max_frames=3)
    assert _select(qwen2, _info(90), options).frame_indices == (0, 30, 75)
    assert thin([1, 2], 3) == [1, 2]


def test_a_header_without_frames_is_no_video(qwen2):
    """Nothing can be planned from it."""
    with pytest.raises(MediaDecodeError):
        _select(qwen2, MediaInfo(Modality.VIDEO, "video/mp4", 1))


def test_omni_processors_are_told_by_their_class(model_dir: ModelDir):
    """They alone put a video's own sound among its tokens."""
    omni = hf.load(ModelSpec("o", str(model_dir("qwen2_5_omni"))))
    plain = hf.load(ModelSpec("p", str(model_dir("qwen2_5_vl"))))
    assert hf.takes_audio_in_video(omni.processor)
    assert not hf.takes_audio_in_video(plain.processor)
