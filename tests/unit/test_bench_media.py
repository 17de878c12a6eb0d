"""The benchmark compares like with like: files that differ, pictures that do not."""

import io
import itertools

import numpy as np
from PIL import Image

from bench.media import distinct, make_jpeg


def test_distinct_files_are_one_picture() -> None:
    """Every file is another one to a cache, of equal length, and decodes to the same pixels."""
    jpeg = make_jpeg(64, 48, 0)
    files = list(itertools.islice(distinct(jpeg), 3))
    assert len({*files, jpeg}) == 4
    assert len({len(data) for data in files}) == 1
    expected = np.asarray(Image.open(io.BytesIO(jpeg)))
    for data in files:
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), expected)


def test_pictures_follow_the_seed() -> None:
    """The same seed gives the same file, another seed another one."""
    assert make_jpeg(64, 48, 1) == make_jpeg(64, 48, 1)
    assert make_jpeg(64, 48, 1) != make_jpeg(64, 48, 2)
