"""The real service and a consumer with the base install only: every transport, the same bits."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.helpers.service import b64, running
from tests.interop.consumer import consume, digest
from transport.client import AsyncClient, Client


@pytest.fixture(scope="module")
def service():
    with running() as service:
        yield service


def _png(seed=0, size=(84, 56)):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _fields(dtype="bfloat16"):
    images = [b64(_png(0)), b64(_png(1, (56, 112)))]
    return {"prompt": "<|image_pad|>and<|image_pad|>", "images": images, "dtype": dtype}


def test_every_transport_gives_a_base_install_the_same_bits(service):
    """Inline, shared memory and pulled by URL; copied and in place."""
    typed, bits = consume(service.base_url, **_fields())
    assert len(typed) == 4
    assert typed[0] == typed[1] != typed[2] == typed[3]
    assert typed[0]["pixel_values"][0] == "bfloat16"
    assert bits[0]["pixel_values"][0] == "uint16"
    for transport in ("shm", "ref"):
        assert consume(service.base_url, **_fields(), transport=transport) == (typed, bits)


def test_uploads_and_base64_give_the_same_item(service):
    """The hash of an item knows nothing of how its bytes came, and the second is cached."""
    with Client(service.base_url) as client:
        first = client.preprocess(**_fields("float32"))
        uploaded = {**_fields("float32"), "images": [_png(0), _png(1, (56, 112))]}
        second = client.preprocess(**uploaded)
        assert [item.hash for item in first.items] == [item.hash for item in second.items]
        assert {item.status for item in second.items} == {"cached"}
        assert np.array_equal(first.input_ids, second.input_ids)
        for one, two in zip(first.items, second.items, strict=True):
            for name, array in client.open_item(one).items():
                assert digest(array) == digest(client.open_item(two)[name])


def test_leases_end_when_they_are_released(service):
    """Renewed, released once and again; the service holds nothing for this client then."""
    with Client(service.base_url) as client:
        answers = [client.preprocess(**_fields(), transport="shm") for _ in range(3)]
        ids = [answer.lease.id for answer in answers]
        assert client.renew(*answers, ttl_s=60) == dict.fromkeys(ids, "renewed")
        for _ in range(2):
            assert client.release(*answers) == dict.fromkeys(ids, "released")
        assert client.renew(*answers) == dict.fromkeys(ids, "expired")
        assert client.release("1-made-up") == {"1-made-up": "unknown"}


async def test_pending_features_are_waited_for(service):
    """The location is told before the features are there."""
    async with AsyncClient(service.base_url) as client:
        fields = {**_fields("float16"), "images": [_png(7), _png(8)]}
        answer = await client.preprocess(**fields, transport="shm", wait=False)
        for item in answer.items:
            assert await client.wait(item, dtype="float16")
            async with client.open_item(item, copy=False) as tensors:
                pulled = await client.features(item.hash, dtype="float16")
                for name, array in tensors.items():
                    assert bytes(pulled[name].view) == array.tobytes()
        await client.release(answer)
