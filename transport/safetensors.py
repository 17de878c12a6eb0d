"""The safetensors layout of an item's region and of a whole answer, written and read in place.

A document is `u64 LE header length | JSON header | data`. Ours are laid out before any value
exists: larger element sizes first and no holes, so that every tensor is aligned to its element,
and the header is padded with spaces so that the data section starts on 64 bytes. They open with
the `safetensors` library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from transport.errors import DocumentError

_SAFE_NAMES: Mapping[str, str] = {
    "float64": "F64", "int64": "I64", "float32": "F32", "int32": "I32", "float16": "F16",
    "bfloat16": "BF16", "int16": "I16", "uint8": "U8", "int8": "I8", "bool": "BOOL",
}  # fmt: skip
_TORCH_NAMES: Mapping[str, str] = {safe: torch for torch, safe in _SAFE_NAMES.items()}
_ELEMENT_SIZES: Mapping[str, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "uint8": 1, "int8": 1, "bool": 1,
}  # fmt: skip

DATA_ALIGNMENT = 64
"""Bytes; the data section starts on a multiple of this, counted from the document's start."""
_MAX_HEADER_BYTES = 100_000_000  # the safetensors library refuses longer ones
_MAX_DIMS = 32


class TensorEntry(NamedTuple):
    """One tensor of a document to lay out."""

    name: str
    dtype: str
    """In torch's spelling without the prefix (`float32`)."""
    shape: tuple[int, ...]


class TensorView(NamedTuple):
    """One tensor of a parsed document."""

    dtype: str
    """In torch's spelling without the prefix (`float32`)."""
    shape: tuple[int, ...]
    view: memoryview
    """Its bytes, C-contiguous, little-endian; no copy."""


@dataclass(frozen=True, slots=True)
class DocumentLayout:
    """Where everything of a document goes, known before any value is."""

    header: bytes
    """Length word, JSON and padding: the first `data_start` bytes of the document."""
    offsets: Mapping[str, int]
    """Start of each tensor within the data section, in ascending order."""
    sizes: Mapping[str, int]
    """Bytes of each tensor."""
    nbytes: int
    """Bytes of the whole document."""

    @property
    def data_start(self) -> int:
        """Offset of the data section; a multiple of 64."""
        return len(self.header)


def element_size(dtype: str) -> int:
    """Return the bytes per element of a dtype in torch's spelling.

    Raises:
        DocumentError: If no document of ours can hold this dtype.
    """
    try:
        return _ELEMENT_SIZES[dtype]
    except KeyError:
        raise DocumentError(f"dtype {dtype[:32]!r} has no safetensors name") from None


def tensor_nbytes(entry: TensorEntry) -> int:
    """Return the bytes of one tensor's data."""
    return math.prod(entry.shape) * element_size(entry.dtype)


def data_offsets(tensors: Sequence[TensorEntry]) -> dict[str, int]:
    """Return each tensor's start within the data section: larger elements first, no holes.

    Tensors of one element size keep the order given. The result depends on the tensors alone, so a
    caller may describe the offsets in the metadata it then passes to `build_layout`.
    """
    offsets: dict[str, int] = {}
    position = 0
    for entry in _in_data_order(tensors):
        offsets[entry.name] = position
        position += tensor_nbytes(entry)
    return offsets


def build_layout(
    tensors: Sequence[TensorEntry], metadata: Mapping[str, str] | None = None
) -> DocumentLayout:
    """Lay out one document: an item's region, or a whole answer.

    Args:
        tensors: Every tensor; names unique. Order matters only among equal element sizes.
        metadata: Strings for `__metadata__`.

    Returns:
        Header, offsets and total size; `nbytes` is also the Content-Length of a streamed answer.

    Raises:
        DocumentError: If a name repeats or is reserved, a dtype has no safetensors name, or the
            header would be longer than readers accept.
    """
    offsets = data_offsets(tensors)
    if len(offsets) != len(tensors) or "__metadata__" in offsets:
        raise DocumentError("tensor names must be unique and not '__metadata__'")
    sizes = {e.name: tensor_nbytes(e) for e in _in_data_order(tensors)}
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for entry in _in_data_order(tensors):
        start = offsets[entry.name]
        fields[entry.name] = {
            "dtype": _SAFE_NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (start, start + sizes[entry.name]),
        }
    header = msgspec.json.encode(fields)
    header += b" " * (-(8 + len(header)) % DATA_ALIGNMENT)
    if len(header) > _MAX_HEADER_BYTES:
        raise DocumentError("the document's header is too long")
    data_nbytes = sum(sizes.values())
    framed = len(header).to_bytes(8, "little") + header
    return DocumentLayout(framed, offsets, sizes, len(framed) + data_nbytes)


