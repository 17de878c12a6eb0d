"""What the design that the service grew from does, row by row, over HTTP; docstrings name the row.

Rows about preprocessed entries and grids are in test_preprocessed.py, about models without a
tokenizer in test_tokenizers.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from processors.decode import decode_frames
from processors.types import (
    DecodeLimits,
    MediaOptions,
    Modality,
)
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, inline_tensors, problem_of, running
from tests.parity.served import png

MEDIA = Path(__file__).parents[1] / "resources" / "media"
MODELS = ("gemma4", "qwen2_5_omni", "cosmos3_edge", "qwen2_5_vl")
FILES = {
    Modality.IMAGE: ("images", "rgb_small.jpg"),
    Modality.VIDEO: ("videos", "odd_25_frames.mp4"),
    Modality.AUDIO: ("audios", "stereo_left_only_8k.wav"),
}
ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def service(model_dir: ModelDir) -> Iterator[Service]:
    with running([f"{name}={model_dir(name)}" for name in MODELS]) as started:
        yield started
        assert started.stop() == 0


def media(name: str) -> str:
    return b64((MEDIA / name).read_bytes())


def mark(model: str, modality: Modality = Modality.IMAGE) -> str:
    return FAMILIES[model].prompts[modality]


def answered(service: Service, **body: Any) -> dict[str, Any]:
    response = service.preprocess(body)
    assert response.status_code == 200, response.text[:600]
    return dict(response.json())


def refused(service: Service, **body: Any) -> dict[str, Any]:
    response = service.preprocess(body)
    assert response.status_code == 400, response.text[:600]
    return problem_of(response)


def of(modality: Modality, count: int = 1) -> dict[str, list[str]]:
    name, file = FILES[modality]
    return {name: [media(file)] * count}


CASES = [(m, k) for m in ("gemma4", "qwen2_5_omni") for k in FILES]


@pytest.mark.parametrize(("model", "modality"), CASES)
def test_ids_of_the_caller_are_kept(
    service: Service, model_dir: ModelDir, model: str, modality: Modality
) -> None:
    """Seed, token-id prompts: the original ids, every modality, expanded or not; never decoded."""
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer
    own = mark(model, modality)
    # Pieces encoded apart: no tokenizer would give these ids for the joined text.
    pieces = ["he", "llo", own, " th", "ere", own, "!"]
    ids = [i for p in pieces for i in tokenizer(p, add_special_tokens=False)["input_ids"]]
    body = {"model": model, **of(modality, 2), "transport": "none"}
    answer = answered(service, **body, input_ids=ids)
    spans = [item["span"] for item in answer["items"]]
    assert len(spans) == 2
    # What is outside the items is what the caller sent, in its order.
    placeholder = tokenizer.convert_tokens_to_ids(
        service.get("/models").json()["models"][MODELS.index(model)]["placeholders"][modality]
    )
    inside = {n for first, last in spans for n in range(first, last + 1)}
    outside = [t for n, t in enumerate(answer["input_ids"]) if n not in inside]
    assert outside == [t for t in ids if t != placeholder]
    for expanded in (True, "auto"):
        again = answered(service, **body, input_ids=answer["input_ids"], expanded=expanded)
        assert again["input_ids"] == answer["input_ids"]
        assert [i["offsets"] for i in again["items"]] == [i["offsets"] for i in answer["items"]]
    # A history: the first item is expanded already, the second is new.
    cut = spans[1]
    half = [*answer["input_ids"][: cut[0]], placeholder, *answer["input_ids"][cut[1] + 1 :]]
    mixed = answered(service, **body, input_ids=half, expanded="auto")
    assert mixed["input_ids"] == answer["input_ids"]
    problem = refused(service, **body, input_ids=half, expanded=True)
    assert problem["code"] == "placeholder_mismatch"
    broken = list(answer["input_ids"])
    del broken[answer["items"][0]["offsets"][0][0]]
    for expanded in (True, "auto"):
        problem = refused(service, **body, input_ids=broken, expanded=expanded)
        assert problem["code"] == "placeholder_mismatch"


@pytest.mark.parametrize("form", ["prompt", "input_ids"])
def test_more_or_fewer_placeholders_than_data(
    service: Service, model_dir: ModelDir, form: str
) -> None:
    """Seed, fast and lenient loading: an error with both numbers, or the walk with a warning."""
    model = "qwen2_5_vl"
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer

    def source(marks: int) -> dict[str, Any]:
        text = "a " + " b ".join([mark(model)] * marks)
        return {form: text if form == "prompt" else tokenizer(text)["input_ids"]}

    for marks, images in ((2, 1), (1, 2), (0, 1), (1, 0)):
        body = {"model": model, **source(marks), **of(Modality.IMAGE, images), "transport": "none"}
        problem = refused(service, **body)
        assert problem["code"] == "placeholder_mismatch"
        assert str(marks) in problem["detail"]
        assert str(images) in problem["detail"]
        answer = answered(service, **body, lenient=True)
        assert len(answer["items"]) == min(marks, images)
        assert {w["code"] for w in answer["warnings"]} == {"surplus_dropped"}
        rows = sum(item["num_tokens"] for item in answer["items"])
        assert (
            sum(last - first + 1 for i in answer["items"] for first, last in i["offsets"]) == rows
        )


def test_none_entries_are_skipped(service: Service) -> None:
    """Seed, small rules: `None` entries in media lists are skipped; indices count the others."""
    model = "gemma4"
    body = {"model": model, "prompt": mark(model) * 2 + mark(model, Modality.AUDIO)}
    images = [None, media("rgb_small.jpg"), None, media("exif_o6.jpg")]
    audios = [None, *of(Modality.AUDIO)["audios"]]
    answer = answered(service, **body, images=images, audios=audios, videos=[None])
    assert [(i["modality"], i["index"]) for i in answer["items"]] == [
        ("image", 0),
        ("image", 1),
        ("audio", 0),
    ]
    problem = problem_of(service.preprocess({**body, "images": [None, "/8A="], "audios": audios}))
    assert problem["code"] == "placeholder_mismatch"


@pytest.mark.parametrize("model", MODELS)
def test_text_only(service: Service, model_dir: ModelDir, model: str) -> None:
    """Seed, combine: text alone is tokenized with the tokenizer's own specials."""
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer
    text = "Hello there, naïve wörld!\n  Two lines."
    answer = answered(service, model=model, prompt=text)
    assert answer["input_ids"] == tokenizer(text)["input_ids"]
    assert answer["items"] == []


