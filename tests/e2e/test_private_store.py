"""A store shared by tenants: features behind leases, a quota per key, an advertised address."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.service import Service, b64, problem_of, running

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
ADVERTISED = "http://mmprep.internal:9000"


@pytest.fixture(scope="module")
def service() -> Any:
    env = {
        "MMPREP_SERVER__API_KEYS": '["one", "two"]',
        "MMPREP_STORE__PRIVATE": "true",
        "MMPREP_STORE__QUOTA_BYTES": str(24 << 20),
        "MMPREP_TRANSPORT__ADVERTISE_URL": ADVERTISED,
    }
    with running(env=env) as started:
        yield started


def png(seed: int, side: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def call(service: Service, method: str, path: str, key: str = "one", **kwargs: Any) -> Any:
    with service.client(headers={"authorization": f"Bearer {key}"}) as client:
        return client.request(method, path, **kwargs)


def post(service: Service, seed: int, key: str = "one", **fields: Any) -> Any:
    body = {"prompt": IMAGE, "images": [b64(png(seed, 400))], "transport": "ref"}
    return call(service, "POST", "/preprocess", key, json=body | fields)


def test_a_hash_is_no_credential(service: Service) -> None:
    """Features open with their own live lease, and with nothing else."""
    answer = post(service, 1).json()
    other = post(service, 2).json()
    url = answer["items"][0]["location"]["url"]
    assert url.startswith(f"{ADVERTISED}/features/")
    path = url.removeprefix(ADVERTISED)
    bare = path.partition("?")[0]
    mine = f"{bare}?lease={answer['lease']['id']}"
    assert call(service, "GET", mine).status_code == 200
    sizes = {len(call(service, "GET", f"{mine}&dtype=bfloat16").content) for _ in range(2)}
    assert len(sizes) == 1, "a derived variant opens with the lease of what it is derived from"
    absent = "/features/" + "0" * 64
    for place in (bare, absent):
        for wrong in (place, f"{place}?lease=none", f"{place}?lease={other['lease']['id']}"):
            assert call(service, "HEAD", wrong).status_code == 404, wrong
            refused = call(service, "GET", wrong)
            told = (refused.status_code, problem_of(refused)["code"])
            assert told == (404, "lease_not_found"), "the same, whether the features are there"
    for told in (answer, other):
        assert call(service, "DELETE", f"/leases/{told['lease']['id']}").status_code == 204
    ended = call(service, "GET", mine)
    assert (ended.status_code, problem_of(ended)["code"]) == (410, "lease_expired")


def test_a_pending_answer_opens_with_its_lease(service: Service) -> None:
    """`wait: false` leases what is still being made, and the error of what cannot be made."""
    data = png(5, 900)
    for images in ([b64(data)], [b64(data[:-400_000])]):
        answer = post(service, 5, images=images, wait=False)
        if answer.status_code != 200:  # workers were faster than the answer
            assert problem_of(answer)["code"] == "media_decode_failed"
            continue
        told = answer.json()
        path = told["items"][0]["location"]["url"].removeprefix(ADVERTISED)
        other = call(service, "GET", f"{path.partition('?')[0]}?wait_ms=20000")
        assert problem_of(other)["code"] == "lease_not_found"
        own = service.features(path, key="one")
        if images[0] == b64(data):
            assert (own.status_code, len(own.content)) == (
                200,
                told["items"][0]["location"]["nbytes"],
            )
        else:
            assert problem_of(own)["code"] == "media_decode_failed"
        call(service, "DELETE", f"/leases/{told['lease']['id']}")


def test_a_key_cannot_lease_more_than_its_quota(service: Service) -> None:
    """One tenant's leases refuse its own next request, never another's."""
    held = []
    for seed in range(10, 20):
        answer = post(service, seed)
        if answer.status_code != 200:
            break
        held.append(answer.json()["lease"]["id"])
    assert held
    assert (answer.status_code, problem_of(answer)["code"]) == (429, "store_full")
    assert int(answer.headers["retry-after"]) >= 1
    stranger = post(service, 30, key="two")
    assert stranger.status_code == 200
    assert call(service, "DELETE", f"/leases/{held.pop()}").status_code == 204
    again = post(service, 19)
    assert again.status_code == 200
    for lease in [*held, again.json()["lease"]["id"]]:
        call(service, "DELETE", f"/leases/{lease}")
