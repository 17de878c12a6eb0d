"""Any set of tensors survives our layout and any reader, and hostile bytes do not pass."""

import hypothesis.strategies as st
import numpy as np
import safetensors.numpy
from hypothesis import given

from tests.helpers.documents import join
from transport import safetensors as ours
from transport.errors import DocumentError

DTYPES = ("float64", "int64", "float32", "int32", "float16", "int16", "uint8", "int8", "bool")
TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
    max_size=6,
)


def _write(shapes, metadata):
    values = {
        name: np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        for name, (dtype, shape) in shapes.items()
    }
    entries = [ours.TensorEntry(n, v.dtype.name, v.shape) for n, v in values.items()]
    layout = ours.build_layout(entries, metadata)
    return values, layout, join(layout, {n: v.tobytes() for n, v in values.items()})


@given(TENSORS, st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
def test_every_document_round_trips(shapes, metadata):
    """Values, shapes, alignment and size are as laid out, for the library and for us."""
    values, layout, document = _write(shapes, metadata)
    assert len(document) == layout.nbytes
    assert layout.data_start % 64 == 0
    loaded = safetensors.numpy.load(document)
    parsed = ours.read_document(document)
    assert loaded.keys() == parsed.tensors.keys() == values.keys()
    assert parsed.metadata == metadata
    for name, value in values.items():
        assert layout.offsets[name] % value.itemsize == 0
        assert loaded[name].shape == parsed.tensors[name].shape == value.shape
        assert loaded[name].tobytes() == bytes(parsed.tensors[name].view) == value.tobytes()


@given(TENSORS, st.binary(min_size=1, max_size=3), st.data())
def test_damaged_documents_raise_or_parse_within_bounds(shapes, garbage, data):
    """Flipped, cut or lengthened bytes give our error or views inside of the document."""
    _, _, document = _write(shapes, {"k": "v"})
    position = data.draw(st.integers(0, len(document)))
    damaged = data.draw(
        st.sampled_from(
            [
                document[:position],
                document + garbage,
                document[:position] + garbage + document[position + len(garbage) :],
            ]
        )
    )
    try:
        parsed = ours.read_document(damaged)
    except DocumentError:
        return
    assert parsed.data_start + sum(t.view.nbytes for t in parsed.tensors.values()) == len(damaged)
