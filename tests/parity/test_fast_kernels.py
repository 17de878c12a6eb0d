import numpy as np
import pytest
import torch
from transformers import AutoProcessor

from processors.fast import AVAILABLE, find_kernel
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.zoo.media import noise_image, noise_video, video_metadata

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")

WITHOUT = {("video_llava", "image")}
"""No kernel: its processor has the PIL backend only."""


@pytest.mark.parametrize("size", [(97, 61), (300, 301)], ids=str)
@pytest.mark.parametrize("family", [n for n, f in FAMILIES.items() if "image" in f.prompts])
def test_images(model_dir, family, size):
    """The kernel of every family equals its image processor in every output."""
    images = AutoProcessor.from_pretrained(model_dir(family)).image_processor
    kernel = find_kernel(images)
    if (family, "image") in WITHOUT:
        assert kernel is None
        return
    pixels = np.array(noise_image(*size))
    result = images(images=[pixels], return_tensors="pt", input_data_format="channels_last")
    expected = {n: v for n, v in result.items() if isinstance(v, torch.Tensor)}
    outputs = {n: torch.zeros_like(v).contiguous() for n, v in expected.items()}
    assert kernel.run(pixels, {}, outputs)
    assert all(torch.equal(expected[n], outputs[n]) for n in expected)


@pytest.mark.parametrize("family", [n for n, f in FAMILIES.items() if "video" in f.prompts])
def test_videos(model_dir, family):
    """The kernel of every family equals its video processor in every output."""
    videos = AutoProcessor.from_pretrained(model_dir(family)).video_processor
    kernel = find_kernel(videos)
    frames = noise_video(5, 168, 112)
    kwargs = {"do_sample_frames": False, "video_metadata": [video_metadata(5, 168, 112)]}
    result = videos(videos=[frames], return_tensors="pt", **kwargs)
    expected = {n: v for n, v in result.items() if isinstance(v, torch.Tensor)}
    outputs = {n: torch.zeros_like(v).contiguous() for n, v in expected.items()}
    assert kernel.run(frames, kwargs, outputs)
    assert all(torch.equal(expected[n], outputs[n]) for n in expected)
