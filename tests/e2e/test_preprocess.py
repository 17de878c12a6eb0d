"""POST /preprocess over a real socket, with the demo model."""

import io
import json
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from tests.helpers.service import Service, b64, inline_tensors, problem_of, running

BINARY = "application/vnd.mmprep.safetensors"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def hf_processor(demo_dir: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(demo_dir)


def reference(processor: Any, prompt: str, *images: bytes) -> Any:
    pictures = [Image.open(io.BytesIO(i)).convert("RGB") for i in images]
    return processor(text=prompt, images=pictures, return_tensors="pt")


def png(width: int, height: int, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_json_answer_equals_the_hf_call(
    service: Service, demo_jpeg: bytes, hf_processor: Any
) -> None:
    """Ids, offsets and features of one JPEG, in the JSON body."""
    prompt = f"Look: {IMAGE} What is it?"
    response = service.preprocess({"prompt": prompt, "images": [b64(demo_jpeg)]})
    assert response.status_code == 200, response.text[:500]
    body = response.json()
    expected = reference(hf_processor, prompt, demo_jpeg)
    assert body["input_ids"] == expected["input_ids"][0].tolist()
    (item,) = body["items"]
    tensors = inline_tensors(item)
    assert torch.equal(tensors["pixel_values"], expected["pixel_values"])
    assert torch.equal(tensors["image_grid_thw"], expected["image_grid_thw"])
    ((first, last),) = item["offsets"]
    row = item["token_id"]
    assert [n for n, i in enumerate(body["input_ids"]) if i == row] == list(range(first, last + 1))
    assert item["num_tokens"] == last - first + 1
    assert item["source"]["width"], item["source"]["height"] == (640, 480)
    assert item["tensors"]["image_grid_thw"]["values"] == expected["image_grid_thw"].tolist()
    assert body["fingerprint"] == service.get("/models").json()["models"][0]["fingerprint"]
    assert response.headers["x-request-id"] == body["request_id"]


def test_binary_answer_is_one_safetensors_document(
    service: Service, demo_jpeg: bytes, hf_processor: Any
) -> None:
    """The streamed document opens with the safetensors library and equals the HF call."""
    second = png(333, 97)
    prompt = f"{IMAGE}{IMAGE}"
    request = {"prompt": prompt, "images": [b64(demo_jpeg), b64(second)]}
    response = service.preprocess(request, headers={"accept": BINARY})
    assert response.headers["content-type"] == BINARY
    assert int(response.headers["content-length"]) == len(response.content)
    tensors = safetensors.torch.load(response.content)
    expected = reference(hf_processor, prompt, demo_jpeg, second)
    assert torch.equal(tensors["input_ids"].long(), expected["input_ids"][0])
    assert tensors["input_ids"].dtype == torch.int32
    joined = torch.cat([tensors["0.pixel_values"], tensors["1.pixel_values"]])
    assert torch.equal(joined, expected["pixel_values"])
    (length,) = struct.unpack("<Q", response.content[:8])
    header = json.loads(response.content[8 : 8 + length])
    answer = json.loads(header["__metadata__"]["response"])
    assert "input_ids" not in answer
    assert [i["location"] for i in answer["items"]] == [{"kind": "safetensors"}] * 2


@pytest.mark.parametrize("kind", ["ids", "messages", "upload", "url", "file"])
def test_every_way_in_gives_the_same_hash_and_features(
    service: Service, demo_jpeg: bytes, kind: str, hf_processor: Any
) -> None:
    """One content, one hash: by text, ids, chat, upload, data URI and file."""
    base = service.preprocess({"prompt": IMAGE, "images": [b64(demo_jpeg)]}).json()
    ids = hf_processor.tokenizer(IMAGE)["input_ids"]
    uri = "data:image/jpeg;base64," + b64(demo_jpeg)
    if kind == "upload":
        with service.client() as client:
            response = client.post(
                "/preprocess",
                data={"request": json.dumps({"prompt": IMAGE, "images": [{"upload": "f"}]})},
                files={"f": ("x.jpg", demo_jpeg)},
            )
    else:
        part = {"type": "image_url", "image_url": {"url": uri}}
        body = {
            "ids": {"input_ids": ids, "images": [uri]},
            "messages": {"messages": [{"role": "user", "content": [part]}]},
            "url": {"prompt": IMAGE, "images": [{"url": uri}]},
            "file": {"prompt": IMAGE, "images": [f"file://{service.media_root}/demo.jpg"]},
        }[kind]
        response = service.preprocess(body)
    assert response.status_code == 200, response.text[:500]
    answer = response.json()
    assert answer["items"][0]["hash"] == base["items"][0]["hash"]
    assert answer["items"][0]["location"] == base["items"][0]["location"]
    if kind != "messages":
        assert answer["input_ids"] == base["input_ids"]


def test_chat_ids_equal_the_templates(
    service: Service, demo_jpeg: bytes, hf_processor: Any
) -> None:
    """Messages give the ids of apply_chat_template and the processor."""
    part = {"type": "image", "image": b64(demo_jpeg)}
    content = [{"type": "text", "text": "Hello"}, part, {"type": "text", "text": "what?"}]
    body = {"messages": [{"role": "user", "content": content}], "return_prompt": True}
    answer = service.preprocess(body).json()
    reduced = [
        {"type": "text", "text": "Hello"},
        {"type": "image"},
        {"type": "text", "text": "what?"},
    ]
    text = hf_processor.apply_chat_template(
        [{"role": "user", "content": reduced}], add_generation_prompt=True
    )
    assert answer["prompt"] == text
    assert answer["input_ids"] == reference(hf_processor, text, demo_jpeg)["input_ids"][0].tolist()


def test_a_placeholder_typed_by_a_user_stays_text(service: Service, demo_jpeg: bytes) -> None:
    """Injection: the typed token is not the image's, the image keeps its place."""
    content = [
        {"type": "text", "text": "<|image_pad|> and <|vision_start|>"},
        {"type": "image", "image": b64(demo_jpeg)},
    ]
    response = service.preprocess({"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 200, response.text[:500]
    answer = response.json()
    (item,) = answer["items"]
    rows = [n for n, i in enumerate(answer["input_ids"]) if i == item["token_id"]]
    assert len(rows) == item["num_tokens"]
    assert [rows[0], rows[-1]] == item["offsets"][0]


def test_a_repeated_item_is_cached_and_needs_no_worker(service: Service) -> None:
    """The second answer is from the store, byte for byte the same."""
    body = {"prompt": IMAGE, "images": [b64(png(200, 120, seed=5))]}
    first, second = service.preprocess(body).json(), service.preprocess(body).json()
    assert [first["items"][0]["status"], second["items"][0]["status"]] == ["computed", "cached"]
    assert first["items"][0]["location"] == second["items"][0]["location"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_rounds_features_and_nothing_else(
    service: Service, demo_jpeg: bytes, dtype: str
) -> None:
    """Half precision is the rounded float32; the grid stays int64."""
    exact = service.preprocess({"prompt": IMAGE, "images": [b64(demo_jpeg)]}).json()["items"][0]
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)], "dtype": dtype}
    item = service.preprocess(body).json()["items"][0]
    assert item["hash"] == exact["hash"]
    tensors = inline_tensors(item)
    rounded = inline_tensors(exact)["pixel_values"].to(getattr(torch, dtype))
    assert torch.equal(tensors["pixel_values"], rounded)
    assert tensors["image_grid_thw"].dtype == torch.int64


def test_plan_only_answers_without_features(service: Service) -> None:
    """`transport: none` gives ids, offsets, shapes and sizes."""
    body = {"prompt": IMAGE, "images": [b64(png(900, 700, seed=9))], "transport": "none"}
    plan = service.preprocess(body).json()
    full = service.preprocess({**body, "transport": "safetensors"}).json()
    assert plan["items"][0]["status"] == "planned"
    assert plan["items"][0]["location"] is None
    assert plan["input_ids"] == full["input_ids"]
    assert plan["items"][0]["tensors"] == full["items"][0]["tensors"]


def test_text_only(service: Service, hf_processor: Any) -> None:
    """A prompt without media is tokenized."""
    answer = service.preprocess({"prompt": "Hello there"}).json()
    assert answer["items"] == []
    assert answer["input_ids"] == hf_processor.tokenizer("Hello there")["input_ids"]


def test_min_and_max_pixels_change_the_grid(service: Service, demo_jpeg: bytes) -> None:
    """Processor kwargs are applied per request and enter the hash."""
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)], "transport": "none", "plan_hash": True}
    base = service.preprocess(body).json()["items"][0]
    size = {"shortest_edge": 3136, "longest_edge": 28 * 28 * 16}
    small = service.preprocess({**body, "mm_processor_kwargs": {"size": size}}).json()["items"][0]
    assert small["num_tokens"] < base["num_tokens"]
    assert small["hash"] != base["hash"]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"prompt": "no placeholder", "images": ["@"]}, 400, "placeholder_mismatch", "prompt"),
        ({"prompt": IMAGE}, 400, "placeholder_mismatch", "prompt"),
        ({"prompt": IMAGE, "images": ["@"], "model": "nope"}, 404, "model_not_found", "model"),
        ({"prompt": IMAGE, "images": ["@"], "encoding": "lut"}, 400, "invalid_request", "encoding"),
        ({"prompt": IMAGE, "images": ["@"], "fingerprint": "0"}, 412, "fingerprint_mismatch",
         "fingerprint"),
        ({"prompt": IMAGE, "images": ["@"], "max_prompt_tokens": 5}, 400, "prompt_too_long",
         "prompt"),
        ({"prompt": IMAGE, "images": ["@"], "transport": "shm"}, 400, "unsupported_option",
         "transport"),
        ({"prompt": IMAGE, "images": ["@"], "mm_processor_kwargs": {"nope": 1}}, 400,
         "unsupported_option", "images[0].nope"),
        ({"prompt": IMAGE, "images": ["@"],
          "mm_processor_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 1e11}}}, 413,
         "media_too_large", "images[0].size"),
        ({"prompt": IMAGE, "images": ["@"], "mm_processor_kwargs": {"do_resize": 1}}, 400,
         "invalid_request", "images[0]"),
        ({"prompt": IMAGE, "images": ["@"], "mm_processor_kwargs": {"image_mean": 2}}, 400,
         "invalid_request", "images[0]"),
        ({"prompt": IMAGE, "images": ["@"], "mm_processor_kwargs": {"max_pixels": 5000.5}}, 400,
         "invalid_request", "images[0]"),
        ({"prompt": IMAGE, "images": ["bm90IGFuIGltYWdl"]}, 422, "media_decode_failed",
         "images[0]"),
        ({"prompt": IMAGE, "images": ["http://127.0.0.1:9/x.jpg"]}, 403, "source_forbidden",
         "images[0]"),
        ({"prompt": IMAGE, "images": ["file:///etc/passwd"]}, 403, "source_forbidden",
         "images[0]"),
        ({"prompt": IMAGE, "images": ["ftp://h/x"]}, 400, "invalid_request", "images[0]"),
        ({"prompt": IMAGE, "images": [{"upload": "gone"}]}, 400, "invalid_request", "images[0]"),
        ({"prompt": IMAGE, "images": [{"hash": "0" * 64}]}, 404, "feature_not_found", "images[0]"),
        ({"prompt": IMAGE, "images": [{"uuid": "never seen"}]}, 404, "feature_not_found",
         "images[0]"),
        ({"prompt": IMAGE, "images": ["@"], "chat_template": "x"}, 400, "unsupported_option",
         "chat_template"),
    ],
)  # fmt: skip
def test_bad_requests_get_the_contracts_code(
    service: Service, demo_jpeg: bytes, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    """Never a 5xx, always the code and the place."""
    images = [b64(demo_jpeg) if i == "@" else i for i in body.get("images", [])]
    response = service.preprocess({**body, **({"images": images} if images else {})})
    problem = problem_of(response)
    assert (response.status_code, problem["code"], problem["param"]) == (status, code, param)


def test_all_failing_items_are_told_and_the_first_answers(
    service: Service, demo_jpeg: bytes
) -> None:
    """Items share one fate; each failure is listed with its place."""
    body = {"prompt": IMAGE * 3, "images": ["AAAA", b64(demo_jpeg), "BBBB"]}
    problem = problem_of(service.preprocess(body))
    assert problem["param"] == "images[0]"
    assert [e["param"] for e in problem["errors"]] == ["images[0]", "images[2]"]


def test_a_truncated_jpeg_names_its_item(service: Service, demo_jpeg: bytes) -> None:
    """A cut file passes the header and fails at the decode, with the contract's code."""
    body = {"prompt": IMAGE * 2, "images": [b64(demo_jpeg), b64(demo_jpeg[:9000])]}
    problem = problem_of(service.preprocess(body))
    assert (problem["code"], problem["param"]) == ("media_decode_failed", "images[1]")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed_json"),
        (b"{}", "text/plain", 415, "unsupported_content_type"),
        (b"x", "multipart/form-data; boundary=b", 400, "invalid_request"),
    ],
)
def test_bodies_that_cannot_be_read(
    service: Service, content: bytes, kind: str, status: int, code: str
) -> None:
    """The body's own problems have codes of their own."""
    with service.client() as client:
        response = client.post("/preprocess", content=content, headers={"content-type": kind})
    assert (response.status_code, problem_of(response)["code"]) == (status, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/preprocess", 405, "method_not_allowed"),
        ("DELETE", "/leases/unknown", 404, "lease_not_found"),
        ("GET", "/features/" + "0" * 64, 404, "feature_not_found"),
    ],
)
def test_paths_that_lead_nowhere(
    service: Service, method: str, path: str, status: int, code: str
) -> None:
    """Every error has the one shape, the router's too."""
    with service.client() as client:
        response = client.request(method, path)
    assert (response.status_code, problem_of(response)["code"]) == (status, code)


