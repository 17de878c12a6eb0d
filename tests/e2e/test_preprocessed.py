"""Entries that a caller has preprocessed, over HTTP."""

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers.video_utils import VideoMetadata

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, inline_tensors, problem_of, running

MEDIA = Path(__file__).parents[1] / "resources" / "media"
MODELS = ("qwen2_5_vl", "gemma4", "qwen3_vl", "whisper", "qwen2_audio", "internvl", "kimi_k25")
QWEN = "qwen2_5_vl"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def service(model_dir: Callable[[str], Path]) -> Iterator[Service]:
    with running([f"{name}={model_dir(name)}" for name in MODELS]) as started:
        yield started
        assert started.stop() == 0


def media(name: str) -> str:
    return b64((MEDIA / name).read_bytes())


def mark(model: str, modality: Modality = Modality.IMAGE) -> str:
    return FAMILIES[model].prompts[modality]


def entry(tensors: Tensors, kind: str = "processor_output", **fields: Any) -> dict[str, Any]:
    document = safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})
    return {"format": kind, "tensors": {"safetensors": b64(document)}, **fields}


def answered(service: Service, **body: Any) -> dict[str, Any]:
    response = service.preprocess(body)
    assert response.status_code == 200, response.text[:600]
    return dict(response.json())


def refused(service: Service, **body: Any) -> dict[str, Any]:
    response = service.preprocess(body)
    assert response.status_code == 400, response.text[:600]
    return problem_of(response)


def images_of(service: Service, model: str, *names: str) -> dict[str, Any]:
    """The answer for raw images, one placeholder each."""
    prompt = " and ".join([mark(model)] * len(names))
    return answered(service, model=model, prompt=prompt, images=[media(n) for n in names])


def joined(items: list[dict[str, Any]]) -> Tensors:
    """Items' tensors as one joint call returns them: here all of them concatenate."""
    parts = [inline_tensors(item) for item in items]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def grids(*rows: tuple[int, int, int]) -> Tensors:
    return {"image_grid_thw": torch.tensor(rows)}


def test_processor_output_stands_for_several_placeholders(service: Service) -> None:
    """Split by its grids: ids, places and tensors are those of the raw images."""
    raw = images_of(service, QWEN, "rgb_small.jpg", "exif_o6.jpg")
    prompt = " and ".join([mark(QWEN)] * 2)
    given = answered(service, model=QWEN, prompt=prompt, images=[entry(joined(raw["items"]))])
    assert given["input_ids"] == raw["input_ids"]
    for ours, theirs in zip(given["items"], raw["items"], strict=True):
        assert ours["status"] == "passthrough"
        assert (ours["offsets"], ours["span"]) == (theirs["offsets"], theirs["span"])
        assert ours["hash"] != theirs["hash"]
        left, right = inline_tensors(ours), inline_tensors(theirs)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
        told = {k: v for k, v in ours["tensors"]["image_grid_thw"].items() if k != "offset"}
        assert told == {k: v for k, v in theirs["tensors"]["image_grid_thw"].items() if k in told}


@pytest.mark.parametrize("way", ["upload", "binary", "ref", "half", "repeat"])
def test_features_go_by_every_way(service: Service, way: str) -> None:
    """A passthrough item is sent, stored and rounded like any other."""
    raw = images_of(service, QWEN, "rgb_small.jpg")
    tensors = joined(raw["items"])
    pixels = tensors["pixel_values"]
    body: dict[str, Any] = {"model": QWEN, "prompt": mark(QWEN), "images": [entry(tensors)]}
    with service.client() as client:
        if way == "upload":
            body["images"][0]["tensors"] = {"upload": "doc"}
            document = safetensors.torch.save(tensors)
            response = client.post(
                "/preprocess", data={"request": json.dumps(body)}, files={"doc": document}
            )
            found = inline_tensors(response.json()["items"][0])["pixel_values"]
        elif way == "binary":
            accept = {"Accept": "application/vnd.mmprep.safetensors"}
            response = client.post("/preprocess", json=body, headers=accept)
            found = safetensors.torch.load(response.content)["0.pixel_values"]
        elif way == "ref":
            (item,) = client.post("/preprocess", json={**body, "transport": "ref"}).json()["items"]
            found = safetensors.torch.load(client.get(item["location"]["url"]).content)[
                "pixel_values"
            ]
        elif way == "half":
            (item,) = answered(service, **body, dtype="bfloat16")["items"]
            found, pixels = inline_tensors(item)["pixel_values"], pixels.bfloat16()
        else:
            first, second = (answered(service, **body)["items"][0] for _ in range(2))
            assert first["hash"] == second["hash"]
            assert second["status"] == "passthrough"
            known = answered(service, **body, known=[first["hash"]])["items"][0]
            assert (known["status"], known["location"]) == ("known", None)
            found = inline_tensors(second)["pixel_values"]
    assert torch.equal(found, pixels)


