"""A round's updates lie in memory or in a file: its numbers are the same to the bit."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.rounds import updates
from fairbloom.rounds.memory import GIGABYTE, empty_matrix
from fairbloom.rounds.updates import (
    CHUNK_COLUMNS,
    Layout,
    Updates,
    Vectors,
    combine,
    weighted_sum,
)

from .helpers import gram_matrix, squared_norms

TINY = 1e-9
"""A budget of one byte."""


def flat_models(seed: int, m: int, d: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, d)).astype(np.float32)


def taken_in(matrix: np.ndarray, models: np.ndarray) -> Updates:
    """Return the models as updates of zero, one and then the others."""
    stored = Updates(Layout({"w": np.zeros(models.shape[1], np.float32)}), matrix)
    matrix[:] = models
    stored.add_rows([{}])
    stored.add_rows([{}] * (len(models) - 1))
    assert stored.screen(gram=False) == {}
    return stored


@given(
    seed=st.integers(0, 99),
    m=st.integers(2, 5),
    d=st.sampled_from((1, CHUNK_COLUMNS - 1, CHUNK_COLUMNS, 3 * CHUNK_COLUMNS + 5)),
    few=st.booleans(),
)
def test_updates_in_a_file_have_the_bits_of_those_in_memory(seed: int, m: int, d: int, few: bool) -> None:
    models, c, own = flat_models(seed, m, d), np.random.default_rng(seed).normal(size=m + 1), flat_models(7, 1, d)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "EXACT_NUMBERS", 10**9 if few else 0)
        for gigabytes in (TINY, 1.0):
            matrix = empty_matrix(m, d, np.float32, gigabytes)
            assert isinstance(matrix, np.memmap) == (gigabytes == TINY)
            stored = taken_in(matrix, models)
            kept = Vectors.of(own[0])
            everything = Vectors.below([stored.vectors, kept])
            after, counts = np.ones(d, np.float32), np.arange(1.0, m + 1)
            weighted_sum(c, everything, into=after)
            model = stored.model_after(c[:m], stored.vectors, counts / counts.sum(), counts)
            stored.remove(0)
            results.append(
                [
                    gram_matrix(everything).tobytes(),
                    gram_matrix(stored.vectors, exact=True).tobytes(),
                    squared_norms(stored.vectors).tobytes(),
                    after.tobytes(),
                    model["w"].tobytes(),
                    combine(np.eye(m - 1)[0], stored.vectors).blocks[0][:].tobytes(),
                ]
            )
    assert results[0] == results[1]


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
