"""Compact and raw features over HTTP: stored, derived, expanded, or answered plain."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from processors.fast import AVAILABLE
from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, inline_tensors, running
from transport.client import Client

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")

MEDIA = Path(__file__).parents[1] / "resources" / "media"
BINARY = "application/vnd.mmprep.safetensors"
MODELS = ("qwen2_5_vl", "gemma3", "whisper", "idefics3")


@pytest.fixture(scope="module")
def service(model_dir: Callable[[str], Path]) -> Iterator[Service]:
    env = {"MMPREP_STORE__GRACE_S": "0"}
    with running([f"{name}={model_dir(name)}" for name in MODELS], env) as started:
        yield started
        assert started.stop() == 0, "".join(started.output)[-2000:]


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.base_url) as opened:
        yield opened


def picture(seed: int, mode: str = "RGB", kind: str = "PNG") -> bytes:
    shape = (133, 211, len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels, mode).save(out, kind)
    return out.getvalue()


def ask(client: Client, model: str, data: bytes, **fields: Any) -> Any:
    prompt = f"see {FAMILIES[model].prompts[Modality.IMAGE]}"
    return client.preprocess(model=model, prompt=prompt, images=[data], **fields)


def features(client: Client, item: Any, **options: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = client.open_item(item, framework="torch", **options)
    return found


@pytest.mark.parametrize("transport", ["safetensors", "shm", "ref"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["qwen2_5_vl", "gemma3"])
def test_compact_features_expand_to_the_plain_ones(
    client: Client, model: str, dtype: str, transport: str
) -> None:
    """Every transport carries codes that the client expands to what plain features are."""
    data = picture(hash((model, dtype, transport)) % 1000)
    compact = ask(client, model, data, encoding="compact", dtype=dtype, transport=transport)
    (item,) = compact.items
    assert not compact.response.warnings
    info = item.tensors["pixel_values"]
    assert (info.dtype, info.encoding.plain_dtype) == ("uint8", dtype)
    expanded = features(client, item)
    codes = features(client, item, expand=False)
    assert codes["pixel_values"].dtype == torch.uint8
    assert codes["pixel_values.lut"].shape == (3, 256)
    # Another salt: nothing is derived from what is stored already.
    plain = ask(client, model, data, dtype=dtype, cache_salt="other", transport=transport)
    (wanted,) = plain.items
    assert wanted.status == "computed"
    expected = features(client, wanted)
    assert expanded.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(expanded[name], value), name
    ratio = wanted.tensors["pixel_values"].nbytes / info.nbytes
    assert ratio == {"qwen2_5_vl": 8, "gemma3": 4}[model] / (1 if dtype == "float32" else 2)


def test_compact_items_are_an_eighth_on_the_wire(client: Client) -> None:
    """Tables, headers and ids included, an answer is 1/7.9 of the plain one."""
    out = io.BytesIO()
    rng = np.random.default_rng(4)
    Image.fromarray(rng.integers(0, 256, (768, 1024, 3), dtype=np.uint8)).save(out, "PNG")
    sizes = {}
    for encoding in ("plain", "compact"):
        answer = ask(client, "qwen2_5_vl", out.getvalue(), encoding=encoding, transport="shm")
        sizes[encoding] = answer.items[0].location.nbytes
    assert sizes["plain"] / sizes["compact"] >= 7.9


def test_raw_features_are_the_processors_without_arithmetic(
    service: Service, client: Client, model_dir: Callable[[str], Path]
) -> None:
    """Raw pixels equal the Hugging Face call that neither rescales nor normalises."""
    from transformers import AutoImageProcessor

    data = picture(1)
    for model in ("qwen2_5_vl", "gemma3"):
        (item,) = ask(client, model, data, encoding="raw").items
        info = item.tensors["pixel_values"]
        assert (info.dtype, info.normalized, info.encoding) == ("uint8", False, None)
        processor = AutoImageProcessor.from_pretrained(model_dir(model))
        image = Image.open(io.BytesIO(data))
        expected = processor(
            images=[image], do_rescale=False, do_normalize=False, return_tensors="pt"
        )["pixel_values"]
        assert torch.equal(features(client, item)["pixel_values"], expected.to(torch.uint8))


def test_plain_features_are_derived_from_stored_codes(service: Service, client: Client) -> None:
    """Whoever holds codes can have floats without the medium; never the other way round."""
    data = picture(2)
    (item,) = ask(client, "qwen2_5_vl", data, encoding="compact").items
    expected = features(client, ask(client, "qwen2_5_vl", data, cache_salt="x").items[0])
    with service.client() as http:
        for dtype in ("float32", "bfloat16", "float16"):
            got = http.get(f"/features/{item.hash}", params={"dtype": dtype})
            assert got.status_code == 200
            assert got.headers["etag"] == f'"{item.hash}-{dtype}-plain"'
            value = safetensors.torch.load(got.content)["pixel_values"]
            assert torch.equal(value, expected["pixel_values"].to(getattr(torch, dtype)))
        halves = http.get(
            f"/features/{item.hash}", params={"dtype": "bfloat16", "encoding": "compact"}
        )
        assert halves.status_code == 200
        assert http.get(f"/features/{item.hash}", params={"encoding": "raw"}).status_code == 404
        # A plain item is no source of codes.
        (other,) = ask(client, "qwen2_5_vl", picture(3)).items
        gone = http.get(f"/features/{other.hash}", params={"encoding": "compact"})
        assert gone.status_code == 404
    again = ask(client, "qwen2_5_vl", data)
    assert again.items[0].status in ("cached", "computed")
    assert torch.equal(features(client, again.items[0])["pixel_values"], expected["pixel_values"])


def test_what_has_no_codes_is_answered_plain_with_a_warning(
    service: Service, client: Client
) -> None:
    """Models and media without codes, and preprocessed entries, are told apart."""
    (warning,) = (
        answer := ask(client, "idefics3", picture(5), encoding="compact")
    ).response.warnings
    assert (warning.code, warning.param) == ("encoding_unavailable", "images[0]")
    assert answer.items[0].tensors["pixel_values"].dtype == "float32"
    with service.client() as http:
        models = {m["name"]: m for m in http.get("/models").json()["models"]}
    assert models["qwen2_5_vl"]["compact"] == ["image", "video"]
    assert models["whisper"]["compact"] == []
    answer = client.preprocess(
        model="whisper", audios=[(MEDIA / "stereo_left_only_8k.wav").read_bytes()], encoding="raw"
    )
    assert [w.code for w in answer.response.warnings] == ["encoding_unavailable"]


def test_pixels_that_no_codes_stand_for_are_answered_plain(client: Client) -> None:
    """Known once they are decoded; told to whom it concerns, and to nobody else."""
    kwargs = {"image_mean": [0.1, 0.5, 0.9]}  # no table of Gemma 3's kernel
    codes = {}
    for encoding in ("compact", "plain", "raw"):
        answer = ask(client, "gemma3", picture(9), encoding=encoding, mm_processor_kwargs=kwargs)
        codes[encoding] = [warning.code for warning in answer.response.warnings]
        assert answer.items[0].tensors["pixel_values"].dtype == "float32"
    unavailable = ["encoding_unavailable"]
    assert codes == {"compact": unavailable, "plain": [], "raw": unavailable}


def test_a_plan_tells_codes_and_their_bytes(service: Service) -> None:
    """Without features the shapes of the codes are told all the same."""
    prompt = f"see {FAMILIES['qwen2_5_vl'].prompts[Modality.IMAGE]}"
    body = {
        "model": "qwen2_5_vl", "prompt": prompt, "images": [b64(picture(6))], "transport": "none",
        "encoding": "compact", "dtype": "bfloat16",
    }  # fmt: skip
    (item,) = service.preprocess(body).json()["items"]
    codes = item["tensors"]["pixel_values"]
    assert codes["encoding"]["plain_dtype"] == "bfloat16"
    assert codes["shape"][1] * 2 == codes["encoding"]["plain_shape"][1]
    assert item["tensors"]["pixel_values.lut"]["role"] == "lut"
    offsets = [t["offset"] for t in item["tensors"].values()]
    assert len(set(offsets)) == len(offsets)


def test_videos_and_binary_bodies_carry_codes(service: Service) -> None:
    """One document holds the codes and tables of an image and a video."""
    family = FAMILIES["qwen2_5_vl"]
    prompt = f"{family.prompts[Modality.VIDEO]}{family.prompts[Modality.IMAGE]}"
    video = b64((MEDIA / "odd_25_frames.mp4").read_bytes())
    body = {
        "model": "qwen2_5_vl", "prompt": prompt, "images": [b64(picture(7))], "videos": [video],
        "encoding": "compact",
    }  # fmt: skip
    tensors = safetensors.torch.load(service.preprocess(body, headers={"accept": BINARY}).content)
    assert tensors["0.pixel_values_videos"].dtype == torch.uint8
    assert tensors["1.pixel_values"].dtype == torch.uint8
    assert tensors["0.pixel_values_videos.lut"].shape == (3, 256)
    inline = service.preprocess(body).json()["items"]
    for place, item in enumerate(inline):
        for name, value in inline_tensors(item).items():
            assert torch.equal(value, tensors[f"{place}.{name}"])


def test_waiting_is_no_matter_of_encodings(service: Service, client: Client) -> None:
    """An answer that may come before its features waits where they are asked for as codes."""
    answer = ask(client, "qwen2_5_vl", picture(8), encoding="compact", transport="shm", wait=False)
    assert answer.items[0].status == "computed"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("encoding", ["compact", "raw"])
def test_what_is_preprocessed_is_handed_on_as_it_is(
    service: Service, encoding: str, dtype: str
) -> None:
    """There are no codes of what others computed: it stays plain, and whoever asked is told."""
    prompt = f"see {FAMILIES['qwen2_5_vl'].prompts[Modality.IMAGE]}"
    body = {"model": "qwen2_5_vl", "prompt": prompt}
    (made,) = service.preprocess({**body, "images": [b64(picture(10))]}).json()["items"]
    document = {"safetensors": made["location"]["data"]}
    entry = {"format": "processor_output", "tensors": document}
    answer = service.preprocess({**body, "images": [entry], "encoding": encoding, "dtype": dtype})
    assert answer.status_code == 200, answer.text
    assert [w["code"] for w in answer.json()["warnings"]] == ["encoding_unavailable"]
    (item,) = answer.json()["items"]
    own, given = inline_tensors(item), inline_tensors(made)
    assert own.keys() == given.keys()
    wanted = given["pixel_values"].to(getattr(torch, dtype))
    assert torch.equal(own["pixel_values"], wanted)


def test_variants_of_what_is_in_the_making_are_waited_for(service: Service, client: Client) -> None:
    """Whoever asks for another dtype than the one that is made waits for it, and has it derived."""
    out = io.BytesIO()
    pixels = np.random.default_rng(11).integers(0, 256, (1200, 1600, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    answer = ask(client, "qwen2_5_vl", out.getvalue(), transport="ref", wait=False)
    (item,) = answer.items
    assert item.status == "pending"
    path = f"/features/{item.hash}"
    with service.client() as http:
        told = http.get(path, params={"dtype": "bfloat16"})
        assert told.status_code in (200, 202)  # 200 where the worker was faster
        got = service.features(f"{path}?dtype=bfloat16")
        assert got.status_code == 200
        exact = safetensors.torch.load(http.get(path).content)["pixel_values"]
    halves = safetensors.torch.load(got.content)["pixel_values"]
    assert torch.equal(halves, exact.to(torch.bfloat16))