def test_precomputed_embeddings_take_rows_in_order(service: Service) -> None:
    """Each item takes the next rows of the embeddings, as many as it has tokens."""
    rows = torch.randn(4 + 6, 32)
    tensors = {"embeddings": rows, **grids((1, 4, 4), (1, 4, 6))}
    body = {"model": QWEN, "prompt": f"{mark(QWEN)}{mark(QWEN)}"}
    given = answered(service, **body, images=[entry(tensors, "precomputed_embedding")])
    first, second = given["items"]
    assert (first["num_tokens"], second["num_tokens"]) == (4, 6)
    assert torch.equal(inline_tensors(first)["embeddings"], rows[:4])
    assert torch.equal(inline_tensors(second)["embeddings"], rows[4:])
    assert first["tensors"]["embeddings"]["role"] == "feature"


def test_embeddings_without_a_grid_are_one_run_of_rows(service: Service) -> None:
    """A row is a token where nothing else is told; stacked ones are items of one length."""
    body = {"model": QWEN, "prompt": mark(QWEN)}
    rows = {"embeddings": torch.randn(7, 16)}
    (item,) = answered(service, **body, images=[entry(rows, "precomputed_embedding")])["items"]
    assert item["num_tokens"] == 7
    stacked = {"embeddings": torch.randn(3, 5, 16)}
    body["prompt"] = mark(QWEN) * 3
    given = answered(service, **body, images=[entry(stacked, "precomputed_embedding")])
    assert [item["num_tokens"] for item in given["items"]] == [5, 5, 5]


def test_grids_alone_give_the_plan_of_the_pixels(service: Service) -> None:
    """Seed, ids from grids: expanded ids, offsets and modality order, without features."""
    model = QWEN
    image, video = mark(model), mark(model, Modality.VIDEO)
    prompt = f"{video} then {image} and {image}"
    raw = answered(
        service,
        model=model,
        prompt=prompt,
        images=[media("rgb_small.jpg"), media("exif_o6.jpg")],
        videos=[media("odd_25_frames.mp4")],
        positions=True,
    )
    values = {"image": [], "video": []}
    seconds = []
    for item in raw["items"]:
        values[item["modality"]] += item["tensors"][f"{item['modality']}_grid_thw"]["values"]
        seconds += item["tensors"].get("second_per_grid_ts", {}).get("values", [])
    given = answered(
        service,
        model=model,
        prompt=prompt,
        images=[entry({"image_grid_thw": torch.tensor(values["image"])})],
        videos=[
            entry(
                {
                    "video_grid_thw": torch.tensor(values["video"]),
                    "second_per_grid_ts": torch.tensor(seconds),
                }
            )
        ],
        positions=True,
        transport="none",
    )
    assert given["input_ids"] == raw["input_ids"]
    assert given["position_ids"] == raw["position_ids"]
    for name in ("modality", "index", "offsets", "span", "num_tokens", "token_id"):
        assert [i[name] for i in given["items"]] == [i[name] for i in raw["items"]]
    assert {item["status"] for item in given["items"]} == {"planned"}


def test_grids_alone_are_no_features(service: Service) -> None:
    """What has no features cannot be sent."""
    body = {"model": QWEN, "prompt": mark(QWEN), "images": [entry(grids((1, 4, 4)))]}
    problem = refused(service, **body)
    assert (problem["code"], problem["param"]) == ("invalid_request", "images[0].tensors")


def test_audio_lengths_alone_give_a_plan(service: Service) -> None:
    """Seed, ids from grids: a given audio length is the number of its tokens."""
    model = "qwen2_audio"
    audio = mark(model, Modality.AUDIO)
    given = answered(
        service,
        model=model,
        prompt=f"{audio} and {audio}",
        audios=[entry({"num_tokens": torch.tensor([3, 5])})],
        transport="none",
    )
    assert [item["num_tokens"] for item in given["items"]] == [3, 5]
    rows = given["input_ids"].count(given["items"][0]["token_id"])
    assert rows == 8


