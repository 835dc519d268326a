"""The plain loop does what our engines do, so that their seconds can be compared."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmarks.plain import train_round
from benchmarks.workloads import Workload
from fairbloom.server.checkpoint import load_model
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task

SMALL = Workload("benchmarks.workloads:vectors", "logistic", clients=5, drawn=5, batch=0)


def test_the_plain_loop_and_a_run_end_with_the_same_model(tmp_path: Path) -> None:
    settings = Settings.of(
        {**SMALL.settings(num_rounds=3, learning_rate=0.5).run_config(), "engine": "loop", "out": str(tmp_path / "run")}
    )
    ours, _ = load_model(simulate(settings) / "model.safetensors")
    task = load_task(settings.run_config())
    model = task.model()
    parts = [TensorDataset(*task.splits(name).train[:]) for name in task.clients]
    before = {name: array.clone() for name, array in model.state_dict().items()}
    for _ in range(3):
        train_round(model, task, parts, settings)
    for name, array in model.state_dict().items():
        assert not torch.equal(array, before[name])
        np.testing.assert_allclose(ours[name], array.numpy(), rtol=1e-5, atol=1e-6)
