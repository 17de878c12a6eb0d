"""Videos and audio over HTTP, alone, mixed, and one inside the other."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from processors.engine import Engine
from processors.types import DecodeLimits, ItemInput, Modality, ModelSpec
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, inline_tensors, problem_of, running
from tests.parity.served import allocate

MEDIA = Path(__file__).parents[1] / "resources" / "media"
MODELS = ("qwen2_5_omni", "gemma4", "whisper", "qwen3_vl")


@pytest.fixture(scope="module")
def service(model_dir: Callable[[str], Path]) -> Iterator[Service]:
    with running([f"{name}={model_dir(name)}" for name in MODELS]) as started:
        yield started
        assert started.stop() == 0


def media(name: str) -> str:
    return b64((MEDIA / name).read_bytes())


def mark(model: str, modality: Modality) -> str:
    return FAMILIES[model].prompts[modality]


def tensors_of(item: dict[str, Any]) -> dict[str, np.ndarray]:
    return dict(safetensors.numpy.load(base64.b64decode(item["location"]["data"])))


PAIRS = [
    ("qwen3_vl", Modality.VIDEO), ("qwen2_5_omni", Modality.VIDEO), ("gemma4", Modality.VIDEO),
    ("qwen2_5_omni", Modality.AUDIO), ("gemma4", Modality.AUDIO), ("whisper", Modality.AUDIO),
]  # fmt: skip


@pytest.fixture(scope="module")
def engines(model_dir: Callable[[str], Path]) -> dict[str, Engine]:
    """The engines of the models served, in this process."""
    return {n: Engine(ModelSpec(n, str(model_dir(n))), DecodeLimits()) for n in MODELS}


@pytest.mark.parametrize(("model", "modality"), PAIRS)
def test_features_are_the_engines(
    service: Service, engines: dict[str, Engine], model: str, modality: Modality
) -> None:
    """What arrives is what the engine makes of the same bytes, which equals Hugging Face's."""
    field, name = {
        Modality.VIDEO: ("videos", "odd_25_frames.mp4"),
        Modality.AUDIO: ("audios", "stereo_left_only_8k.wav"),
    }[modality]
    engine = engines[model]
    item = ItemInput(modality, ((MEDIA / name).read_bytes(),))
    plan = engine.plan(item)
    expected = allocate(plan.tensors)
    engine.process(item, plan, expected)
    body: dict[str, Any] = {"model": model, field: [media(name)]}
    if FAMILIES[model].has_text and modality in engine.info.placeholders:
        body["prompt"] = f"see {mark(model, modality)}"
    (told,) = service.preprocess(body).json()["items"]
    found = inline_tensors(told)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor
    assert told["num_tokens"] == (plan.num_tokens if "prompt" in body else 0)


def test_three_modalities_in_any_order(service: Service) -> None:
    """Items are listed as they stand in the prompt; features do not depend on the order."""
    model = "gemma4"
    i, v, a = (mark(model, m) for m in (Modality.IMAGE, Modality.VIDEO, Modality.AUDIO))
    fields = {
        "model": model,
        "images": [media("rgb_small.jpg")],
        "videos": [media("odd_25_frames.mp4")],
        "audios": [media("stereo_left_only_8k.wav")],
    }
    hashes = []
    for order in ((i, v, a), (a, i, v), (v, a, i)):
        answer = service.preprocess({**fields, "prompt": " and ".join(order)}).json()
        kinds = [item["modality"] for item in answer["items"]]
        expected = [{i: "image", v: "video", a: "audio"}[mark_] for mark_ in order]
        assert kinds == expected
        firsts = [item["offsets"][0][0] for item in answer["items"]]
        assert firsts == sorted(firsts)
        hashes.append({item["modality"]: item["hash"] for item in answer["items"]})
    assert hashes[0] == hashes[1] == hashes[2]