def test_one_bos_and_no_second(service: Service, model_dir: ModelDir) -> None:
    """Seed, HF call: specials are off where the tokenizer adds BOS and the text starts with it."""
    model = "gemma4"
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer
    bos = tokenizer.bos_token
    assert tokenizer("")["input_ids"] == [tokenizer.bos_token_id]
    body = {"model": model, **of(Modality.IMAGE), "transport": "none"}
    plain = answered(service, **body, prompt=f"x {mark(model)}")["input_ids"]
    written = answered(service, **body, prompt=f"{bos}x {mark(model)}")["input_ids"]
    assert plain == written
    assert plain.count(tokenizer.bos_token_id) == 1
    within = answered(service, **body, prompt=f"x{bos} {mark(model)}")["input_ids"]
    assert within.count(tokenizer.bos_token_id) == 2


def test_start_and_end_ids_are_told(service: Service, model_dir: ModelDir) -> None:
    """Seed, small rules: start, end and slice ids go out; here with GET /models."""
    models = {m["name"]: m for m in service.get("/models").json()["models"]}
    qwen = AutoProcessor.from_pretrained(model_dir("qwen2_5_vl")).tokenizer
    told = set(models["qwen2_5_vl"]["special_tokens"].values())
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    assert {qwen.convert_tokens_to_ids(name) for name in names} <= told
    gemma = AutoProcessor.from_pretrained(model_dir("gemma4"))
    told = set(models["gemma4"]["special_tokens"].values())
    names = (gemma.boi_token, gemma.eoi_token, gemma.boa_token, gemma.eoa_token)
    assert {gemma.tokenizer.convert_tokens_to_ids(name) for name in names} <= told


def test_rows_stand_between_start_and_end(service: Service, model_dir: ModelDir) -> None:
    """Seed, offsets by pair: the rows are what stands between the start and the end token."""
    model = "gemma4"
    processor = AutoProcessor.from_pretrained(model_dir(model))
    body = {"model": model, "prompt": mark(model) * 2, "transport": "none"}
    answer = answered(service, **body, **of(Modality.IMAGE, 2))
    start, end = (
        processor.tokenizer.convert_tokens_to_ids(t)
        for t in (processor.boi_token, processor.eoi_token)
    )
    ids = answer["input_ids"]
    pairs = zip(
        (n + 1 for n, t in enumerate(ids) if t == start),
        (n - 1 for n, t in enumerate(ids) if t == end),
        strict=True,
    )
    assert [i["offsets"] for i in answer["items"]] == [[list(pair)] for pair in pairs]
    # Adjacent items, and items at both ends of the prompt, are told apart by their counts.
    assert len({tuple(map(tuple, i["offsets"])) for i in answer["items"]}) == 2


