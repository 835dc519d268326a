"""A round's updates lie in memory or in a file: its numbers are the same to the bit."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds.memory import GIGABYTE, empty_matrix

TINY = 1e-9
"""A budget of one byte."""


def test_the_budget_is_for_all_matrices_of_a_round() -> None:
    size = 5 * 1000 * 4 / GIGABYTE
    for gigabytes, of, in_file in ((size, 1, False), (size, 2, True), (2 * size, 2, False), (0.0, 2, False)):
        assert isinstance(empty_matrix(5, 1000, np.float32, gigabytes, of=of), np.memmap) == in_file


def test_the_file_has_no_name_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = empty_matrix(3, 5, np.float32, TINY)
    matrix[:] = 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_the_round_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(FairbloomError, match=r"memory = 0\.5 allows.*has no room for them.*raise memory") as error:
        empty_matrix(1000, 2 * free // 4000, np.float32, 0.5)
    assert str(tmp_path) in str(error.value)
    assert shutil.disk_usage(tmp_path).free > free // 2
