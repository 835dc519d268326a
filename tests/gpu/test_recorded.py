"""Steps recorded as CUDA graphs against ordinary ones, on a card."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fairbloom.simulation.choice import RECORDED
from tests.simulation.helpers import run

pytestmark = pytest.mark.gpu

OWN = "tests.gpu.own"
SHORT = {"method": "fedavg", "num_rounds": 3, "batch_size": 10, "engine": "loop"}


def recorded_in(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["recorded"])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "mlp", "momentum": 0.9, "weight_decay": 0.01},
        {"model": "mlp", "method": "ditto"},
        {"model": "mlp", "optimizer": "adam", "learning_rate": 0.001},
        {"model": f"{OWN}:group_normed"},
        {"model": f"{OWN}:batch_normed"},
    ],
    ids=str,
)
def test_recorded_steps_equal_ordinary_ones(
    changes: dict[str, Any], card: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = run(tmp_path / "recorded", device=str(card), **SHORT | changes)
    assert recorded_in(recorded) == RECORDED
    again = run(tmp_path / "again", device=str(card), **SHORT | changes)
    monkeypatch.setattr("fairbloom.client.capture.find_unsupported", lambda *_, **_kept: "not here")
    ordinary = run(tmp_path / "ordinary", device=str(card), **SHORT | changes)
    assert recorded_in(ordinary) == "not here"
    arrays = load_file(recorded / "model.safetensors")
    repeated = load_file(again / "model.safetensors")
    for name, expected in load_file(ordinary / "model.safetensors").items():
        np.testing.assert_allclose(arrays[name], expected, rtol=0, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(arrays[name], repeated[name], err_msg=name)


def test_a_step_that_draws_runs_without_a_graph(card: torch.device, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", device=str(card), model=f"{OWN}:dropping", **SHORT)
    assert "draws random numbers" in recorded_in(folder)
