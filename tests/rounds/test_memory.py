"""A round's models lie in memory, or in a file beyond a budget; test_rows.py has that the numbers are the same."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds import memory
from fairbloom.rounds.memory import GIGABYTE, Memory

TINY = 1e-9
"""A budget of one byte."""


def test_the_budget_is_for_all_matrices_of_a_round() -> None:
    size = 5 * 1000 * 4 / GIGABYTE
    for gigabytes, of, in_file in ((size, 1, False), (size, 2, True), (2 * size, 2, False)):
        assert isinstance(Memory(gigabytes).matrix(5, 1000, np.float32, of=of), np.memmap) == in_file


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


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "3000000"}, 3_000_000),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/system.slice/a.service\n", {"system.slice/a.service/memory.max": "4000000"}, 4_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000000"}, 5_000_000),
        ("2:cpu:/\n", {"memory.max": "1"}, None),
        (None, {}, None),
    ],
)
def test_half_of_the_memory_is_half_of_what_a_container_may_use(
    groups: str | None, limits: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "HIERARCHY", tmp_path / "sys")
    monkeypatch.setattr(memory, "physical_memory", memory.physical_memory.__wrapped__)  # it looks only once
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for place, limit in limits.items():
        (tmp_path / "sys" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / place).write_text(f"{limit}\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.physical_memory() == (expected or machine)
    fits, too_large = ((expected or 8_000_000) // 2 + more for more in (0, 1))
    assert not isinstance(Memory().matrix(1, fits, np.uint8), np.memmap)
    assert isinstance(Memory().matrix(1, too_large, np.uint8), np.memmap) == (expected is not None)