def _in_data_order(tensors: Sequence[TensorEntry]) -> list[TensorEntry]:
    return sorted(tensors, key=lambda e: -element_size(e.dtype))


class _HeaderEntry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Document(NamedTuple):
    """A parsed document."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorView]
    """By name, in the order of their data."""
    data_start: int


def parse_document(view: memoryview | bytes) -> dict[str, TensorView]:
    """Read the tensors of a document in place.

    Raises:
        DocumentError: If the bytes break any rule of the format.
    """
    return dict(read_document(view).tensors)


def read_document(view: memoryview | bytes) -> Document:
    """Read a document in place: tensors are views of the bytes given, nothing is copied.

    Everything is checked before use: header length, dtypes, shapes against sizes, no holes, no
    overlap, no bytes left over.

    Raises:
        DocumentError: If the bytes break any rule of the format.
    """
    flat = memoryview(view).cast("B") if memoryview(view).nbytes else memoryview(b"")
    metadata, entries, data_start = _parse_header(flat)
    tensors: dict[str, TensorView] = {}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda kv: kv[1].data_offsets):
        start, stop = entry.data_offsets
        dtype = _TORCH_NAMES.get(entry.dtype)
        if dtype is None or start != position or stop < start:
            raise DocumentError("the safetensors header has an unknown dtype, a hole or an overlap")
        if stop - start != _checked_nbytes(entry.shape, dtype):
            raise DocumentError("a tensor's shape does not match its bytes")
        if data_start + stop > flat.nbytes:
            raise DocumentError("the safetensors document is cut short")
        data = flat[data_start + start : data_start + stop]
        tensors[name] = TensorView(dtype, tuple(entry.shape), data)
        position = stop
    if data_start + position != flat.nbytes:
        raise DocumentError("the safetensors document has bytes after its last tensor")
    return Document(metadata, tensors, data_start)


def header_nbytes(prefix: memoryview | bytes) -> int:
    """Return the bytes up to the data section, from a document's first 8 bytes.

    Raises:
        DocumentError: If fewer than 8 bytes are given or the length cannot be.
    """
    if len(prefix) < 8:
        raise DocumentError("the safetensors document is cut short")
    length = int.from_bytes(prefix[:8], "little")
    if length > _MAX_HEADER_BYTES:
        raise DocumentError("the safetensors header is too long")
    return 8 + length


def _parse_header(flat: memoryview) -> tuple[dict[str, str], dict[str, _HeaderEntry], int]:
    data_start = header_nbytes(flat)
    if data_start > flat.nbytes:
        raise DocumentError("the safetensors document is cut short")
    if bytes(flat[8:9]) != b"{":
        raise DocumentError("the safetensors header is not a JSON object")
    try:
        raw = msgspec.json.decode(flat[8:data_start], type=dict[str, msgspec.Raw])
        metadata_raw = raw.pop("__metadata__", None)
        metadata = msgspec.json.decode(metadata_raw, type=dict[str, str]) if metadata_raw else {}
        entries = {k: msgspec.json.decode(v, type=_HeaderEntry) for k, v in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise DocumentError("the safetensors header is malformed") from exc
    return metadata, entries, data_start


def _checked_nbytes(shape: list[int], dtype: str) -> int:
    if len(shape) > _MAX_DIMS or any(size < 0 for size in shape):
        raise DocumentError("a tensor's shape is not one")
    return math.prod(shape) * element_size(dtype)
