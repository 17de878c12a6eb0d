"""How items' tensors join, what a plan tells of them, and how they are written."""

import pytest
import torch

from processors.errors import PlanMismatchError
from processors.features import (
    Joins,
    describe_tensors,
    find_joins,
    names_that_differ,
    write_tensors,
)
from processors.types import FieldLayout, PadSpec


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("one", "other", "joint", "layout", "pad"),
    [
        ((16, 8), (24, 8), (40, 8), FieldLayout("flat", 0), None),
        ((1, 3, 4), (1, 3, 4), (2, 3, 4), FieldLayout("batched"), None),
        ((1, 2, 5), (1, 4, 5), (2, 4, 5), FieldLayout("batched"), PadSpec((1,), 0.0)),
        ((1, 2, 9), (1, 3, 9), (1, 5, 9), FieldLayout("flat", 1), None),
        ((1, 3, 7), (1, 3, 9), (1, 3, 16), FieldLayout("flat", 2), None),
        ((1, 3), (1, 3), None, FieldLayout("batched"), None),
        ((4, 3), (2, 3), None, FieldLayout("flat"), None),
        ((4, 3), (2, 3), (9, 9), FieldLayout("flat"), PadSpec((1,), 0.0)),
    ],
)
def test_layouts_are_read_off_a_joint_call(one, other, joint, layout, pad):
    """Concatenated, stacked, padded; or unknown where no joint call can be made."""
    together = None if joint is None else {"x": _meta(*joint)}
    joins = find_joins({"x": _meta(*one)}, {"x": _meta(*other)}, together)
    assert joins.layout("x") == layout
    assert joins.pads.get("x") == pad


def test_a_tensor_that_only_large_items_have_concatenates():
    """Local crops of an image that is cut."""
    joins = find_joins({}, {"x": _meta(2, 3)}, {"x": _meta(2, 3)})
    assert joins.layout("x") == FieldLayout("flat")
    assert joins.override({"x": FieldLayout("shared")}).layout("x") == FieldLayout("shared")
    assert Joins().layout("unseen") == FieldLayout("flat")


def test_what_a_run_on_meta_knows():
    """Real tensors of it follow from sizes; meta ones are data or masks."""
    specs = describe_tensors(
        {
            "pixel_values": _meta(4, 2),
            "pixel_values_raw": _meta(4, 2).to(torch.uint8),
            "image_grid_thw": torch.tensor([[1, 2, 2]]),
            "second_per_grid_ts": torch.tensor([0.5]),
            "pixel_attention_mask": _meta(4, 2),
            "large": torch.zeros(100_000, dtype=torch.int64),
        },
        Joins(),
        on_meta=True,
    )
    told = {
        spec.name: (spec.role, spec.keep_on_cpu, spec.values, spec.normalized) for spec in specs
    }
    assert told == {
        "pixel_values": ("feature", False, None, True),
        "pixel_values_raw": ("feature", False, None, False),
        "image_grid_thw": ("metadata", True, [[1, 2, 2]], None),
        "second_per_grid_ts": ("metadata", True, [0.5], None),
        "pixel_attention_mask": ("metadata", False, None, None),
        "large": ("metadata", False, None, None),
    }


def test_what_a_run_on_zeros_knows():
    """Integers, but for those that noise changes; these are data."""
    zeros = {
        "features": torch.zeros(3),
        "lengths": torch.tensor([3]),
        "codes": torch.zeros(3).int(),
    }
    noise = {**zeros, "features": torch.ones(3), "codes": torch.ones(3).int()}
    unknown = names_that_differ(zeros, noise)
    assert unknown == {"features", "codes"}
    specs = describe_tensors(zeros, Joins(), on_meta=False, unknown=unknown)
    assert {spec.name: (spec.role, spec.keep_on_cpu) for spec in specs} == {
        "features": ("feature", False),
        "lengths": ("metadata", True),
        "codes": ("feature", False),
    }


@pytest.mark.parametrize(
    "executed",
    [
        {"x": torch.zeros(3)},
        {"x": torch.zeros(2), "y": torch.zeros(1)},
        {"x": torch.zeros(2, dtype=torch.float64)},
        {},
    ],
)
def test_a_result_other_than_planned_is_not_written(executed):
    """Another shape, name or dtype."""
    specs = describe_tensors({"x": _meta(2)}, Joins(), on_meta=True)
    output = torch.full((2,), 7.0)
    with pytest.raises(PlanMismatchError):
        write_tensors(executed, specs, {"x": output})
    assert output.tolist() == [7.0, 7.0]


def test_known_values_are_compared():
    """A grid that came out otherwise is a mismatch."""
    specs = describe_tensors({"grid": torch.tensor([1, 2])}, Joins(), on_meta=True)
    with pytest.raises(PlanMismatchError, match="values"):
        write_tensors({"grid": torch.tensor([2, 1])}, specs, {"grid": torch.zeros(2).long()})
