"""Item hashes over random inputs."""

import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from processors.hashing import TensorContent as Tensor
from processors.hashing import digest_of_frames, digest_of_tensors, frame, item_hash

SAFE = 2**53 - 1
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OBJECTS = st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=3), max_size=4)
ITEMS = st.fixed_dictionaries(
    {
        "modality": st.sampled_from(["image", "video", "audio"]),
        "digest": st.binary(min_size=32, max_size=32),
        "fingerprint": st.binary(min_size=32, max_size=32).map(bytes.hex),
        "kwargs": OBJECTS,
        "options": OBJECTS,
        "salt": NAMES,
    }
)


def _plain(value: Any) -> Any:
    """Return a value in which what JSON cannot tell apart is equal, and all else is not."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return (isinstance(value, bool), value)


@given(ITEMS, ITEMS, st.sets(st.sampled_from(["modality", "digest", "fingerprint", "kwargs"])))
def test_hashes_are_equal_exactly_where_the_inputs_are(one, two, shared):
    """Modality, content, fingerprint, kwargs, options and salt decide, and nothing else."""
    two = two | {key: one[key] for key in shared}
    same = _plain(one) == _plain(two)
    assert (item_hash(**one) == item_hash(**two)) == same
    assert item_hash(**one) == item_hash(**dict(reversed(one.items())))


@given(st.lists(st.binary(max_size=40)), st.lists(st.binary(max_size=40)))
def test_framing_is_injective(one, two):
    """Two lists of fields have the same bytes only if they are the same list."""
    assert (frame(one) == frame(two)) == (one == two)
    as_digests = (
        [hashlib.sha256(f).digest() for f in one],
        [hashlib.sha256(f).digest() for f in two],
    )
    assert (digest_of_frames(as_digests[0]) == digest_of_frames(as_digests[1])) == (one == two)


TENSORS = st.dictionaries(
    NAMES,
    st.tuples(
        st.sampled_from(["float32", "int64"]),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.binary(max_size=16),
    ),
    max_size=3,
)


@given(TENSORS, TENSORS, st.randoms())
def test_tensor_digests_are_equal_exactly_where_the_tensors_are(one, two, random):
    """The order of the tensors does not matter; name, dtype, shape and bytes do."""
    first = [Tensor(name, *rest) for name, rest in one.items()]
    second = [Tensor(name, *rest) for name, rest in two.items()]
    shuffled = random.sample(first, len(first))
    assert digest_of_tensors(first) == digest_of_tensors(shuffled)
    assert (digest_of_tensors(first) == digest_of_tensors(second)) == (one == two)