def test_counts_fill_what_a_processor_looks_for(service: Service) -> None:
    """Gemma 4 counts soft tokens: with them given the framing is the processor's own."""
    model = "gemma4"
    raw = images_of(service, model, "rgb_small.jpg", "exif_o6.jpg")
    parts = [inline_tensors(item) for item in raw["items"]]
    assert len({tuple(part["pixel_values"].shape) for part in parts}) == 1
    tensors = joined(raw["items"])
    counts = torch.tensor([item["num_tokens"] for item in raw["items"]])
    prompt = " and ".join([mark(model)] * 2)
    body = {"model": model, "prompt": prompt}
    given = answered(service, **body, images=[entry({**tensors, "num_tokens": counts})])
    assert given["input_ids"] == raw["input_ids"]
    assert given["warnings"] == []
    problem = refused(service, **body, images=[entry(tensors)])
    assert "num_tokens" in problem["detail"]


def test_mixed_with_raw_items_of_other_modalities(service: Service) -> None:
    """A preprocessed image stands beside a raw video and raw audio, in any order."""
    model = "gemma4"
    raw_image = images_of(service, model, "rgb_small.jpg")
    tensors = {**joined(raw_image["items"])}
    tensors["num_tokens"] = torch.tensor([raw_image["items"][0]["num_tokens"]])
    order = (Modality.AUDIO, Modality.IMAGE, Modality.VIDEO)
    body: dict[str, Any] = {
        "model": model, "prompt": " ".join(mark(model, m) for m in order),
        "videos": [media("odd_25_frames.mp4")], "audios": [media("stereo_left_only_8k.wav")],
    }  # fmt: skip
    raw = answered(service, **body, images=[media("rgb_small.jpg")])
    given = answered(service, **body, images=[entry(tensors)])
    assert given["input_ids"] == raw["input_ids"]
    assert [i["modality"] for i in given["items"]] == ["audio", "image", "video"]
    assert given["items"][1]["status"] == "passthrough"
    assert {given["items"][n]["status"] for n in (0, 2)} <= {"computed", "cached"}
    assert [i["offsets"] for i in given["items"]] == [i["offsets"] for i in raw["items"]]


def test_one_preprocessed_entry_per_modality(service: Service) -> None:
    """Seed, rule for preprocessed formats: exactly one item and it is preprocessed, or none is."""
    one = entry(grids((1, 4, 4)))
    for images in ([one, one], [one, media("rgb_small.jpg")], [media("rgb_small.jpg"), one]):
        body = {"model": QWEN, "prompt": mark(QWEN) * 2, "transport": "none"}
        problem = refused(service, **body, images=images)
        assert problem["code"] == "invalid_request"
        assert problem["param"].startswith("images[")
    body = {"model": QWEN, "prompt": mark(QWEN), "transport": "none"}
    assert refused(service, **body, images=[{**one, "modality": "video"}])["param"] == (
        "images[0].modality"
    )
    # `null` entries are no entries.
    assert answered(service, **body, images=[None, one, None])["items"][0]["num_tokens"] == 4


def test_own_ids_take_the_prompts_place(service: Service) -> None:
    """Seed, combine: an entry's input_ids serve where the request has no prompt."""
    raw = images_of(service, QWEN, "rgb_small.jpg")
    tensors, ids = joined(raw["items"]), raw["input_ids"]
    given = answered(service, model=QWEN, images=[entry(tensors, input_ids=ids)])
    assert given["input_ids"] == ids
    assert given["items"][0]["offsets"] == raw["items"][0]["offsets"]
    rows = raw["items"][0]["offsets"][0]
    single = [*ids[: rows[0]], raw["items"][0]["token_id"], *ids[rows[1] + 1 :]]
    assert (
        answered(service, model=QWEN, images=[entry(tensors, input_ids=single)])["input_ids"] == ids
    )
    # The prompt's own ids win.
    body = {"model": QWEN, "input_ids": single}
    assert answered(service, **body, images=[entry(tensors, input_ids=[1])])["input_ids"] == ids


