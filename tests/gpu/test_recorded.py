"""Steps recorded as CUDA graphs against ordinary ones, on a card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fairbloom.client.capture import CudaRecorder
from fairbloom.simulation.choice import RECORDED
from tests.simulation.helpers import run

pytestmark = pytest.mark.gpu

OWN = "tests.gpu.own"
SHORT = {"method": "fedavg", "num_rounds": 3, "batch_size": 10}
BOTH = [
    {"model": "mlp", "momentum": 0.9, "weight_decay": 0.01},
    {"model": "mlp", "method": "ditto"},
    {"model": "mlp", "optimizer": "adam", "learning_rate": 0.001},
    {"model": f"{OWN}:group_normed"},
    {"model": f"{OWN}:group_normed", "learning_rate_decay": 0.5},
    {"model": f"{OWN}:group_normed", "precision": "bfloat16"},
    {"model": f"{OWN}:dropping"},
]
LOOP = [{"model": f"{OWN}:batch_normed"}]
STACKED = [
    {"model": "mlp", "method": "scaffold"},
    {"model": "mlp", "method": "fedprox"},
    {"model": "logistic", "batch_size": 0, "local_epochs": 4},
]


def recorded_in(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["recorded"])


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        *(("loop", each) for each in BOTH + LOOP),
        *(("stacked", each) for each in BOTH + STACKED),
    ],
    ids=str,
)
def test_recorded_steps_equal_ordinary_ones(
    engine: str,
    changes: dict[str, Any],
    card: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SHORT | changes | {"engine": engine, "device": str(card)}
    recorded = run(tmp_path / "recorded", **settings)
    assert recorded_in(recorded) == RECORDED
    again = run(tmp_path / "again", **settings)
    for module in ("client.capture", "simulation.stacked.arrays"):
        name = f"fairbloom.{module}.find_unsupported"
        monkeypatch.setattr(name, lambda *_, **_named: "not here")
    ordinary = run(tmp_path / "ordinary", **settings)
    assert recorded_in(ordinary) == "not here"
    arrays = load_file(recorded / "model.safetensors")
    repeated = load_file(again / "model.safetensors")
    tolerance = 1e-2 if "precision" in changes else 1e-4
    for name, expected in load_file(ordinary / "model.safetensors").items():
        np.testing.assert_allclose(arrays[name], expected, rtol=0, atol=tolerance, err_msg=name)
        np.testing.assert_array_equal(arrays[name], repeated[name], err_msg=name)


def test_a_failed_capture_leaves_a_usable_card(card: torch.device) -> None:
    recorder = CudaRecorder(card)
    numbers = torch.ones(3, device=card)
    torch.rand(3, device=card)
    state = torch.cuda.get_rng_state(card)
    stream = torch.cuda.current_stream(card)
    recorder.warm_up(lambda: numbers * 2.0)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: numbers.sum().item())
    assert torch.cuda.current_stream(card) == stream
    drawn = torch.rand(3, device=card)
    torch.cuda.set_rng_state(state, card)
    assert torch.equal(torch.rand(3, device=card), drawn)
    replay = recorder.record(lambda: numbers.add_(1.0))
    replay()
    assert numbers.tolist() == [2.0, 2.0, 2.0]


def test_a_late_failure_is_recorded(
    card: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SHORT | {"model": f"{OWN}:group_normed", "device": str(card), "engine": "stacked"}
    expected = run(tmp_path / "recorded", **settings)
    record = CudaRecorder.record
    calls = list[int]()

    def fail_once(recorder: CudaRecorder, step: Callable[[], Any]) -> Callable[[], Any]:
        def wait() -> Any:
            torch.cuda.synchronize(card)
            return step()

        calls.append(len(calls))
        return record(recorder, wait if len(calls) == 2 else step)

    monkeypatch.setattr(CudaRecorder, "record", fail_once)
    late = run(tmp_path / "late", **settings)
    assert "captur" in recorded_in(late)
    arrays = load_file(late / "model.safetensors")
    for name, array in load_file(expected / "model.safetensors").items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-4, err_msg=name)
