"""What a card computes: the numbers of the CPU, equal bits, convolutions in each precision, and
dropout.

Each precision on a card, and the flags that it leaves.

Augmentation and dropout on a card.

Steps recorded as CUDA graphs against ordinary ones, on a card.
"""

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
from fairbloom.tasks.optimizers import OF_PYTORCH
from tests.simulation.helpers import Outcome, rounds, run, table

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


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", sorted(OF_PYTORCH))
def test_each_optimizer_equals_the_cpu(
    optimizer: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(
        tmp_path, device, engine, optimizer=optimizer, model="mlp", learning_rate=0.001
    )


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["logistic", "cnn", f"{OWN}:group_normed", f"{OWN}:batch_normed"])
def test_each_kind_of_network_equals_the_cpu(
    model: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(tmp_path, device, engine, model=model)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "fedfv", "scaffold", "ditto"])
def test_each_kind_of_method_equals_the_cpu(
    method: str, engine: str, device: str, tmp_path: Path
) -> None:
    compare_with_cpu(tmp_path, device, engine, model="mlp", method=method)


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_dropout_draws_by_the_seed(device: str, tmp_path: Path) -> None:
    plain = {"device": device, "model": DROPOUT, "engine": "loop", "num_rounds": 2}
    one = Outcome.of(run(tmp_path / "one", seed=1, **plain))
    assert "model" in one.differences(Outcome.of(run(tmp_path / "other", seed=2, **plain)))


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_each_precision_learns_digits(tmp_path: Path, engine: str, precision: str) -> None:
    scores = {}
    for device, chosen in (("cpu", "float32"), ("cuda", precision)):
        folder = run(
            tmp_path / device,
            **{"device": device, "precision": chosen, "engine": engine},
            **{"method": "fedavg", "model": "mlp", "fraction": 1.0, "partition": "iid"},
        )
        last = table(folder / "rounds.csv")[-1]
        scores[device] = float(last["test_accuracy_of_global_model_mean"])
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=5.0)  # percent


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_float32_keeps_its_bits_after_another_precision(
    tmp_path: Path, engine: str, precision: str
) -> None:
    folders = [
        run(tmp_path / name, device="cuda", engine=engine, model="cnn", precision=chosen)
        for name, chosen in (("a", "float32"), ("b", precision), ("c", "float32"))
    ]
    first, rough, again = map(model_of, folders)
    assert first == again != rough
    assert not torch.backends.cudnn.benchmark


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ENGINES)
def test_float32_on_a_card_is_that_of_the_cpu(tmp_path: Path, engine: str) -> None:
    cpu, cuda = (
        load_file(run(tmp_path / device, device=device, engine=engine) / "model.safetensors")
        for device in ("cpu", "cuda")
    )
    for name, expected in cpu.items():
        np.testing.assert_allclose(cuda[name], expected, rtol=0, atol=1e-4)


DROPPED = "tests.simulation.test_stacked:Dropped"


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def engine_of(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["engine"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
def test_a_card_augments_as_the_cpu_does(tmp_path: Path, engine: str, augment: str) -> None:
    cpu, cuda = (
        weights_of(run(tmp_path / device, device=device, engine=engine, augment=augment))
        for device in ("cpu", "cuda")
    )
    for name, expected in cpu.items():
        np.testing.assert_allclose(cuda[name], expected, rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_dropout_on_a_card_has_equal_bits_twice(tmp_path: Path, engine: str) -> None:
    first, second = (
        run(tmp_path / name, device="cuda", engine=engine, model=DROPPED, num_rounds=3)
        for name in ("first", "second")
    )
    assert engine_of(first) == engine
    model = (first / "model.safetensors").read_bytes()
    assert model == (second / "model.safetensors").read_bytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_leaves_dropout_on_a_card_to_the_loop(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", device="cuda", model=DROPPED, fraction=1.0, num_rounds=1)
    assert engine_of(folder) == "loop"


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


@pytest.mark.gpu
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


@pytest.mark.gpu
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
    recorder.record(lambda: numbers.add_(1.0))()
    assert numbers.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.gpu
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
