"""Layout, streaming and parsing of safetensors documents."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tests.helpers.documents import join
from transport import safetensors as st
from transport.errors import DocumentError

ENTRIES = (
    st.TensorEntry("codes", "uint8", (3, 5)),
    st.TensorEntry("pixel_values", "float32", (4, 7)),
    st.TensorEntry("image_grid_thw", "int64", (1, 3)),
    st.TensorEntry("mask", "bool", (5,)),
    st.TensorEntry("half", "float16", (3,)),
)


def _values():
    rng = np.random.default_rng(0)
    return {
        "codes": rng.integers(0, 255, (3, 5), dtype=np.uint8),
        "pixel_values": rng.random((4, 7), dtype=np.float32),
        "image_grid_thw": np.array([[1, 4, 4]]),
        "mask": np.array([True, False, True, True, False]),
        "half": np.array([1, 2, 3], dtype=np.float16),
    }


def _document(entries=ENTRIES, values=None, metadata=None):
    layout = st.build_layout(entries, metadata)
    buffers = {k: v.tobytes() for k, v in (values or _values()).items()}
    return layout, join(layout, buffers)


def test_the_library_opens_what_we_lay_out():
    """Names, dtypes, shapes, values and metadata arrive as written."""
    layout, document = _document(metadata={"item": '{"a": 1}'})
    assert len(document) == layout.nbytes
    loaded = safetensors.numpy.load(document)
    for name, value in _values().items():
        assert loaded[name].dtype == value.dtype
        assert np.array_equal(loaded[name], value)


def test_larger_elements_come_first_and_data_starts_on_64():
    """Every tensor is aligned to its element although there are no holes."""
    layout, _ = _document(metadata={"item": "x" * 77})
    assert layout.data_start % 64 == 0
    assert list(layout.offsets) == ["image_grid_thw", "pixel_values", "half", "codes", "mask"]
    assert layout.offsets["image_grid_thw"] == 0
    assert layout.offsets["pixel_values"] == 24
    assert layout.offsets == st.data_offsets(ENTRIES)


def test_parsing_gives_views_of_the_same_bytes():
    """Reading copies nothing and repeats what was written."""
    _, document = _document(metadata={"item": "text"})
    buffer = bytearray(document)
    parsed = st.read_document(memoryview(buffer))
    assert parsed.metadata == {"item": "text"}
    assert parsed.tensors["pixel_values"].shape == (4, 7)
    assert parsed.tensors["pixel_values"].dtype == "float32"
    buffer[parsed.data_start] = 9
    assert parsed.tensors["image_grid_thw"].view[0] == 9


def test_parses_what_the_library_writes():
    """Documents of other writers are read as well."""
    values = _values()
    parsed = st.parse_document(safetensors.numpy.save(values, {"k": "v"}))
    for name, value in values.items():
        assert bytes(parsed[name].view) == value.tobytes()


def test_zero_sized_tensors_round_trip():
    """An empty tensor takes no bytes and no place from its neighbours."""
    entries = (st.TensorEntry("none", "int64", (0, 3)), st.TensorEntry("one", "uint8", ()))
    _, document = _document(
        entries, {"none": np.zeros((0, 3), np.int64), "one": np.array(7, np.uint8)}
    )
    loaded = safetensors.numpy.load(document)
    assert loaded["none"].shape == (0, 3)
    assert st.parse_document(document)["one"].view[0] == 7


def test_a_document_without_tensors_is_one():
    """A plan-only answer has nothing but metadata."""
    layout, document = _document((), {"unused": np.zeros(1)}, {"response": "{}"})
    assert st.read_document(document).metadata == {"response": "{}"}
    assert layout.nbytes == layout.data_start == len(document)


@pytest.mark.parametrize(
    "entries",
    [
        [st.TensorEntry("a", "uint8", (1,)), st.TensorEntry("a", "uint8", (1,))],
        [st.TensorEntry("__metadata__", "uint8", (1,))],
        [st.TensorEntry("a", "complex64", (1,))],
    ],
)
def test_impossible_layouts_are_refused(entries):
    """Repeated or reserved names and unknown dtypes have no document."""
    with pytest.raises(DocumentError):
        st.build_layout(entries)


def _raw(header, data=b""):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def _entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"1234567",
        (1 << 63).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        _raw(b"[]"),
        _raw(b" {}"),
        _raw(b'{"a": \xff}'),
        _raw({"a": 1}),
        _raw({"a": _entry()}, b"123"),
        _raw({"a": _entry()}, b"12345"),
        _raw({"a": _entry(offsets=(1, 5))}, b"12345"),
        _raw({"a": _entry(), "b": _entry(offsets=(2, 6))}, b"123456"),
        _raw({"a": _entry(), "b": _entry(offsets=(5, 9))}, b"123456789"),
        _raw({"a": _entry(offsets=(4, 0))}, b"1234"),
        _raw({"a": _entry(shape=(-2, -2))}, b"1234"),
        _raw({"a": _entry(shape=(1 << 62, 1 << 62))}, b"1234"),
        _raw({"a": _entry(shape=[1] * 40 + [4])}, b"1234"),
        _raw({"a": _entry(dtype="F8")}, b"1234"),
        _raw({"a": _entry() | {"more": 1}}, b"1234"),
        _raw({"__metadata__": {"k": 1}}),
        _raw({"a": _entry(shape=(3,))}, b"1234"),
    ],
)
def test_malformed_documents_are_refused(document):
    """Every rule of the format is checked before a byte is used."""
    with pytest.raises(DocumentError):
        st.parse_document(document)
