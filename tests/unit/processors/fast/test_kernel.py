import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, SamImageProcessor

from processors.fast import AVAILABLE, expand, find_kernel, resizing, view_of
from tests.helpers.zoo.media import noise_image, noise_video, video_metadata

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")

IMAGE_FAMILIES = [
    "qwen2_5_vl",
    "qwen3_vl",
    "glm4v",
    "hunyuan_vl",
    "kimi_k25",
    "gemma3",
    "llava_next",
]
SIZES = [(1, 1), (3, 2), (29, 57), (200, 3), (3, 200), (28, 28), (113, 1000), (641, 480)]


@pytest.fixture(scope="module")
def processor(model_dir):
    loaded = {}

    def load(family):
        if family not in loaded:
            loaded[family] = AutoProcessor.from_pretrained(model_dir(family))
        return loaded[family]

    return load


def plain(images, pixels, **kwargs):
    return images(images=[pixels], return_tensors="pt", input_data_format="channels_last", **kwargs)


def room_for(expected, dtype=None):
    return {
        name: torch.full_like(value, 7, dtype=dtype if value.is_floating_point() else None)
        for name, value in ((n, v.contiguous()) for n, v in expected.items())
    }


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_images_equal_the_plain_processor(processor, family, size):
    """Every size, odd, tiny or extreme, gives the plain processor's tensors bit for bit."""
    images = processor(family).image_processor
    kernel = find_kernel(images)
    pixels = np.array(noise_image(*size))
    expected = plain(images, pixels)
    outputs = room_for(expected)
    assert kernel.run(pixels, {}, outputs)
    assert all(torch.equal(expected[name], outputs[name]) for name in expected)


@pytest.mark.skipif(not resizing.AVAILABLE, reason="a machine without AVX2")
@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "gemma4", "llava_next"])
def test_pixels_are_resized_by_our_own_pass(processor, monkeypatch, family, num_threads):
    """With as many threads as the call allows, to the same bits."""
    images = processor(family).image_processor
    kernel = find_kernel(images)
    pixels = np.array(noise_image(641, 480))
    expected = plain(images, pixels)
    threads, resize = [], resizing.resize

    def counting(*arguments):
        threads.append(arguments[-1])
        return resize(*arguments)

    monkeypatch.setattr(resizing, "resize", counting)
    outputs = room_for(expected)
    assert kernel.run(pixels, {}, outputs, num_threads=num_threads)
    assert all(torch.equal(expected[name], outputs[name]) for name in expected)
    assert set(threads) == {num_threads}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava", "llama4"])
def test_dtypes_are_rounded_from_the_exact_result(processor, family, dtype):
    """Another floating dtype holds what casting the plain result gives."""
    images = processor(family).image_processor
    pixels = np.array(noise_image(300, 211))
    expected = plain(images, pixels)
    outputs = room_for(expected, dtype)
    assert find_kernel(images).run(pixels, {}, outputs)
    for name, value in expected.items():
        assert torch.equal(value.to(outputs[name].dtype), outputs[name])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"shortest_edge": 10_000, "longest_edge": 50_000}},
        {"do_resize": False},
        {"resample": 2},
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 2.0, 3.0]},
        {"do_normalize": False},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_kwargs_reach_the_processor(processor, kwargs):
    """Whatever a call changes is changed on both paths."""
    images = processor("qwen2_5_vl").image_processor
    pixels = np.array(noise_image(280, 196))
    expected = plain(images, pixels, **kwargs)
    outputs = room_for(expected)
    assert find_kernel(images).run(pixels, kwargs, outputs)
    assert all(torch.equal(expected[name], outputs[name]) for name in expected)


def test_a_layout_proven_with_equal_channels_takes_no_other_table(processor):
    """Where the sample could not tell channels apart, a call that can is left to the processor."""
    images = processor("qwen3_vl").image_processor
    kernel = find_kernel(images)
    pixels = np.array(noise_image(64, 64))
    kwargs = {"image_mean": [0.1, 0.2, 0.3]}
    assert kernel.run(pixels, {}, room_for(plain(images, pixels)))
    assert not kernel.run(pixels, kwargs, room_for(plain(images, pixels, **kwargs)))


