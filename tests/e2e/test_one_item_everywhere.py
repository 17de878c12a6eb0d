"""One item gives the same features and the same hash, whatever stands around it and however."""

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoProcessor

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, running

MEDIA = Path(__file__).parents[1] / "resources" / "media"
MODELS = ("qwen2_5_vl", "qwen2_5_omni", "gemma4", "llava_next", "idefics3", "minicpmv4_6")
FILES = {
    Modality.IMAGE: ("images", "exif_o6.jpg", "rgb_small.jpg"),
    Modality.VIDEO: ("videos", "odd_25_frames.mp4", "odd_25_frames.mp4"),
    Modality.AUDIO: ("audios", "stereo_left_only_8k.wav", "stereo_left_only_8k.wav"),
}
"""The item looked at, and one that stands before it."""
FORMS = ("prompt", "input_ids", "messages")
PAIRS = [(name, modality) for name in MODELS for modality in FAMILIES[name].prompts]
ACCEPT = {"Accept": "application/vnd.mmprep.safetensors"}
ModelDir = Callable[[str], Path]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def service(model_dir: ModelDir) -> Iterator[Service]:
    with running([f"{name}={model_dir(name)}" for name in MODELS]) as started:
        yield started
        assert started.stop() == 0


def asked(form: str, tokenizer: Any, model: str, modality: Modality, count: int) -> dict[str, Any]:
    """A request for some items, the last of which is the one looked at."""
    field, own, other = FILES[modality]
    media = [b64((MEDIA / name).read_bytes()) for name in [other] * (count - 1) + [own]]
    text = "Look: " + " and ".join([FAMILIES[model].prompts[modality]] * count)
    if form == "messages":
        parts = [{"type": modality.value, modality.value: medium} for medium in media]
        content = [*parts, {"type": "text", "text": "What is it?"}]
        return {"messages": [{"role": "user", "content": content}]}
    if form == "input_ids":
        return {"input_ids": tokenizer(text)["input_ids"], field: media}
    return {"prompt": text, field: media}


@pytest.mark.parametrize(("model", "modality"), PAIRS)
def test_features_and_hash_are_one(
    service: Service, model_dir: ModelDir, model: str, modality: Modality
) -> None:
    """Alone and among others, made anew and from the store, by prompt, token ids and messages."""
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer

    def last_item(form: str, count: int, **more: Any) -> tuple[dict[str, Any], Tensors]:
        body = {"model": model, **asked(form, tokenizer, model, modality, count), **more}
        with service.client() as client:
            response = client.post("/preprocess", json=body, headers=ACCEPT)
        assert response.status_code == 200, response.text[:600]
        document = response.content
        stop = 8 + int.from_bytes(document[:8], "little")
        answer = json.loads(json.loads(document[8:stop])["__metadata__"]["response"])
        assert len(answer["items"]) == count
        own = f"{count - 1}."
        tensors = safetensors.torch.load(document)
        found = {n.removeprefix(own): t for n, t in tensors.items() if n.startswith(own)}
        return answer["items"][-1], found

    # A salt of its own makes each way compute anew.
    ways = list(product(FORMS, (1, 2)))
    made = [last_item(form, n, cache_salt=f"{model}{modality}{form}{n}") for form, n in ways]
    # A file that is given twice is computed once, and either of the two may have it.
    twice = {"computed"} if modality is Modality.IMAGE else {"computed", "cached"}
    for (item, _), (_, count) in zip(made, ways, strict=True):
        assert item["status"] in (twice if count > 1 else {"computed"})
    first = made[0][1]
    assert {item["content_digest"] for item, _ in made} == {made[0][0]["content_digest"]}
    assert len({item["hash"] for item, _ in made}) == len(ways)

    stored = [last_item(form, count) for form, count in ways]
    assert [item["status"] for item, _ in stored[1:]] == ["cached"] * (len(ways) - 1)
    assert len({item["hash"] for item, _ in stored}) == 1
    for _, found in (*made, *stored):
        assert found.keys() == first.keys()
        assert all(torch.equal(found[name], first[name]) for name in first)
    assert {item["num_tokens"] for item, _ in (*made, *stored)} == {made[0][0]["num_tokens"]}
