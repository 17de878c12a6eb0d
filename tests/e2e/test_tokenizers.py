"""Models whose tokenizer is Python code, and models without one, over HTTP."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, problem_of, running
from tests.helpers.slow_tokenizer import make_slow_model

MEDIA = Path(__file__).parents[1] / "resources" / "media"
FAMILY = "kimi_k25"
TRUSTED = {"MMPREP_MODEL__TRUST_REMOTE_CODE": "true"}


@pytest.fixture(scope="module")
def service(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    slow = make_slow_model(model_dir(FAMILY), tmp_path_factory.mktemp("slow") / FAMILY)
    with running([f"fast={model_dir(FAMILY)}", f"slow={slow}"], env=TRUSTED) as started:
        yield started
        assert started.stop() == 0


def both(service: Service, **body: Any) -> list[dict[str, Any]]:
    """The answers of the model with the fast and with the slow tokenizer."""
    found = []
    for model in ("fast", "slow"):
        response = service.preprocess({"model": model, **body})
        assert response.status_code == 200, response.text[:600]
        found.append(response.json())
    return found


def media(name: str) -> str:
    return b64((MEDIA / name).read_bytes())


@pytest.mark.parametrize("form", ["prompt", "messages"])
def test_text_is_tokenized_by_a_worker(service: Service, form: str) -> None:
    """Ids and offsets are those of the fast form, times of frames and typed tokens included."""
    image, video = (FAMILIES[FAMILY].prompts[m] for m in (Modality.IMAGE, Modality.VIDEO))
    files = (media("rgb_small.jpg"), media("odd_25_frames.mp4"))
    body: dict[str, Any] = {
        "prompt": f"See {image} at 12:{video}0 or {image}\n",
        "images": [files[0], files[0]],
        "videos": [files[1]],
    }
    if form == "messages":
        parts = [
            {"type": "video", "video": files[1]},
            {"type": "image", "image": files[0]},
            {"type": "text", "text": "What <|media_pad|> is <b>this</b>?"},
        ]
        body = {"messages": [{"role": "user", "content": parts}]}
    fast, slow = both(service, **body, transport="none", return_prompt=True)
    assert slow["input_ids"] == fast["input_ids"]
    assert slow["prompt"] == fast["prompt"]
    assert [i["offsets"] for i in slow["items"]] == [i["offsets"] for i in fast["items"]]
    assert [i["modality"] for i in slow["items"]] == [i["modality"] for i in fast["items"]]


def test_ids_are_expanded_without_a_tokenizer(service: Service) -> None:
    """What an item becomes comes with its plan, as ids."""
    prompt = f"{FAMILIES[FAMILY].prompts[Modality.IMAGE]} x"
    images = [media("rgb_small.jpg")]
    fast, slow = both(service, prompt=prompt, images=images, transport="none")
    single = list(fast["input_ids"])
    first, last = fast["items"][0]["offsets"][0]
    del single[first + 1 : last + 1]
    for expanded in (False, "auto"):
        answers = both(
            service, input_ids=single, images=images, transport="none", expanded=expanded
        )
        assert [a["input_ids"] for a in answers] == [fast["input_ids"]] * 2
    assert slow["items"][0]["offsets"] == [[first, last]]


def test_a_wrong_number_of_placeholders_is_the_prompts_fault(service: Service) -> None:
    """The same error as of any model, before a worker sees the text."""
    problem = problem_of(
        service.preprocess({"model": "slow", "prompt": "none", "images": [media("rgb_small.jpg")]})
    )
    assert (problem["code"], problem["param"]) == ("placeholder_mismatch", "prompt")


def test_models_share_features_and_no_plans(service: Service) -> None:
    """One hash, since the processor is one; what becomes of a placeholder is each model's own."""
    body = {"images": [media("exif_o6.jpg")], "prompt": FAMILIES[FAMILY].prompts[Modality.IMAGE]}
    for model, status in (("fast", "computed"), ("slow", "cached")):
        (item,) = service.preprocess({"model": model, **body}).json()["items"]
        assert item["status"] == status
        named = {**body, "images": [{"hash": item["hash"]}]}
        (again,) = service.preprocess({"model": model, **named}).json()["items"]
        assert (again["hash"], again["status"]) == (item["hash"], "cached")
        assert again["offsets"] == item["offsets"]


@pytest.fixture(scope="module")
def without(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A model beside a copy of it that has no tokenizer."""
    bare = tmp_path_factory.mktemp("bare") / "qwen2_5_vl"
    shutil.copytree(model_dir("qwen2_5_vl"), bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with running([f"whole={model_dir('qwen2_5_vl')}", f"bare={bare}"]) as started:
        yield started
        assert started.stop() == 0


def test_a_model_without_a_tokenizer_takes_ids(without: Service) -> None:
    """Seed, fast and lenient loading: without a tokenizer only token ids are taken.

    Ids, places, positions and features are those of the whole model.
    """
    prompt = f"See {FAMILIES['qwen2_5_vl'].prompts[Modality.IMAGE]} and {{}} now."
    video = FAMILIES["qwen2_5_vl"].prompts[Modality.VIDEO]
    body = {"images": [media("rgb_small.jpg")], "videos": [media("odd_25_frames.mp4")]}
    text = {"model": "whole", "prompt": prompt.format(video), **body, "positions": True}
    whole = without.preprocess(text).json()
    ids = list(whole["input_ids"])
    for item in reversed(whole["items"]):
        first, last = item["offsets"][0]
        del ids[first + 1 : last + 1]
    for expanded, given in ((False, ids), ("auto", ids), (True, whole["input_ids"])):
        told = {"model": "bare", "input_ids": given, "expanded": expanded, "positions": True}
        answer = without.preprocess({**told, **body}).json()
        assert answer["input_ids"] == whole["input_ids"]
        assert answer["position_ids"] == whole["position_ids"]
        for ours, theirs in zip(answer["items"], whole["items"], strict=True):
            assert (ours["offsets"], ours["hash"]) == (theirs["offsets"], theirs["hash"])
    (model,) = (m for m in without.get("/models").json()["models"] if m["name"] == "bare")
    assert "no tokenizer" in model["warnings"][-1]
    assert model["prompt_fingerprint"] is None
    for refused in ({"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}):
        response = without.preprocess({"model": "bare", **refused})
        assert response.status_code == 400, response.text[:300]
        assert problem_of(response)["code"] == "invalid_request"