@pytest.mark.parametrize("family", ["gemma4", "gemma4_unified"])
def test_a_proof_in_which_black_is_zero_covers_no_other_table(processor, family):
    """Gemma 4 pads clips with zeros behind its arithmetic, which is only seen with another mean."""
    videos = processor(family).video_processor
    kernel = find_kernel(videos)
    frames = noise_video(2, 130, 94)
    kwargs = {"do_sample_frames": False, "video_metadata": [video_metadata(2, 130, 94)]}
    for changed, is_covered in [({"image_std": 0.5}, True), ({"image_mean": 0.5}, False)]:
        called = {**kwargs, **changed}
        expected = videos(videos=[frames], return_tensors="pt", **called)
        outputs = room_for(expected)
        assert kernel.run(frames, called, outputs) is is_covered
        if is_covered:
            assert all(torch.equal(expected[name], outputs[name]) for name in expected)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "glm4v", "kimi_k25", "llava_next", "gemma4"])
def test_compact_and_raw(processor, family):
    """Compact codes expand to the plain feature; raw ones are the pixels before arithmetic."""
    images = processor(family).image_processor
    kernel = find_kernel(images)
    pixels = np.array(noise_image(333, 210))
    expected = plain(images, pixels)
    ((name, _),) = kernel.features.items()
    encoding = kernel.describe(name, tuple(expected[name].shape))
    outputs = {
        name: torch.zeros(encoding.code_shape, dtype=torch.uint8),
        f"{name}.lut": torch.zeros(3, 256),
    }
    assert kernel.run(pixels, {}, outputs, "compact")
    assert torch.equal(expected[name], expand(outputs[name], outputs[f"{name}.lut"], encoding))

    raw = {name: torch.zeros(expected[name].shape, dtype=torch.uint8)}
    assert kernel.run(pixels, {}, raw, "raw")
    unscaled = plain(images, pixels, do_rescale=False, do_normalize=False)[name]
    assert torch.equal(unscaled.to(torch.uint8), raw[name])


def test_compact_halves_what_a_still_repeats(processor):
    """Qwen's two temporal copies are sent once: an eighth of the float32 bytes."""
    kernel = find_kernel(processor("qwen2_5_vl").image_processor)
    encoding = kernel.describe("pixel_values", (16, 1176))
    assert encoding.code_shape == (16, 588)
    assert (encoding.repeat.axis, encoding.repeat.block, encoding.repeat.times) == (1, 196, 2)
    assert encoding.channel_stride == 196


@pytest.mark.parametrize(
    "family", ["qwen2_5_vl", "qwen3_vl", "glm4v", "hy_v4_vl", "llava_onevision"]
)
@pytest.mark.parametrize("num_frames", [2, 3, 5])
def test_videos_equal_the_plain_processor(processor, family, num_frames):
    """Clips of any length give the plain processor's tensors bit for bit."""
    videos = processor(family).video_processor
    kernel = find_kernel(videos)
    frames = noise_video(num_frames, 130, 94)
    kwargs = {
        "do_sample_frames": False,
        "video_metadata": [video_metadata(num_frames, 130, 94)],
    }
    expected = videos(videos=[frames], return_tensors="pt", **kwargs)
    outputs = room_for(expected)
    assert kernel.run(frames, kwargs, outputs)
    assert all(torch.equal(expected[name], outputs[name]) for name in expected)


def test_what_does_not_suit_is_left_to_the_processor(processor):
    """Alpha, wrong shapes, unknown names and scattered outputs give False."""
    images = processor("qwen2_5_vl").image_processor
    kernel = find_kernel(images)
    pixels = np.array(noise_image(64, 64))
    expected = plain(images, pixels)
    assert not kernel.run(np.zeros((64, 64, 4), np.uint8), {}, room_for(expected))
    assert not kernel.run(pixels, {}, {"pixel_values": torch.zeros(3, 1176)})
    assert not kernel.run(pixels, {}, {"nothing": torch.zeros(3)})
    scattered = torch.zeros(*expected["pixel_values"].shape, 2)[..., 0]
    assert not kernel.run(pixels, {}, {"pixel_values": scattered})
    assert not kernel.run(pixels, {}, room_for(expected), "raw")