def test_not_acceptable(service: Service) -> None:
    """An Accept that excludes both bodies is 406."""
    response = service.preprocess({"prompt": "x"}, headers={"accept": "text/html"})
    assert (response.status_code, problem_of(response)["code"]) == (406, "not_acceptable")


def test_probes_models_and_metrics(service: Service) -> None:
    """What an operator and a scheduler look at."""
    assert service.get("/livez").json() == {"status": "live"}
    assert service.get("/readyz").status_code == 200
    assert service.get("/health").json()["status"] == "ready"
    models = service.get("/models").json()
    assert [m["name"] for m in models["models"]] == ["demo", "other"]
    assert models["models"][0]["placeholders"]["image"] == "<|image_pad|>"
    assert models["segments"]
    assert service.metric("mmprep_store_capacity_bytes") > 0


def test_request_ids_and_traces_are_passed_on(service: Service) -> None:
    """The caller's request id and trace come back."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"x-request-id": "mine-1", "traceparent": trace}
    response = service.preprocess({"prompt": "x"}, headers=headers)
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["request_id"] == "mine-1"
    assert response.headers["traceparent"].split("-")[1] == trace.split("-")[1]
    assert service.preprocess({"prompt": "x", "request_id": "r-2"}).json()["request_id"] == "r-2"


def test_leases_of_shared_memory(service: Service, demo_jpeg: bytes) -> None:
    """A consumer with the proof gets handles, reads them, and releases its lease."""
    from transport.segments import SegmentMap

    consumer = service.get("/models").json()["consumer"]
    body = {
        "prompt": IMAGE, "images": [b64(demo_jpeg)], "transport": ["cuda_ipc", "shm"],
        "consumer": {"shm": consumer["shm"]}, "readers": 2,
    }  # fmt: skip
    others = service.metric("mmprep_leases_active")
    answer = service.preprocess(body).json()
    location = answer["items"][0]["location"]
    view = SegmentMap().view(location["segment"], location["offset"], location["nbytes"])
    inline = service.preprocess({"prompt": IMAGE, "images": [b64(demo_jpeg)]}).json()
    tensors = safetensors.torch.load(bytes(view))
    assert torch.equal(tensors["pixel_values"], inline_tensors(inline["items"][0])["pixel_values"])
    assert "transport_passed_over" in [w["code"] for w in answer["warnings"]]
    lease = answer["lease"]["id"]
    with service.client() as client:
        for reader, active in (("a", 1), ("a", 1), ("b", 0)):
            assert client.delete(f"/leases/{lease}", params={"reader": reader}).status_code == 204
            assert service.metric("mmprep_leases_active") == others + active
        batch = client.post("/leases/renew", json={"ids": [lease, "x-1"]}).json()["leases"]
    assert batch == {lease: "expired", "x-1": "unknown"}


def test_features_by_reference(service: Service, demo_jpeg: bytes) -> None:
    """A `ref` is pulled whole, by range and by ETag."""
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)], "transport": "ref"}
    location = service.preprocess(body).json()["items"][0]["location"]
    with httpx2.Client() as client:
        whole = client.get(location["url"])
        assert whole.status_code == 200
        assert len(whole.content) == location["nbytes"]
        part = client.get(location["url"], headers={"range": "bytes=8-99"})
        assert (part.status_code, part.content) == (206, whole.content[8:100])
        etag = whole.headers["etag"]
        assert client.get(location["url"], headers={"if-none-match": etag}).status_code == 304
        assert client.head(location["url"]).headers["content-length"] == str(location["nbytes"])
        beyond = client.get(location["url"], headers={"range": "bytes=999999999-"})
        assert problem_of(beyond)["code"] == "range_not_satisfiable"
    assert "pixel_values" in safetensors.torch.load(whole.content)


def test_known_features_are_not_sent(service: Service, demo_jpeg: bytes) -> None:
    """What the caller holds is told and not computed again."""
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)]}
    name = service.preprocess(body).json()["items"][0]["hash"]
    item = service.preprocess({**body, "known": [name]}).json()["items"][0]
    assert (item["status"], item["location"]) == ("known", None)


def test_media_by_hash_and_uuid(service: Service) -> None:
    """One upload, many prompts: by the hash of an earlier answer, and by the caller's alias."""
    data = b64(png(64, 80, seed=77))
    first = service.preprocess(
        {"prompt": IMAGE, "images": [{"data": data, "uuid": "my-image"}]}
    ).json()["items"][0]
    for media in ({"hash": first["hash"]}, {"uuid": "my-image"}):
        again = service.preprocess({"prompt": f"a {IMAGE}", "images": [media]}).json()["items"][0]
        assert (again["status"], again["location"]) == ("cached", first["location"])
    other = b64(png(64, 80, seed=78))
    conflict = service.preprocess(
        {"prompt": IMAGE, "images": [{"data": other, "uuid": "my-image"}]}
    )
    assert (conflict.status_code, problem_of(conflict)["code"]) == (409, "uuid_conflict")


