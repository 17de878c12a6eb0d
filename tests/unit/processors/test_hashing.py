"""Hashes against golden vectors and against framing written out by hand."""

import json
import struct
from pathlib import Path

import pytest
from blake3 import blake3

from processors.errors import InvalidRequestError
from processors.hashing import (
    TensorContent,
    canonical_json,
    content_digest,
    digest_of_frames,
    digest_of_tensors,
    fingerprint,
    frame,
    item_hash,
)

VECTORS = json.loads(
    (Path(__file__).parents[2] / "resources" / "hash_vectors.json").read_text(encoding="utf-8")
)
DIGEST = bytes(range(32))
PRINT = "ab" * 32


def by_hand(*fields: bytes) -> bytes:
    """Return BLAKE3 over fields, each behind its length."""
    return blake3(b"".join(struct.pack("<Q", len(f)) + f for f in fields)).digest()


@pytest.mark.parametrize("vector", VECTORS["content"], ids=lambda v: v["name"])
def test_content_digest_vectors(vector):
    """A medium's digest is plain BLAKE3 of its bytes."""
    data = bytes.fromhex(vector["data"])
    assert content_digest(memoryview(data)).hex() == vector["digest"]
    assert blake3(data).hexdigest() == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda v: v["name"])
def test_frame_list_vectors(vector):
    """A list of images has the digest of its framed digests, in order."""
    digests = [bytes.fromhex(d) for d in vector["digests"]]
    assert digest_of_frames(digests).hex() == vector["digest"]
    assert by_hand(*digests).hex() == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["tensors"], ids=lambda v: v["name"])
def test_tensor_vectors(vector):
    """A preprocessed entry is digested over its tensors by name, whatever their order."""
    tensors = [
        TensorContent(t["name"], t["dtype"], tuple(t["shape"]), bytes.fromhex(t["data"]))
        for t in vector["tensors"]
    ]
    assert digest_of_tensors(tensors).hex() == vector["digest"]
    assert digest_of_tensors(reversed(tensors)).hex() == vector["digest"]
    fields: list[bytes] = []
    for tensor in sorted(tensors):
        shape = b"".join(struct.pack("<QQ", 8, size) for size in tensor.shape)
        fields += [tensor.name.encode(), tensor.dtype.encode(), shape, bytes(tensor.data)]
    assert by_hand(*fields).hex() == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["items"], ids=lambda v: v["name"])
def test_item_vectors(vector):
    """An item's hash is the contract's framing, written out here."""
    given = {k: vector[k] for k in ("modality", "kwargs", "options", "salt")}
    digest = bytes.fromhex(vector["content_digest"])
    ours = item_hash(digest=digest, fingerprint=vector["fingerprint"], **given)
    assert ours == vector["hash"]
    fields = (
        b"mmprep-item-v1",
        vector["modality"].encode(),
        digest,
        bytes.fromhex(vector["fingerprint"]),
        vector["canonical"].encode(),
        vector["salt"].encode(),
    )
    assert by_hand(*fields).hex() == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["fingerprints"], ids=lambda v: v["name"])
def test_fingerprint_vectors(vector):
    """A fingerprint is BLAKE3 of its inputs' canonical JSON."""
    assert fingerprint(vector["inputs"]) == vector["fingerprint"]
    assert blake3(vector["canonical"].encode()).hexdigest() == vector["fingerprint"]


def test_framing_keeps_borders():
    """Fields that join to the same bytes do not frame to the same bytes."""
    assert frame([b"ab", b"c"]) != frame([b"a", b"bc"])
    assert frame([b"ab"]) == b"\x02\0\0\0\0\0\0\0ab"


def test_number_spelling_and_key_order_do_not_matter():
    """What JSON says in two ways hashes in one."""
    one = item_hash("image", DIGEST, PRINT, {"fps": 2, "size": {"a": 1, "b": 2}}, {})
    two = item_hash("image", DIGEST, PRINT, {"size": {"b": 2.0, "a": 1.0}, "fps": 2.0}, {})
    assert one == two


def test_kwargs_and_options_are_told_apart():
    """One name as a kwarg and as a media option is two different items."""
    kwargs = item_hash("video", DIGEST, PRINT, {"fps": 1}, {})
    assert kwargs != item_hash("video", DIGEST, PRINT, {}, {"fps": 1})


@pytest.mark.parametrize(
    "kwargs", [{"a": float("nan")}, {"a": 2**60}, {"a": "\ud800"}, {"\ud800": 1}, {"a": object()}]
)
def test_what_json_cannot_say_is_refused(kwargs):
    """A value without an exact canonical spelling is the client's error."""
    with pytest.raises(InvalidRequestError) as caught:
        item_hash("image", DIGEST, PRINT, kwargs, {})
    assert caught.value.param == "mm_processor_kwargs"
    with pytest.raises(InvalidRequestError):
        canonical_json(kwargs)


def test_a_salt_that_is_no_text_is_refused():
    """A lone surrogate has no bytes to hash."""
    with pytest.raises(InvalidRequestError) as caught:
        item_hash("image", DIGEST, PRINT, {}, {}, "\ud800")
    assert caught.value.param == "cache_salt"
