"""Content digests, item hashes and fingerprints: BLAKE3 over length-framed fields.

    frame(fields) = concatenation of (u64 LE length, bytes) of each field
    item hash     = BLAKE3(frame("mmprep-item-v1", modality, content digest, fingerprint,
                                 RFC 8785 JSON of kwargs and options, cache salt))

Framing makes the fields' borders part of what is hashed, so no two different items share bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import rfc8785
from blake3 import blake3

from processors.errors import InvalidRequestError

ITEM_TAG = b"mmprep-item-v1"
Buffer = bytes | bytearray | memoryview


class TensorContent(NamedTuple):
    """A tensor of a preprocessed entry, as it is digested."""

    name: str
    dtype: str
    """In torch's spelling without the prefix."""
    shape: tuple[int, ...]
    data: Buffer
    """C-contiguous, little-endian."""


def content_digest(data: Buffer) -> bytes:
    """Return the digest of encoded bytes, 32 bytes.

    Blocking: about a gigabyte a second; releases the interpreter lock.
    """
    return blake3(data).digest()


def frame(fields: Iterable[Buffer]) -> bytes:
    """Return fields joined, each behind its length as u64 LE."""
    return b"".join(
        part for field in fields for part in (memoryview(field).nbytes.to_bytes(8, "little"), field)
    )


def digest_of_frames(digests: Sequence[bytes]) -> bytes:
    """Return the content digest of a video given as a list of images, from theirs."""
    return blake3(frame(digests)).digest()


def digest_of_tensors(tensors: Iterable[TensorContent]) -> bytes:
    """Return the content digest of a preprocessed entry: its tensors sorted by name."""
    hasher = blake3()
    for tensor in sorted(tensors, key=lambda t: t.name):
        shape = frame(size.to_bytes(8, "little") for size in tensor.shape)
        for field in (tensor.name.encode(), tensor.dtype.encode(), shape, tensor.data):
            hasher.update(memoryview(field).nbytes.to_bytes(8, "little"))
            hasher.update(field)
    return hasher.digest()


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON can say
    """Return RFC 8785 JSON: equal values have equal bytes.

    Raises:
        InvalidRequestError: If the value holds what JSON cannot say (NaN, huge integers).
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidRequestError(
            "Keyword arguments hold a number or text that JSON cannot say exactly.",
            "mm_processor_kwargs",
        ) from error


def item_hash(
    modality: str,
    digest: bytes,
    fingerprint: str,
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    salt: str = "",
) -> str:
    """Return an item's hash, 64 lowercase hex digits.

    Args:
        modality: `image`, `video` or `audio`.
        digest: Content digest, 32 bytes.
        fingerprint: The processor's, 64 hex digits.
        kwargs: Effective processor kwargs.
        options: Media options that were given.
        salt: The request's `cache_salt`.

    Raises:
        InvalidRequestError: If kwargs or options cannot be said in canonical JSON, or the salt is
            no valid Unicode.
    """
    try:
        salt_bytes = salt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("The salt is no valid Unicode.", "cache_salt") from error
    effective = canonical_json({"kwargs": dict(kwargs), "options": dict(options)})
    fields = (
        ITEM_TAG,
        modality.encode(),
        digest,
        bytes.fromhex(fingerprint),
        effective,
        salt_bytes,
    )
    return blake3(frame(fields)).hexdigest()


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return the fingerprint of a processor or a prompt's tokenizer, 64 lowercase hex digits."""
    return blake3(canonical_json(dict(inputs))).hexdigest()