def test_a_video_tells_its_source_and_has_several_runs(service: Service) -> None:
    """Timestamps stand between the frames: one run per pair of frames, rows in all of them."""
    model = "qwen3_vl"
    body = {"model": model, "prompt": mark(model, Modality.VIDEO), "positions": True}
    answer = service.preprocess({**body, "videos": [media("vfr_20_frames.mkv")]}).json()
    (item,) = answer["items"]
    assert item["source"]["num_frames"] == 20
    assert (item["source"]["width"], item["source"]["height"]) == (96, 64)
    assert len(item["offsets"]) > 1
    assert sum(last - first + 1 for first, last in item["offsets"]) == item["num_tokens"]
    rows = [n for n, t in enumerate(answer["input_ids"]) if t == item["token_id"]]
    told = [n for first, last in item["offsets"] for n in range(first, last + 1)]
    assert rows == told
    assert answer["position_ids"]["shape"] == [3, len(answer["input_ids"])]
    grid = item["tensors"]["video_grid_thw"]["values"][0]
    assert int(np.prod(grid)) == item["tensors"]["pixel_values_videos"]["shape"][0]


def test_fewer_frames_by_option(service: Service) -> None:
    """`num_frames`, `fps` and `max_frames` choose; both of the first two are refused."""
    model = "qwen3_vl"
    base = {"model": model, "prompt": mark(model, Modality.VIDEO), "transport": "none"}
    tokens = []
    for options in ({"num_frames": 4}, {"num_frames": 12}, {"max_frames": 4}):
        clip = {"data": media("odd_25_frames.mp4"), "options": options}
        answer = service.preprocess({**base, "videos": [clip]})
        assert answer.status_code == 200, answer.text[:300]
        tokens.append(answer.json()["items"][0]["num_tokens"])
    assert tokens[0] < tokens[1]
    both = {"data": media("odd_25_frames.mp4"), "options": {"num_frames": 4, "fps": 2}}
    refused = service.preprocess({**base, "videos": [both]})
    assert (refused.status_code, problem_of(refused)["code"]) == (400, "invalid_request")


def test_a_video_as_a_list_of_frames(service: Service) -> None:
    """Frames given as images are a video."""
    model = "qwen3_vl"
    frames = [media("rgb_small.jpg")] * 4
    body = {"model": model, "prompt": mark(model, Modality.VIDEO), "videos": [{"frames": frames}]}
    answer = service.preprocess(body)
    assert answer.status_code == 200, answer.text[:300]
    (item,) = answer.json()["items"]
    assert item["source"]["num_frames"] == 4


def test_the_sound_of_a_video_stands_inside_it(service: Service) -> None:
    """use_audio_in_video: two items, equal spans, the video first, no row told twice."""
    model = "qwen2_5_omni"
    clip = media("audio_and_video.mp4")
    body = {
        "model": model, "prompt": f"{mark(model, Modality.VIDEO)} what?", "videos": [clip],
        "audios": [clip], "mm_processor_kwargs": {"use_audio_in_video": True}, "positions": True,
    }  # fmt: skip
    answer = service.preprocess(body).json()
    video, audio = answer["items"]
    assert [video["modality"], audio["modality"]] == ["video", "audio"]
    assert video["span"] == audio["span"]
    told = [
        n
        for item in (video, audio)
        for first, last in item["offsets"]
        for n in range(first, last + 1)
    ]
    assert len(told) == len(set(told)) == video["num_tokens"] + audio["num_tokens"]


def test_a_model_without_placeholders_for_its_audio(service: Service) -> None:
    """Whisper: no ids, no offsets, features of the whole window."""
    body = {"model": "whisper", "audios": [media("stereo_left_only_8k.wav")]}
    answer = service.preprocess(body).json()
    (item,) = answer["items"]
    assert (item["offsets"], item["num_tokens"], item["span"]) == ([], 0, None)
    assert tensors_of(item)["input_features"].shape == (1, 80, 3000)
    assert item["source"]["sample_rate"] == 8000
    assert item["source"]["channels"] == 2


def test_a_modality_a_model_does_not_take(service: Service) -> None:
    """The model says what it takes."""
    body = {"model": "whisper", "images": [media("rgb_small.jpg")]}
    problem = problem_of(service.preprocess(body))
    assert problem["code"] == "invalid_request"
    assert "audio" in problem["detail"]
