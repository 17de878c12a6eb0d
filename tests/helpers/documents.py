"""Documents, items and answers as the service makes them, for tests of consumers."""

import json

import numpy as np

from transport import safetensors as st
from transport.wire import LutEncoding, Repeat

INSTANCE = {"instance": "i1", "model": "m", "request_id": "r-1", "fingerprint": "f" * 64}


def dtype_name(array):
    return array.dtype.name


def layout_of(arrays, metadata=None):
    """Lay out a document of these arrays."""
    entries = [st.TensorEntry(n, dtype_name(a), a.shape) for n, a in arrays.items()]
    return st.build_layout(entries, metadata)


def join(layout, buffers):
    """Return the bytes of a document: header, then every tensor where the layout says."""
    document = bytearray(layout.nbytes)
    document[: layout.data_start] = layout.header
    for name, offset in layout.offsets.items():
        start = layout.data_start + offset
        document[start : start + layout.sizes[name]] = buffers[name]
    return bytes(document)


def document_of(arrays, metadata=None):
    """Return the bytes of a document of these arrays."""
    return join(layout_of(arrays, metadata), {n: a.tobytes() for n, a in arrays.items()})


def describe(arrays, encodings=None):
    """Return the answer's description of these arrays."""
    layout = layout_of(arrays)
    return {
        name: {
            "dtype": dtype_name(array),
            "shape": list(array.shape),
            "nbytes": array.nbytes,
            "offset": layout.offsets[name],
            "role": "lut" if name.endswith(".lut") else "feature",
            "field": {"kind": "flat", "dim": 0},
            **({"encoding": encodings[name]} if name in (encodings or {}) else {}),
        }
        for name, array in arrays.items()
    }


def item_of(arrays, location, **fields):
    """Return an answer's item."""
    return {
        "modality": "image",
        "index": 0,
        "status": "computed",
        "token_id": 7,
        "offsets": [[1, 2]],
        "span": [1, 2],
        "num_tokens": 2,
        "hash": "ab" * 32,
        "tensors": describe(arrays),
        "location": location,
        **fields,
    }


def answer_of(*items, **fields):
    """Return the JSON of an answer."""
    return {**INSTANCE, "input_ids": [5, 7, 7], "items": list(items), "lease": None, **fields}


def binary_answer(items_arrays, answer):
    """Return the body of a binary answer: one document of everything."""
    ids = np.array(answer.pop("input_ids"), np.int32)
    arrays = {f"{i}.{n}": a for i, arrays in enumerate(items_arrays) for n, a in arrays.items()}
    return document_of({**arrays, "input_ids": ids}, {"response": json.dumps(answer)})


def qwen_like_lut(rng, patches=6, side=4, times=2, dtype="float32"):
    """Return codes, table, encoding and plain array in the layout of Qwen's patches."""
    table = rng.standard_normal((3, 256), dtype=np.float32)
    codes = rng.integers(0, 256, (patches, 3 * side * side), dtype=np.uint8)
    per_channel = codes.reshape(patches, 3, 1, side * side)
    values = np.stack([table[c][per_channel[:, c]] for c in range(3)], axis=1)
    plain = np.repeat(values, times, axis=2).reshape(patches, -1)
    encoding = LutEncoding(
        kind="lut-u8",
        table="pixel_values.lut",
        channel_axis=1,
        channel_stride=side * side,
        repeat=Repeat(axis=1, block=side * side, times=times),
        plain_shape=plain.shape,
        plain_dtype=dtype,
    )
    return codes, table, encoding, plain
