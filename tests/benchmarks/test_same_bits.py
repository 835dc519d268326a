"""The comparison of two checkouts notices a changed bit, and covers every method."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.same_bits import SETTINGS, first_difference
from fairbloom.strategies import METHODS


def write_run(folder: Path, weight: float, cell: str) -> Path:
    """Write a run folder; a model's metadata, clients' states and seconds differ between two."""
    (folder / "clients").mkdir(parents=True)
    (folder / "clients" / "1.safetensors").write_text(folder.name)
    arrays = {"w": np.array([weight, 2.0], np.float32)}
    save_file(arrays, folder / "model.safetensors", {"version": folder.name})
    (folder / "rounds.csv").write_text(f"loss,seconds\n{cell},{folder.name}\n")
    (folder / "terminal-0.txt").write_text(f"run folder: {folder}\n")
    return folder


@pytest.mark.parametrize(
    ("weight", "cell", "found"),
    [
        (1.0, "0.5", ""),
        (float(np.nextafter(np.float32(1), 2)), "0.5", "model.safetensors: w"),
        (1.0, "0.50", "rounds.csv: row 1, column loss"),
    ],
)
def test_a_changed_bit_is_found(tmp_path: Path, weight: float, cell: str, found: str) -> None:
    before = write_run(tmp_path / "old", 1.0, "0.5")
    after = write_run(tmp_path / "new", weight, cell)
    assert first_difference(before, after).rpartition(": ")[0] == found


def test_every_method_is_compared_and_names_are_unique() -> None:
    names = [setting.name for setting in SETTINGS]
    assert {*METHODS} <= {*names}
    assert len({*names}) == len(names)
