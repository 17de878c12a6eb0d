"""What a process with nothing but the base install gets, for every transport it can reach."""

import base64
import json
import os

import ml_dtypes
import msgspec
import numpy as np
import pytest

from tests.helpers.documents import answer_of, binary_answer, document_of, item_of, qwen_like_lut
from tests.helpers.scripted import scripted_service
from tests.interop.consumer import consume, digest
from transport import shm
from transport.arena import Arena
from transport.protocol import BINARY_TYPE

JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": BINARY_TYPE}


def _plain():
    rng = np.random.default_rng(7)
    return {
        "pixel_values": rng.random((4, 6), dtype=np.float32).astype(ml_dtypes.bfloat16),
        "image_grid_thw": np.array([[1, 2, 2]]),
        "mask": np.array([True, False]),
    }


def _compact():
    codes, table, encoding, plain = qwen_like_lut(np.random.default_rng(8), dtype="bfloat16")
    arrays = {"pixel_values": codes, "pixel_values.lut": table}
    item = item_of(arrays, None)
    item["tensors"]["pixel_values"]["encoding"] = msgspec.to_builtins(encoding)
    return arrays, item, {"pixel_values": plain.astype(ml_dtypes.bfloat16)}


def _wanted(tensors):
    """The digests expected of one item, copied and in place, for either look of bfloat16."""
    as_bits = {
        name: array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in tensors.items()
    }
    return [{n: digest(a) for n, a in each.items()} for each in (tensors, as_bits)]


@pytest.fixture
def service():
    with scripted_service() as service:
        yield service


def _check(service, tensors):
    typed, bits = consume(service.url, prompt="p")
    for wanted, seen in zip(_wanted(tensors), (typed, bits), strict=True):
        assert seen == [wanted] * len(seen)
        assert len(seen) >= 2


def test_json_answers(service):
    """Base64 inside of the answer."""
    arrays = _plain()
    data = base64.b64encode(document_of(arrays)).decode()
    answer = answer_of(item_of(arrays, {"kind": "safetensors", "data": data}))
    service.say((200, JSON, json.dumps(answer).encode()))
    _check(service, arrays)


def test_binary_answers(service):
    """One document of everything."""
    arrays = _plain()
    answer = answer_of(item_of(arrays, {"kind": "safetensors"}))
    service.say((200, BINARY, binary_answer([arrays], answer)))
    _check(service, arrays)


def test_compact_answers(service):
    """Codes and tables become the plain tensor without torch."""
    arrays, item, plain = _compact()
    item["location"] = {"kind": "safetensors"}
    service.say((200, BINARY, binary_answer([arrays], answer_of(item))))
    _check(service, plain)


def test_shared_memory(service):
    """Copied and in place, plain and compact, from another process's store."""
    with Arena(f"t{os.urandom(6).hex()}", [1 << 20]) as arena:
        codes, item, plain = _compact()
        items = []
        for arrays, described in ((plain, item_of(plain, None)), (codes, item)):
            document = document_of(arrays)
            [region] = arena.reserve([(len(items), len(document))])
            arena.view(region)[:] = document
            arena.commit(region)
            items.append({**described, "location": shm.location(region)})
        service.say((200, JSON, json.dumps(answer_of(*items)).encode()))
        _check(service, plain)


def test_ref(service):
    """Pulled from a URL."""
    arrays = _plain()
    place = {"kind": "ref", "url": f"{service.url}/features/x", "nbytes": 1}
    answer = (200, JSON, json.dumps(answer_of(item_of(arrays, place))).encode())
    document = (200, BINARY, document_of(arrays))
    service.say(answer, document, document, answer, document, document)
    _check(service, arrays)
