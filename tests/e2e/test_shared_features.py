"""Models with the same processors share features, and each has its own plans of them."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, inline_tensors, running
from tests.helpers.zoo.media import noise_video

PROMPT = FAMILIES["qwen2_5_vl"].prompts[Modality.VIDEO]


@pytest.fixture(scope="module")
def service(model_dir: Callable[[str], Path]) -> Iterator[Service]:
    path = model_dir("qwen2_5_vl")
    with running([f"one={path}", f"other={path}"]) as started:
        yield started
        assert started.stop() == 0, "".join(started.output)[-2000:]


def broken_video(seed: int) -> bytes:
    """A video of which the last third is there and does not decode."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=12)
        frames = noise_video(32, 224, 168, seed=seed)
        video.height, video.width = frames.shape[1:3]
        video.pix_fmt = "yuv420p"
        for picture in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
    data = bytearray(buffer.getvalue())
    stop = data.rindex(b"moov") - 4
    start = stop * 2 // 3
    data[start:stop] = bytes(stop - start)
    return bytes(data)


def ask(service: Service, model: str, video: Any, **fields: Any) -> Any:
    body = {"model": model, "prompt": PROMPT, "videos": [video], **fields}
    return service.preprocess(body)


@pytest.mark.parametrize("encodings", [("plain", "plain"), ("compact", "plain")], ids=str)
def test_what_decodes_is_planned_for_each_model(
    service: Service, encodings: tuple[str, str]
) -> None:
    """A video that decodes otherwise than promised has tokens for what is stored of it."""
    data = b64(broken_video(seed=len(encodings[0])))
    answers = [
        ask(service, model, data, encoding=encoding).json()
        for model, encoding in zip(("one", "other"), encodings, strict=True)
    ]
    for answer in answers:
        assert [w["code"] for w in answer["warnings"]] == ["frames_missing"]
        (item,) = answer["items"]
        assert item["exact"]
        tensors = inline_tensors(item)
        for name, told in item["tensors"].items():
            assert list(tensors[name].shape) == told["shape"], name
        assert item["num_tokens"] * 4 == len(tensors["pixel_values_videos"])
    assert answers[0]["input_ids"] == answers[1]["input_ids"]
    assert answers[0]["items"][0]["hash"] == answers[1]["items"][0]["hash"]
    again = ask(service, "other", data, encoding=encodings[1]).json()
    assert again["items"][0]["status"] == "cached"
    assert again["input_ids"] == answers[1]["input_ids"]