def test_a_salt_isolates(service: Service, demo_jpeg: bytes) -> None:
    """Another salt is another hash and another store entry."""
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)]}
    plain = service.preprocess(body).json()["items"][0]
    salted = service.preprocess({**body, "cache_salt": "tenant"}).json()["items"][0]
    assert plain["hash"] != salted["hash"]
    assert plain["content_digest"] == salted["content_digest"]


def test_the_openapi_document_declares_every_error(service: Service) -> None:
    """A client generator sees each status."""
    document = service.get("/openapi.json").json()
    statuses = set(document["paths"]["/preprocess"]["post"]["responses"])
    assert {"200", "400", "404", "412", "413", "415", "422", "429", "502", "503", "504"} <= statuses


def test_features_follow_a_pending_answer(service: Service) -> None:
    """`wait: false` answers at once; features, or their failure, are pulled by hash."""
    data = png(1500, 1100, seed=41)
    body = {"prompt": IMAGE, "images": [b64(data)], "transport": "ref", "wait": False}
    answer = service.preprocess(body).json()
    item = answer["items"][0]
    assert item["status"] in ("pending", "cached")
    document = service.features(f"/features/{item['hash']}")
    assert document.status_code == 200
    assert len(document.content) == item["location"]["nbytes"]
    full = service.preprocess({"prompt": IMAGE, "images": [b64(data)]}).json()
    assert full["items"][0]["status"] == "cached"
    cut = service.preprocess({**body, "images": [b64(data[:-200_000])]})
    if cut.status_code == 200:
        failed = service.features(f"/features/{cut.json()['items'][0]['hash']}")
        assert (failed.status_code, problem_of(failed)["code"]) == (422, "media_decode_failed")
    else:
        assert problem_of(cut)["code"] == "media_decode_failed"