def test_offsets_are_taken_over_or_refused(service: Service) -> None:
    """Seed, items from a dict: offsets are the caller's, and must be where the rows are."""
    raw = images_of(service, QWEN, "rgb_small.jpg")
    (item,) = raw["items"]
    tensors, ids = joined([item]), raw["input_ids"]
    good = entry(tensors, input_ids=ids, offsets=item["offsets"])
    assert answered(service, model=QWEN, images=[good])["items"][0]["offsets"] == item["offsets"]
    first, last = item["offsets"][0]
    for offsets in ([[first - 1, last - 1]], [[first, last - 1]], [[last, first]], []):
        bad = entry(tensors, input_ids=ids, offsets=offsets)
        assert refused(service, model=QWEN, images=[bad])["param"] == "images[0].offsets"


def test_offsets_tell_what_grids_do_not(service: Service) -> None:
    """Qwen3-VL writes timestamps that no tensor holds: with offsets the ids stay as they are."""
    model = "qwen3_vl"
    body = {"model": model, "prompt": mark(model, Modality.VIDEO)}
    raw = answered(service, **body, videos=[media("vfr_20_frames.mkv")])
    (item,) = raw["items"]
    assert len(item["offsets"]) > 1
    tensors = joined([item])
    own = {"input_ids": raw["input_ids"], "offsets": item["offsets"]}
    given = answered(service, model=model, videos=[entry(tensors, **own)])
    assert given["input_ids"] == raw["input_ids"]
    (ours,) = given["items"]
    assert (ours["offsets"], ours["num_tokens"]) == (item["offsets"], item["num_tokens"])
    assert [warning["code"] for warning in given["warnings"]] == ["framing_unknown"]
    for offsets in (item["offsets"][:-1], [[0, item["num_tokens"] - 1]], [[10**6, 10**6]]):
        bad = entry(tensors, **{**own, "offsets": offsets})
        problem = refused(service, model=model, videos=[bad])
        assert (problem["code"], problem["param"]) == (
            "placeholder_mismatch",
            "videos[0].offsets",
        )
    # Without them a plain run of rows stands there, as the seed's id builder has it.
    plain = answered(service, **body, videos=[entry(tensors)])
    assert len(plain["items"][0]["offsets"]) == 1


@pytest.mark.parametrize("model", ["qwen3_vl", "kimi_k25"])
def test_times_of_frames_are_written(service: Service, model: str) -> None:
    """A video's text follows from its frame rate and the places of its frames; its hash from none.

    The file has 25 frames, 10 a second; both models take frames at a rate of their own.
    """
    placeholder = mark(model, Modality.VIDEO)
    body = {"model": model, "prompt": f"See {placeholder} now."}
    raw = answered(service, **body, videos=[media("odd_25_frames.mp4")])
    tensors = inline_tensors(raw["items"][0])
    source = raw["items"][0]["source"]
    taken = chosen_frames(model, source["num_frames"], source["fps"])
    times = {"fps": torch.tensor([source["fps"]]), "frames_indices": torch.tensor([taken])}
    given = answered(service, **body, videos=[entry({**tensors, **times})])
    assert given["input_ids"] == raw["input_ids"]
    assert given["items"][0]["offsets"] == raw["items"][0]["offsets"]
    assert given["items"][0]["tensors"].keys() == raw["items"][0]["tensors"].keys()
    assert given["warnings"] == []
    plain = answered(service, **body, videos=[entry(tensors)])
    assert [w["code"] for w in plain["warnings"]] == ["framing_unknown"]
    assert plain["items"][0]["num_tokens"] == raw["items"][0]["num_tokens"]
    assert plain["items"][0]["hash"] == given["items"][0]["hash"]


def chosen_frames(model: str, num_frames: int, fps: float) -> list[int]:
    """The frames that the family's own rule takes."""
    processor = FAMILIES[model].build()[0].video_processor
    metadata = VideoMetadata(
        total_num_frames=num_frames, fps=fps, duration=num_frames / fps, video_backend="pyav"
    )
    arguments = {"fps": processor.fps, "num_frames": None}
    arguments |= {"temporal_patch_size": processor.temporal_patch_size}
    accepted = inspect.signature(processor.sample_frames).parameters
    known = {k: v for k, v in arguments.items() if k in accepted}
    return [int(index) for index in processor.sample_frames(metadata, **known)]


