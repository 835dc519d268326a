"""The format of MNIST's files."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbloom.errors import FairbloomError
from fairbloom.tasks import load_task
from fairbloom.tasks.datasets.pictures.formats import read_idx
from tests.originals import needs

from . import made

ORIGINALS = needs("MNIST/raw/train-images-idx3-ubyte")


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, min_side=0, max_side=5)))
def test_an_array_comes_out_as_it_went_in(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = made.idx(tmp_path_factory.mktemp("idx") / "file", array)
    read = read_idx(path)
    assert read.dtype == np.uint8
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)


@given(cut=st.integers(1, 40))
def test_a_file_that_is_cut_short_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = made.idx(tmp_path_factory.mktemp("idx") / "file", np.ones((3, 2, 4), np.uint8))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FairbloomError, match="is no IDX file of bytes, or is cut short: put the original"):
        read_idx(path)


WHOLE = bytes((0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b\x08\x00" + WHOLE,  # still compressed
        WHOLE + b"\x00",  # too long
        bytes((0, 0, 9)) + WHOLE[3:],  # signed bytes
        bytes((0, 0, 13)) + WHOLE[3:],  # floats
        bytes((1, 0, 8)) + WHOLE[3:],
        bytes((0, 0, 8, 0)),  # no dimension
        bytes((0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255)) + bytes(100),  # more than there can be
        bytes((0, 0, 8, 3)) + (1 << 31).to_bytes(4) * 2 + (4).to_bytes(4),  # its size overflows to 0 in 64 bits
        bytes((0, 0, 8, 200)) + bytes(20),  # more dimensions than there is file
        b"<html>no such page</html>",
    ],
)
def test_a_file_of_something_else_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(FairbloomError, match="train-images-idx3-ubyte is no IDX file of bytes"):
        read_idx(path)


@ORIGINALS
def test_the_real_mnist_is_read_as_it_is_known() -> None:
    task = load_task({"task": "mnist", "mnist.test": "official", "mnist.standardise": "none", "partition": "class"})
    sizes = {name: tuple(map(len, task.splits(name))) for name in task.clients}
    assert sizes["one"] == (6742, 1135)
    assert np.array(list(sizes.values())).sum(axis=0).tolist() == [60000, 10000]
    images, labels = task.splits("five").train[0:10]
    assert Counter(labels.tolist()) == {5: 10}
    assert images.shape[1:] == (1, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
