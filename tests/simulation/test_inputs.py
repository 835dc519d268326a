"""Tasks of today: whichever engine computes, a run is the same, and why it is not stacked is recorded."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fairbloom.errors import FairbloomError
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.pooled import join

from .helpers import run, small, without_seconds
from .several import of_lines


def changes_of(task: str) -> dict[str, Any]:
    return {
        **{"task": f"tests.simulation.several:{task}", "clients": 4, "num_rounds": 2, "method": "ditto"},
        **{"batch_size": 3, "local_epochs": 2, "learning_rate": 0.3, "fraction": 1.0},
    }


def test_a_dataset_and_a_models_loss_give_the_numbers_of_tensors(tmp_path: Path) -> None:
    """Batches that are filled up to their own longest sequence, and losses that the model takes itself."""
    names = ("masked", "collated", "of_itself")
    expected, *others = (run(tmp_path / name, engine="loop", **changes_of(name)) for name in names)
    for ours, name in product(others, ("rounds.csv", "clients.csv")):
        for row, due in zip(without_seconds(ours / name), without_seconds(expected / name), strict=True):
            assert row.keys() == due.keys()
            assert all(row[key] == due[key] or float(row[key]) == pytest.approx(float(due[key]), 1e-12) for key in due)


def test_tensors_and_a_dataset_are_not_pooled() -> None:
    task = load_task(small("", **changes_of("masked")).run_config())
    part = task.splits("client-0").train
    assert isinstance(part, Examples)
    with pytest.raises(FairbloomError, match="some clients' examples are tensors, and others' are of a Dataset"):
        join([part, of_lines(part)])


def test_weights_in_bfloat16_are_averaged_in_float32(tmp_path: Path) -> None:
    model = load_file(
        run(tmp_path / "run", model="tests.client.nets:BFloat", engine="loop", num_rounds=2) / "model.safetensors"
    )
    assert {array.dtype for array in model.values()} == {np.dtype(np.float32)}
    rounded = {name: torch.from_numpy(array).bfloat16().float().numpy() for name, array in model.items()}
    assert any((rounded[name] != array).any() for name, array in model.items())