def test_a_call_inside_the_processor_s_protocol(processor):
    """A call's sub-processor serves the protocol: the same replacements, features written."""
    whole = processor("qwen2_5_vl")
    kernel = find_kernel(whole.image_processor)
    pixels = np.array(noise_image(333, 210))
    expected, replacements = whole._process_images(
        [torch.from_numpy(pixels).permute(2, 0, 1)], return_tensors="pt"
    )
    outputs = room_for(expected)
    call = kernel.start(outputs)
    inside = copy.copy(whole)
    inside.image_processor = call.sub_processor
    features, told = inside._process_images([view_of(pixels)], return_tensors="pt")
    call.write(features)
    assert replacements == told
    assert all(torch.equal(expected[name], outputs[name]) for name in expected)


def test_a_renamed_feature_is_still_one(processor):
    """InternVL's processor tells its video's frames under the images' name."""
    whole = processor("internvl")
    kernel = find_kernel(whole.video_processor)
    frames = noise_video(2, 130, 94)
    kwargs = {"do_sample_frames": False, "video_metadata": [video_metadata(2, 130, 94)]}
    expected = whole.video_processor(videos=[frames], return_tensors="pt", **kwargs)
    outputs = {"pixel_values": torch.zeros_like(expected["pixel_values_videos"]).contiguous()}
    call = kernel.start(outputs)
    told = call.sub_processor(
        videos=[view_of(frames)], return_tensors="pt", input_data_format="channels_first", **kwargs
    )
    call.write({"pixel_values": told["pixel_values_videos"]})
    assert torch.equal(expected["pixel_values_videos"], outputs["pixel_values"])


def test_threads_share_a_kernel(processor):
    """Calls of several threads at once do not see each other's outputs or tables."""
    images = processor("qwen2_5_vl").image_processor
    kernel = find_kernel(images)
    pictures = [np.array(noise_image(120 + 16 * i, 300 - 16 * i, seed=i)) for i in range(8)]
    wanted = [plain(images, pixels) for pixels in pictures]
    rooms = [room_for(expected) for expected in wanted]
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(kernel.run, p, {}, room) for p, room in zip(pictures, rooms, strict=True)
        ]
        assert all(job.result() for job in jobs)
    for expected, outputs in zip(wanted, rooms, strict=True):
        assert all(torch.equal(expected[name], outputs[name]) for name in expected)


def test_a_finished_call_keeps_no_outputs(processor):
    """Outputs are views of memory that others own: they die with the call, without a collector."""
    images = processor("qwen2_5_vl").image_processor
    pixels = np.array(noise_image(64, 64))
    outputs = room_for(plain(images, pixels))
    watched = weakref.ref(outputs["pixel_values"])
    gc.disable()
    try:
        assert find_kernel(images).run(pixels, {}, outputs)
        del outputs
        assert watched() is None
    finally:
        gc.enable()


def test_no_kernel_without_the_torchvision_backend(processor):
    """The PIL backend has other pixels, and a tokenizer is no image processor."""
    assert find_kernel(processor("qwen2_5_vl").tokenizer) is None


def test_an_impossible_image_fails_as_in_the_processor(processor):
    """What the processor refuses, the kernel refuses with the same exception."""
    images = processor("qwen2_5_vl").image_processor
    pixels = np.zeros((1, 300, 3), np.uint8)
    with pytest.raises(ValueError, match="aspect ratio"):
        find_kernel(images).run(pixels, {}, {"pixel_values": torch.zeros(1)})


def test_the_processor_itself_is_unchanged(processor):
    """A run leaves nothing behind on the processor that others use."""
    images = processor("qwen2_5_vl").image_processor
    before = dict(vars(images))
    pixels = np.array(noise_image(64, 64))
    find_kernel(images).run(pixels, {}, room_for(plain(images, pixels)))
    assert before == vars(images)


def test_padding_behind_the_arithmetic_is_not_looked_up():
    """SAM pads with zeros after it normalises: only samples that are not square show it.

    However long the plain processor takes, every sample is part of the proof.
    """
    kernel = find_kernel(SamImageProcessor())
    assert kernel is not None
    assert not kernel.features
