"""From plans to the wire's JSON."""

from app.describe import describe_tensor, in_prompt_order, inclusive, with_dtype
from processors.types import FieldLayout, ItemPlacement, Modality, PadSpec, TensorSpec

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
    pixels, grid = with_dtype((PIXELS, GRID), "bfloat16")
    assert (pixels.dtype, pixels.nbytes) == ("bfloat16", 37632)
    assert grid is GRID


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