def test_placeholders_by_pattern(service: Service) -> None:
    """Seed, special tokens: a placeholder may be any match of a regular expression."""
    model = "cosmos3_edge"
    body = {"model": model, **of(Modality.VIDEO), "transport": "none"}
    framed = answered(service, **body, prompt="a <|vision_start|><|video_pad|><|vision_end|> b")
    bare = answered(service, **body, prompt="a <|video_pad|> b")
    assert framed["input_ids"] == bare["input_ids"]
    assert framed["items"][0]["num_tokens"] > 1


@pytest.mark.parametrize("model", ["gemma4", "qwen2_5_omni"])
def test_modalities_in_any_order(service: Service, model: str) -> None:
    """Seed, result of loading: items in prompt order, `index` within the modality."""
    order = [
        Modality.AUDIO, Modality.IMAGE, Modality.VIDEO, Modality.IMAGE, Modality.AUDIO,
    ]  # fmt: skip
    fields = {**of(Modality.AUDIO, 2), **of(Modality.IMAGE, 2), **of(Modality.VIDEO)}
    prompt = " ".join(mark(model, m) for m in order)
    answer = answered(service, model=model, prompt=prompt, **fields, transport="none")
    assert [i["modality"] for i in answer["items"]] == [m.value for m in order]
    assert [i["index"] for i in answer["items"]] == [0, 0, 0, 1, 1]
    firsts = [i["offsets"][0][0] for i in answer["items"]]
    assert firsts == sorted(firsts)


def test_alpha_is_dropped_composited_or_kept(service: Service, model_dir: ModelDir) -> None:
    """Seed, load one item: RGB where alpha is to be discarded; kept as loaded where asked for."""
    model = "qwen2_5_vl"
    body = {"model": model, "prompt": mark(model)}
    found = {}
    for alpha in ("white", "drop"):
        image = {"data": media("rgba_hidden_noise.png"), "options": {"alpha": alpha}}
        (item,) = answered(service, **body, images=[image])["items"]
        found[alpha] = (item["hash"], inline_tensors(item)["pixel_values"])
    assert found["white"][0] != found["drop"][0]
    assert not torch.equal(found["white"][1], found["drop"][1])
    bare = answered(service, **body, images=[media("rgba_hidden_noise.png")])["items"][0]
    assert torch.equal(inline_tensors(bare)["pixel_values"], found["white"][1])
    # Kept, the picture reaches the processor with its four channels.
    kept = {"data": media("rgba_hidden_noise.png"), "options": {"alpha": "keep"}}
    (item,) = answered(service, **body, images=[kept])["items"]
    with Image.open(MEDIA / "rgba_hidden_noise.png") as picture:
        assert picture.mode == "RGBA"
        processor = AutoProcessor.from_pretrained(model_dir(model)).image_processor
        expected = processor(images=picture, return_tensors="pt")["pixel_values"]
    assert torch.equal(inline_tensors(item)["pixel_values"], expected)


def test_defaults_per_modality_from_the_settings(model_dir: ModelDir) -> None:
    """Seed, HF call: default kwargs of the configuration; a request goes before them."""
    path = model_dir("qwen2_5_vl")
    config = '{"images_kwargs": {"max_pixels": 12544, "min_pixels": 3136}}'
    body = {"prompt": mark("qwen2_5_vl"), **of(Modality.IMAGE), "transport": "none"}
    with running([f"qwen2_5_vl={path}"], args=("--mm-process-config", config)) as started:
        default = answered(started, **body)
        wide = answered(started, **body, mm_processor_kwargs={"max_pixels": 200_704})
        configured = started.get("/models").json()["models"][0]["fingerprint"]
        assert started.stop() == 0
    assert default["items"][0]["num_tokens"] <= 12544 // 28**2
    assert wide["items"][0]["num_tokens"] > default["items"][0]["num_tokens"]
    assert default["fingerprint"] == configured


def test_defaults_enter_the_fingerprint(service: Service) -> None:
    """Seed, HF call: what the configuration says is part of what decides features."""
    models = {m["name"]: m for m in service.get("/models").json()["models"]}
    inputs = models["qwen2_5_vl"]["fingerprint_inputs"]
    assert inputs["numerics"] == "tv-cpu-u8"
    assert set(inputs["parts"]) == {"image", "video"}


