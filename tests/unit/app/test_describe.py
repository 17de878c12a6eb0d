"""From plans to the wire's JSON."""

import dataclasses

from app.describe import describe_tensor, in_prompt_order, inclusive
from app.encodings import encode
from processors.types import (
    FieldLayout,
    ItemPlacement,
    LutEncoding,
    Modality,
    PadSpec,
    Repeat,
    TensorSpec,
)

PIXELS = TensorSpec("pixel_values", "float32", (16, 1176), "feature", FieldLayout("flat"),
                    normalized=True)  # fmt: skip
GRID = TensorSpec("image_grid_thw", "int64", (1, 3), "metadata", FieldLayout("batched"),
                  keep_on_cpu=True, values=[[1, 4, 4]])  # fmt: skip


def test_the_contracts_example() -> None:
    """The example of the contract's section 2, tensor by tensor."""
    assert describe_tensor(PIXELS, 24) == {
        "dtype": "float32", "shape": [16, 1176], "nbytes": 75264, "offset": 24, "role": "feature",
        "field": {"kind": "flat", "dim": 0}, "normalized": True,
    }  # fmt: skip
    assert describe_tensor(GRID, 0) == {
        "dtype": "int64", "shape": [1, 3], "nbytes": 24, "offset": 0, "role": "metadata",
        "field": {"kind": "batched"}, "keep_on_cpu": True, "values": [[1, 4, 4]],
    }  # fmt: skip


def test_only_floating_features_change_dtype() -> None:
    """Metadata and integer tensors keep their dtype."""
    pixels, grid = encode((PIXELS, GRID), "plain", "bfloat16")
    assert (pixels.dtype, pixels.nbytes) == ("bfloat16", 37632)
    assert grid == GRID


CODES = LutEncoding((16, 588), 1, 196, Repeat(1, 196, 2), (16, 1176), "float32")


def test_codes_are_told_with_their_table() -> None:
    """Compact features are codes and a table, in the contract's words; all else stays."""
    planned = (dataclasses.replace(PIXELS, compact=CODES), GRID)
    codes, table, grid = encode(planned, "compact", "bfloat16")
    assert grid == GRID
    assert describe_tensor(codes, 3096) == {
        "dtype": "uint8", "shape": [16, 588], "nbytes": 9408, "offset": 3096, "role": "feature",
        "field": {"kind": "flat", "dim": 0}, "normalized": True,
        "encoding": {
            "kind": "lut-u8", "table": "pixel_values.lut", "channel_axis": 1,
            "channel_stride": 196, "repeat": {"axis": 1, "block": 196, "times": 2},
            "plain_shape": [16, 1176], "plain_dtype": "bfloat16",
        },
    }  # fmt: skip
    assert describe_tensor(table, 24) == {
        "dtype": "float32", "shape": [3, 256], "nbytes": 3072, "offset": 24, "role": "lut",
        "field": {"kind": "shared"},
    }  # fmt: skip


def test_raw_pixels_stand_in_the_plain_layout() -> None:
    """Raw features are uint8 and say that they are not normalised."""
    (pixels,) = encode([dataclasses.replace(PIXELS, compact=CODES)], "raw", "bfloat16")
    assert (pixels.dtype, pixels.shape, pixels.normalized) == ("uint8", (16, 1176), False)
    assert pixels.encoding is None


def test_what_has_no_codes_stays_plain() -> None:
    """Without a compact form, every encoding is the plain one."""
    assert encode([PIXELS], "compact", "float32") == encode([PIXELS], "raw", "float32") == (PIXELS,)


def test_padding_is_told() -> None:
    """Where a joint call would pad is part of the description."""
    padded = TensorSpec("x", "float32", (1, 2), "feature", FieldLayout("batched"),
                        pad=PadSpec((1,), 0.0))  # fmt: skip
    assert describe_tensor(padded, 0)["pad"] == {"dims": [1], "value": 0.0}


def test_ranges_become_inclusive() -> None:
    """Inside half-open, outside inclusive."""
    assert inclusive([(4, 8), (9, 10)]) == [[4, 7], [9, 9]]


def test_items_are_listed_by_first_position() -> None:
    """The prompt's order wins over the request's; items without a place come last."""
    placed = [
        ItemPlacement(Modality.AUDIO, 0, ((0, 2),), (0, 2), 2, 5),
        ItemPlacement(Modality.IMAGE, 0, ((4, 6),), (4, 6), 2, 6),
    ]
    keys = [(Modality.IMAGE, 0), (Modality.IMAGE, 1), (Modality.AUDIO, 0)]
    assert in_prompt_order(keys, placed) == [2, 0, 1]