def test_a_callers_hash_is_told_and_opens_nothing(service: Service) -> None:
    """Seed, items from a dict: the hash is passed on; other tensors under it are others."""
    name = "ab" * 32
    body = {"model": QWEN, "prompt": mark(QWEN)}
    found = []
    for seed in (1, 2):
        rows = torch.full((4, 8), float(seed))
        own = entry({"e": rows, **grids((1, 4, 4))}, "precomputed_embedding", hash=name)
        (item,) = answered(service, **body, images=[own])["items"]
        assert item["caller_hash"] == name
        assert torch.equal(inline_tensors(item)["e"], rows)
        found.append(item["hash"])
    assert len({*found, name}) == 3
    assert service.get(f"/features/{name}").status_code == 404
    assert service.get(f"/features/{found[0]}").status_code == 200
    by_hash = answered(service, **body, images=[{"hash": found[1]}])["items"][0]
    assert by_hash["status"] == "cached"
    many = entry(grids((1, 4, 4), (1, 4, 4)), hash=name)
    problem = refused(service, model=QWEN, prompt=mark(QWEN) * 2, images=[many], transport="none")
    assert problem["param"] == "images[0].hash"


def test_the_openapi_document_names_what_is_told(service: Service) -> None:
    """Every field of an answer, the caller's hash and the names of tensors included."""
    document = service.get("/openapi.json").json()
    operation = document["paths"]["/preprocess"]["post"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    raw = images_of(service, QWEN, "rgb_small.jpg")
    body = {"model": QWEN, "prompt": mark(QWEN), "positions": True, "return_prompt": True}
    given = answered(service, **body, images=[entry(joined(raw["items"]), hash="mine")])
    assert given["items"][0]["caller_hash"] == "mine"
    assert given.keys() == schema["properties"].keys()
    assert given["items"][0].keys() == schema["properties"]["items"]["items"]["properties"].keys()
    assert "num_tokens" in json.dumps(operation["requestBody"])


def test_a_model_without_text_takes_features(service: Service) -> None:
    """Whisper: features pass through, no ids and no offsets."""
    features = torch.randn(2, 80, 3000)
    given = answered(service, model="whisper", audios=[entry({"input_features": features})])
    assert [i["status"] for i in given["items"]] == ["passthrough"] * 2
    found = [inline_tensors(item)["input_features"] for item in given["items"]]
    assert torch.equal(torch.cat(found), features)


def test_tiles_are_counted(service: Service) -> None:
    """InternVL: pixels of several images are told apart by `num_patches`."""
    model = "internvl"
    raw = images_of(service, model, "rgb_small.jpg", "exif_o6.jpg")
    counts = [item["tensors"]["pixel_values"]["shape"][0] for item in raw["items"]]
    tensors = {**joined(raw["items"]), "num_patches": torch.tensor(counts)}
    body = {"model": model, "prompt": " and ".join([mark(model)] * 2)}
    given = answered(service, **body, images=[entry(tensors)])
    assert given["input_ids"] == raw["input_ids"]
    assert [i["tensors"]["pixel_values"]["shape"][0] for i in given["items"]] == counts
    assert set(given["items"][0]["tensors"]) == {"pixel_values"}


def document(header: dict[str, Any], data: bytes = b"") -> dict[str, Any]:
    """An entry whose document is written by hand."""
    text = json.dumps(header).encode()
    raw = len(text).to_bytes(8, "little") + text + data
    return {"format": "processor_output", "tensors": {"safetensors": b64(raw)}}


HOSTILE: dict[str, dict[str, Any]] = {
    "no base64": {"format": "processor_output", "tensors": {"safetensors": "http://127.0.0.1/x"}},
    "empty": {"format": "processor_output", "tensors": {"safetensors": ""}},
    "no tensors": document({}),
    "header beyond the document": {
        "format": "processor_output", "tensors": {"safetensors": b64(b"\xff" * 64)},
    },
    "long header": {
        "format": "processor_output",
        "tensors": {"safetensors": b64((1 << 21).to_bytes(8, "little") + b"{" + b" " * (1 << 21))},
    },
    "cut": document({"image_grid_thw": {"dtype": "I64", "shape": [1, 3], "data_offsets": [0, 24]}}),
    "hole": document(
        {"image_grid_thw": {"dtype": "I64", "shape": [1, 3], "data_offsets": [8, 32]}}, bytes(32)
    ),
    "unknown dtype": document(
        {"image_grid_thw": {"dtype": "F8", "shape": [1], "data_offsets": [0, 1]}}, bytes(1)
    ),
    "huge shape": document(
        {"pixel_values": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}},
        bytes(4),
    ),
    "empty with a huge shape": document(
        {"pixel_values": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}
    ),
    "empty lists without end": document(
        {
            "image_attention_mask": {
                "dtype": "I64", "shape": [2**20, 2**20, 0], "data_offsets": [0, 0],
            }
        }
    ),
    "sizes of counts": entry({"num_patches": torch.tensor([-1, 17])}),
    "counts of floats": entry({"num_patches": torch.ones(64, 64)}),
    "grid of three dimensions": entry({"image_grid_thw": torch.ones(1, 1, 3, dtype=torch.int64)}),
    "empty sizes": entry({"image_sizes": torch.zeros(8, 0, dtype=torch.int64)}),
    "unknown name": entry({"nonsense": torch.ones(1)}),
    "another modality's": entry({"pixel_values_videos": torch.ones(4, 4)}),
    "bool that is none": document(
        {"image_attention_mask": {"dtype": "BOOL", "shape": [1, 2], "data_offsets": [0, 2]}},
        b"\x07\x01",
    ),
    "grid of zeros": entry(grids((0, 0, 0))),
    "grid below zero": entry(grids((-1, -4, 4))),
    "grid that does not merge": entry(grids((1, 3, 5))),
    "grid of floats": entry({"image_grid_thw": torch.tensor([[1.0, 4.0, 4.0]])}),
    "flat grid": entry({"image_grid_thw": torch.tensor([1, 4, 4])}),
    "grid without items": entry({"image_grid_thw": torch.zeros(0, 3, dtype=torch.int64)}),
    "grid without end": entry(grids((2**40, 2**40, 2**40))),
    "large grid": entry(grids((1, 65536, 65536))),
    "too few rows": entry({"pixel_values": torch.ones(8, 1176), **grids((1, 4, 4))}),
    "too many rows": entry({"pixel_values": torch.ones(24, 1176), **grids((1, 4, 4))}),
    "scalar feature": entry({"pixel_values": torch.tensor(1.0), **grids((1, 4, 4))}),
    "no grid": entry({"pixel_values": torch.ones(16, 1176)}),
    "two embeddings": entry(
        {"a": torch.ones(4, 2), "b": torch.ones(4, 2)}, "precomputed_embedding"
    ),
    "embedding of integers": entry(
        {"a": torch.ones(4, 2, dtype=torch.int64)}, "precomputed_embedding"
    ),
    "embedding rows": entry({"a": torch.ones(5, 2), **grids((1, 4, 4))}, "precomputed_embedding"),
    "counts against the grid": entry({"num_tokens": torch.tensor([5]), **grids((1, 4, 4))}),
    "counts below zero": entry({"num_tokens": torch.tensor([-5])}),
    "counts without end": entry({"num_tokens": torch.tensor([2**62])}),
    "more counts than grids": entry({"num_tokens": torch.tensor([4, 4]), **grids((1, 4, 4))}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_entries_are_refused(service: Service, case: str) -> None:
    """Whatever is wrong with the tensors is the caller's error, told with the entry's place."""
    prompt = mark(QWEN)
    response = service.preprocess(
        {"model": QWEN, "prompt": prompt, "images": [HOSTILE[case]], "transport": "none"}
    )
    assert response.status_code == 400, response.text[:500]
    problem = problem_of(response)
    assert problem["code"] in {"invalid_request", "prompt_too_long", "placeholder_mismatch"}
    assert problem["param"].startswith(("images[0]", "prompt"))


def test_a_count_that_a_processor_repeats_a_token_by(service: Service) -> None:
    """Qwen2-Audio and Gemma 4 take the count under a name of their own: it is bounded first."""
    for model, modality, field in (
        ("qwen2_audio", Modality.AUDIO, "audios"),
        ("gemma4", Modality.IMAGE, "images"),
    ):
        given = entry({"num_tokens": torch.tensor([2**30])})
        body = {"model": model, "prompt": mark(model, modality), "transport": "none"}
        problem = refused(service, **body, **{field: [given]})
        assert problem["code"] == "prompt_too_long"


def test_many_items_in_one_entry_are_counted(service: Service) -> None:
    """An entry stands for no more items than a request may hold."""
    many = entry(grids(*[(1, 2, 2)] * 129))
    body = {"model": QWEN, "prompt": mark(QWEN) * 129, "transport": "none"}
    response = service.preprocess({**body, "images": [many]})
    assert (response.status_code, problem_of(response)["code"]) == (413, "too_many_items")


def test_the_service_lives_on(service: Service) -> None:
    """None of it cost a worker, a lease or a byte that stays in use."""
    assert service.get("/readyz").status_code == 200
    assert service.metric("mmprep_worker_restarts_total") == 0