def test_field_layouts_are_told(service: Service) -> None:
    """Seed, attribute map: every tensor says how it joins and whether it stays on the CPU."""
    model = "qwen2_5_vl"
    (item,) = answered(
        service, model=model, prompt=mark(model), **of(Modality.IMAGE), transport="none"
    )["items"]
    pixels, grid = item["tensors"]["pixel_values"], item["tensors"]["image_grid_thw"]
    assert (pixels["role"], pixels["field"]) == ("feature", {"kind": "flat", "dim": 0})
    assert (grid["role"], grid["field"]) == ("metadata", {"kind": "batched"})
    assert grid["keep_on_cpu"] is True
    assert int(np.prod(grid["values"])) == pixels["shape"][0]


def as_images(name: str, **options: Any) -> dict[str, Any]:
    """A video shown as images."""
    return {"data": f"video:{media(name)}", "options": options}


def test_a_video_as_images_is_its_frames(service: Service, model_dir: ModelDir) -> None:
    """Seed, lenient loading: an image that yields several frames repeats the image token."""
    model = "qwen2_5_vl"
    clip = (MEDIA / "odd_25_frames.mp4").read_bytes()
    indices = (0, 8, 16, 24)
    decoded = decode_frames(clip, indices, options=MediaOptions(), limits=DecodeLimits())
    frames = [b64(png(frame)) for frame in decoded.frames]
    still = media("rgb_small.jpg")
    start, pad, end = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
    prompt = f"see {start}{pad}{end} and {start}{pad}{end}"
    written = f"see {start}{pad * 4}{end} and {start}{pad}{end}"
    shown = [as_images("odd_25_frames.mp4", max_frames=4), still]
    answer = answered(service, model=model, prompt=prompt, images=shown, return_prompt=True)
    expected = answered(service, model=model, prompt=written, images=[*frames, still])
    assert answer["input_ids"] == expected["input_ids"]
    assert answer["prompt"] == prompt
    for ours, theirs in zip(answer["items"], expected["items"], strict=True):
        assert (ours["index"], ours["offsets"]) == (theirs["index"], theirs["offsets"])
        left, right = inline_tensors(ours), inline_tensors(theirs)
        assert all(torch.equal(left[name], right[name]) for name in right)
    assert len({item["hash"] for item in answer["items"]}) == 5
    # The same by ids and in a chat; the frames are there already.
    tokenizer = AutoProcessor.from_pretrained(model_dir(model)).tokenizer
    body = {"model": model, "images": shown}
    by_ids = answered(service, **body, input_ids=tokenizer(prompt)["input_ids"])
    assert by_ids["input_ids"] == answer["input_ids"]
    assert {item["status"] for item in by_ids["items"]} == {"cached"}
    part = {"type": "image", "image": f"video:{media('odd_25_frames.mp4')}"}
    part["options"] = {"max_frames": 4}
    chat = answered(service, model=model, messages=[{"role": "user", "content": [part]}])
    assert [i["hash"] for i in chat["items"]] == [i["hash"] for i in answer["items"][:4]]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 25),
        ({"max_frames": 3}, 3),
        ({"frame_scaling": 0.5}, 12),
        ({"frame_scaling": 0.001}, 1),
        ({"frame_scaling": 4.0}, 25),
        ({"frame_scaling": 0.5, "max_frames": 5}, 5),
    ],
)
def test_the_frame_budget_is_kept(service: Service, options: dict[str, Any], count: int) -> None:
    """Seed, frame budget: max(1, frames x scaling), and an overall maximum that is applied."""
    model = "gemma4"
    body = {"model": model, "prompt": mark(model), "transport": "none"}
    answer = answered(service, **body, images=[as_images("odd_25_frames.mp4", **options)])
    assert [item["index"] for item in answer["items"]] == list(range(count))


def test_what_is_no_video_shown_as_images(service: Service) -> None:
    """Seed, frame estimate: only a video has frames; nothing is guessed."""
    model = "qwen2_5_vl"
    body = {"model": model, "prompt": mark(model), "transport": "none"}
    for source, status in (
        (f"video:{media('rgb_small.jpg')}", 415),
        ("video:", 422),
        ("video:/8A=", 422),
        ("video:video:AAAA", 400),
    ):
        response = service.preprocess({**body, "images": [source]})
        assert response.status_code == status, response.text[:300]
        assert problem_of(response)["param"].startswith("images[0]")
    clip = as_images("odd_25_frames.mp4")
    problem = refused(
        service, model=model, input_ids=[1], images=[clip], expanded="auto", transport="none"
    )
    assert (problem["code"], problem["param"]) == ("unsupported_option", "expanded")
    many = {**body, "images": [clip] * 6, "prompt": mark(model) * 6}
    response = service.preprocess(many)
    assert (response.status_code, problem_of(response)["code"]) == (413, "too_many_items")
