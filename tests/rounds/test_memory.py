"""A round's updates lie in memory or in a file: its numbers are the same to the bit."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.rounds import memory, updates
from fairbloom.rounds.clients import Trained
from fairbloom.rounds.memory import GIGABYTE, Memory
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.updates import (
    CHUNK_COLUMNS,
    Layout,
    Updates,
    Vectors,
    combine,
    gram_matrix,
    weighted_sum,
)

from .helpers import squared_norms

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
            matrix = Memory(gigabytes).matrix(m, d, np.float32)
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
    layout = Layout({"w": np.zeros(1000, np.float32)})

    def in_files(gigabytes: float, snapshots: bool) -> list[bool]:
        none = Trained.empty(
            layout, refused=Refusals(1), second="snapshot" if snapshots else "", rows=5, memory=Memory(gigabytes)
        )
        return [isinstance(each.matrix, np.memmap) for each in (none.updates, none.second) if each is not None]

    size = 5 * 1000 * 4 / GIGABYTE
    assert in_files(size, snapshots=False) == [False]
    assert in_files(size, snapshots=True) == [True, True]
    assert in_files(2 * size, snapshots=True) == [False, False]


def test_the_file_has_no_name_while_it_is_used(tmp_path: Path) -> None:
    matrix = Memory(TINY, tmp_path).matrix(3, 5, np.float32)
    matrix[:] = 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_the_round_begins(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(FairbloomError, match=r"memory = 0\.5 allows.*has no room for them.*raise memory") as error:
        Memory(0.5, tmp_path).matrix(1000, 2 * free // 4000, np.float32)
    assert str(tmp_path) in str(error.value)
    assert shutil.disk_usage(tmp_path).free > free // 2


# The memory that there is -------------------------------------------------------------------------------------------


CONTAINERS: list[tuple[str | None, dict[str, str], int | None]] = [
    ("0::/\n", {"memory.max": "3000000"}, 3_000_000),
    ("0::/\n", {"memory.max": "max"}, None),
    ("0::/system.slice/a.service\n", {"system.slice/a.service/memory.max": "4000000"}, 4_000_000),
    ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000000"}, 5_000_000),
    ("2:cpu:/\n", {"memory.max": "1"}, None),
    (None, {}, None),
]
"""A process's groups, the files of their limits, and the bytes that it may use; None: all that the machine has."""


def test_half_of_the_memory_is_half_of_what_a_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "physical_memory", memory.physical_memory.__wrapped__)  # it looks only once
    for number, (groups, limits, expected) in enumerate(CONTAINERS):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.setattr(memory, "CGROUPS", place / "cgroup")
        monkeypatch.setattr(memory, "HIERARCHY", place / "sys")
        if groups is not None:
            (place / "cgroup").write_text(groups)
        for file, limit in limits.items():
            (place / "sys" / file).parent.mkdir(parents=True, exist_ok=True)
            (place / "sys" / file).write_text(f"{limit}\n")
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert memory.physical_memory() == (expected or machine)
        fits, too_large = ((expected or 8_000_000) // 2 + more for more in (0, 1))
        assert not isinstance(Memory().matrix(1, fits, np.uint8), np.memmap)
        assert isinstance(Memory().matrix(1, too_large, np.uint8), np.memmap) == (expected is not None)
