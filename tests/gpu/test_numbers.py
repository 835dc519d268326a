"""What a card computes: the numbers of the CPU, equal bits, convolutions in each precision, and
dropout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.tasks.optimizers import OF_PYTORCH
from tests.simulation.helpers import Outcome, rounds, run

pytestmark = pytest.mark.gpu

ENGINES = ("loop", "stacked")
TOLERANCE = 1e-4
SHORT = {"method": "fedavg", "num_rounds": 3, "batch_size": 10}
OWN = "tests.gpu.own"
DROPOUT = f"{OWN}:dropping"


def assert_close(folder: Path, other: Path) -> None:
    model = load_file(folder / "model.safetensors")
    expected = load_file(other / "model.safetensors")
    assert model.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=TOLERANCE, err_msg=name)


def compare_with_cpu(folder: Path, device: str, engine: str, **changes: Any) -> None:
    expected = run(folder / "cpu", engine="loop", device="cpu", **SHORT | changes)
    assert_close(run(folder / "card", engine=engine, device=device, **SHORT | changes), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", sorted(OF_PYTORCH))
def test_each_optimizer_equals_the_cpu(
    optimizer: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(
        tmp_path, device, engine, optimizer=optimizer, model="mlp", learning_rate=0.001
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["logistic", "cnn", f"{OWN}:group_normed", f"{OWN}:batch_normed"])
def test_each_kind_of_network_equals_the_cpu(
    model: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(tmp_path, device, engine, model=model)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "fedfv", "scaffold", "ditto"])
def test_each_kind_of_method_equals_the_cpu(
    method: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(tmp_path, device, engine, model="mlp", method=method)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["mlp", "cnn", DROPOUT])
def test_two_float32_runs_have_equal_bits(
    model: str, engine: str, device: str, tmp_path: Path
) -> None:
    first, second = (
        Outcome.of(run(tmp_path / name, engine=engine, device=device, model=model, batch_size=10))
        for name in ("first", "second")
    )
    assert not first.differences(second)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_convolutions_learn_digits_in_each_precision(
    precision: str, engine: str, device: str, tmp_path: Path
) -> None:
    folder = run(
        tmp_path / "run",
        engine=engine,
        device=device,
        model="cnn",
        precision=precision,
        method="fedavg",
        fraction=1.0,
        batch_size=10,
        learning_rate=0.1,
        partition="iid",
        num_rounds=8,
    )
    assert float(rounds(folder)[-1]["test_accuracy_of_global_model_mean"]) > 80.0


def test_dropout_draws_by_the_seed(device: str, tmp_path: Path) -> None:
    plain = {"device": device, "model": DROPOUT, "engine": "loop", "num_rounds": 2}
    one = Outcome.of(run(tmp_path / "one", seed=1, **plain))
    other = Outcome.of(run(tmp_path / "other", seed=2, **plain))
    assert "model" in one.differences(other)