class _Origin(BaseHTTPRequestHandler):
    """Serves one big picture, and counts what the client took."""

    picture = b""
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.picture)))
        self.end_headers()
        try:
            for start in range(0, len(self.picture), 16384):
                self.wfile.write(self.picture[start : start + 16384])
                type(self).sent += 16384
        except OSError:
            return

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_a_plan_by_url_reads_the_header_only(demo_dir: Path) -> None:
    """A picture of megabytes is planned from its first bytes; the hash is not known then."""
    _Origin.picture, _Origin.sent = png(2600, 2600, seed=3), 0
    origin = ThreadingHTTPServer(("127.0.0.1", 0), _Origin)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{origin.server_port}/x.png"
    body = {"prompt": IMAGE, "images": [url], "transport": "none"}
    with running([str(demo_dir)], {"MMPREP_LOADING__ALLOW_PRIVATE": "true"}) as service:
        planned = service.preprocess(body).json()
        item = planned["items"][0]
        read = _Origin.sent
        hashed = service.preprocess({**body, "plan_hash": True}).json()
    origin.shutdown()
    origin.server_close()
    assert (item["hash"], item["exact"]) == (None, False)
    assert item["source"]["nbytes"] == len(_Origin.picture)
    # What the kernel buffers between the two is sent and never read.
    assert read < len(_Origin.picture) / 2
    assert hashed["items"][0]["hash"] is not None
    assert hashed["input_ids"] == planned["input_ids"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_variants_are_derived_from_what_is_stored(service: Service, dtype: str) -> None:
    """GET with another dtype rounds the stored float32; so does a POST that brings no bytes."""
    body = {"prompt": IMAGE, "images": [b64(png(300, 260, seed=len(dtype) + 500))]}
    exact = service.preprocess(body).json()["items"][0]
    pixels = inline_tensors(exact)["pixel_values"]
    document = service.get(f"/features/{exact['hash']}?dtype={dtype}")
    assert document.status_code == 200
    tensors = safetensors.torch.load(document.content)
    assert torch.equal(tensors["pixel_values"], pixels.to(getattr(torch, dtype)))
    assert tensors["image_grid_thw"].dtype == torch.int64
    named = {"prompt": IMAGE, "images": [{"hash": exact["hash"]}], "dtype": dtype}
    item = service.preprocess(named).json()["items"][0]
    assert torch.equal(inline_tensors(item)["pixel_values"], tensors["pixel_values"])


def test_private_features_need_their_lease(demo_dir: Path, demo_jpeg: bytes) -> None:
    """With `store.private` a hash opens nothing."""
    body = {"prompt": IMAGE, "images": [b64(demo_jpeg)], "transport": "ref"}
    with running([str(demo_dir)], {"MMPREP_STORE__PRIVATE": "true"}) as service:
        answer = service.preprocess(body).json()
        location = answer["items"][0]["location"]
        with httpx2.Client() as client:
            assert client.get(location["url"]).status_code == 200
            bare = client.get(location["url"].split("?")[0])
            assert (bare.status_code, problem_of(bare)["code"]) == (404, "lease_not_found")
            client.delete(f"{service.base_url}/leases/{answer['lease']['id']}")
            ended = client.get(location["url"])
            assert (ended.status_code, problem_of(ended)["code"]) == (410, "lease_expired")


def test_a_prompt_that_fails_while_its_features_are_made_leaves_nothing_held(
    service: Service,
) -> None:
    """Ids that tell a wrong run are refused, and the features in the making are let go."""
    picture = b64(png(640, 480, seed=77))
    right = service.preprocess({"prompt": f"{IMAGE}Hi", "images": [picture], "transport": "none"})
    ids = right.json()["input_ids"]
    (first, _), *_ = right.json()["items"][0]["offsets"]
    wrong = ids[:first] + ids[first + 1 :]
    before = service.get("/health").json()["store"]["held_bytes"]
    for _ in range(8):
        body = {"input_ids": wrong, "expanded": True, "images": [picture]}
        response = service.preprocess(body)
        assert response.status_code == 400
        assert problem_of(response)["code"] == "placeholder_mismatch"
    # A worker that has begun is let finish: it writes to the region until then.
    give_up = time.monotonic() + 30
    while service.get("/health").json()["store"]["held_bytes"] > before:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert service.get("/health").json()["requests"] == 0
    body = {"input_ids": ids, "expanded": True, "images": [picture]}
    assert service.preprocess(body).json()["input_ids"] == ids


def test_pictures_of_a_known_size_answer_as_the_first_one_did(
    service: Service, hf_processor: Any
) -> None:
    """A size met before is planned without a worker: ids, features and source are still right."""
    prompt = f"{IMAGE}Hi"
    counts = set()
    for seed in (11, 12, 13):
        picture = png(211, 133, seed=seed)
        body = service.preprocess({"prompt": prompt, "images": [b64(picture)]}).json()
        expected = reference(hf_processor, prompt, picture)
        assert body["input_ids"] == expected["input_ids"][0].tolist()
        (item,) = body["items"]
        assert item["status"] == "computed"
        assert torch.equal(inline_tensors(item)["pixel_values"], expected["pixel_values"])
        counts.add(item["num_tokens"])
        assert item["source"] == {
            "mime": "image/png",
            "nbytes": len(picture),
            "width": 211,
            "height": 133,
            "orientation": 1,
            "num_frames": 1,
        }
    # The same size under other keyword arguments is another plan.
    smaller = {"images_kwargs": {"max_pixels": 56 * 56, "min_pixels": 28 * 28}}
    body = service.preprocess(
        {"prompt": prompt, "images": [b64(png(211, 133, seed=14))], "mm_processor_kwargs": smaller}
    ).json()
    assert body["items"][0]["num_tokens"] < min(counts)
    # What is broken behind its header is found out when it is decoded.
    broken = bytearray(png(211, 133, seed=15))
    broken[len(broken) // 2] ^= 0xFF
    response = service.preprocess({"prompt": prompt, "images": [b64(bytes(broken))]})
    assert response.status_code == 422
