"""Tasks of today: whichever engine computes, a run is the same, and why it is not stacked is recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fairbloom.errors import FairbloomError
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.pooled import join

from .helpers import run, small
from .several import of_lines
from .test_engines import assert_same, ended

TASKS = "tests.simulation.several"


def changes_of(task: str, **more: Any) -> dict[str, Any]:
    plain = {"task": f"{TASKS}:{task}", "clients": 4, "num_rounds": 2, "method": "ditto", "batch_size": 3}
    return plain | {"local_epochs": 2, "learning_rate": 0.3, "fraction": 1.0} | more


def test_a_dataset_and_a_models_loss_give_the_numbers_of_tensors(tmp_path: Path) -> None:
    """Batches that are filled up to their own longest sequence, and losses that the model takes itself."""
    more = {"engine": "loop"}
    expected, *others = (
        ended(run(tmp_path / name, **changes_of(name, **more))) for name in ("masked", "collated", "of_itself")
    )
    for ours in others:
        assert_same(ours, expected, 1e-12)


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
