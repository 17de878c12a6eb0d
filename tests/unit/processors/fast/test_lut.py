import torch
from transformers import Qwen2VLImageProcessor

from processors.fast.lut import identity_table, normalization_table, rows_equal

MEAN, STD, FACTOR = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
    1 / 255,
)


def test_table_is_the_fused_formula():
    """The table equals subtracting the scaled mean and dividing by the scaled deviation."""
    table = normalization_table(Qwen2VLImageProcessor(), True, FACTOR, True, MEAN, STD)
    values = torch.arange(256, dtype=torch.float32)[None]
    mean = torch.tensor(MEAN)[:, None] * (1.0 / FACTOR)
    std = torch.tensor(STD)[:, None] * (1.0 / FACTOR)
    assert table.dtype == torch.float32
    assert torch.equal((values - mean) / std, table)


def test_table_of_rescaling_alone():
    """Without normalisation a value is only multiplied by the factor."""
    table = normalization_table(Qwen2VLImageProcessor(), True, FACTOR, False, None, None)
    assert torch.equal((torch.arange(256, dtype=torch.uint8) * FACTOR).repeat(3, 1), table)


def test_identity_table_keeps_values():
    """The raw table maps every value to itself."""
    assert torch.equal(torch.arange(256, dtype=torch.uint8).repeat(3, 1), identity_table())


def test_rows_equal_sees_a_single_difference():
    """One differing entry makes the channels differ."""
    table = torch.zeros(3, 256)
    assert rows_equal(table)
    table[2, 255] = 1
    assert not rows_equal(table)
