"""What a card computes: the numbers of the CPU, equal bits, convolutions in each precision, and
dropout.

Each precision on a card, and the flags that it leaves.

Augmentation and dropout on a card.

Steps recorded as CUDA graphs against ordinary ones, on a card.

What stays on a card, what comes to it batch by batch, and several processes on one card.

A card at its limits: kills, models that do not fit, asserts, and memory that must come back.
"""

import gc
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from benchmarks.deployment import federation, names
from fairbloom.client.capture import CudaRecorder
from fairbloom.client.local import _load_for_device
from fairbloom.errors import FairbloomError
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import gram_matrices, weighted_sum
from fairbloom.server.settings import Settings
from fairbloom.simulation.choice import RECORDED
from fairbloom.simulation.memory import SHARE, rows_on_card, write_models
from fairbloom.simulation.run import simulate
from fairbloom.tasks.optimizers import OF_PYTORCH
from tests.simulation.helpers import ROOT, Outcome, model_bytes, rounds, run, small

ENGINES = ("loop", "stacked")
TOLERANCE = 1e-4
SHORT = {"method": "fedavg", "num_rounds": 3, "batch_size": 10}
OWN = "tests.gpu.own"
DROPOUT = f"{OWN}:dropping"
# These divide by small numbers, so that rounding grows: models are compared after one step, and
# after three rounds only the scores.
AMPLIFY = {"adam", "adamw", f"{OWN}:batch_normed"}


def assert_close(folder: Path, other: Path, tolerance: float = TOLERANCE) -> None:
    model = load_file(folder / "model.safetensors")
    expected = load_file(other / "model.safetensors")
    assert model.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=tolerance, err_msg=name)


def compare_with_cpu(folder: Path, device: str, engine: str, **changes: Any) -> None:
    expected = run(folder / "cpu", engine="loop", device="cpu", **SHORT | changes)
    found = run(folder / "card", engine=engine, device=device, **SHORT | changes)
    if AMPLIFY.isdisjoint(changes.values()):
        assert_close(found, expected)
    elif "num_rounds" in changes:
        assert_close(found, expected, 1e-6)
    else:
        scores = [
            float(rounds(each)[-1]["test_accuracy_of_global_model_mean"])
            for each in (found, expected)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=2.0)
        compare_with_cpu(folder / "step", device, engine, num_rounds=1, batch_size=0, **changes)


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
    assert "model" in Outcome.of(run(tmp_path / "one", seed=1, **plain)).differences(
        Outcome.of(run(tmp_path / "other", seed=2, **plain))
    )


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
    first, rough, again = map(model_bytes, folders)
    assert first == again != rough
    assert not torch.backends.cudnn.benchmark


DROPPED = "tests.simulation.test_stacked:Dropped"


def engine_of(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["engine"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
def test_a_card_augments_as_the_cpu_does(tmp_path: Path, engine: str, augment: str) -> None:
    cpu, cuda = (
        run(tmp_path / device, device=device, engine=engine, augment=augment)
        for device in ("cpu", "cuda")
    )
    assert_close(cuda, cpu)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_stacks_dropout_on_a_card(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", device="cuda", model=DROPPED, fraction=1.0, num_rounds=1)
    assert engine_of(folder) == "stacked"


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
    assert_close(recorded, ordinary, 1e-2 if "precision" in changes else 1e-4)
    assert_close(recorded, again, 0.0)


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
    assert_close(late, expected)


PLAIN = {"model": "mlp", "num_rounds": 3, "batch_size": 10}
ROWS = 9


@pytest.mark.gpu
def test_sums_of_updates_on_a_card_are_those_of_numpy(card: torch.device) -> None:
    random = np.random.default_rng(0)
    layout = Layout({"weight": random.normal(size=(700, 500)).astype(np.float32)})
    models = random.normal(size=(ROWS, layout.size)).astype(np.float32)
    (matrix,) = rows_on_card([layout], ROWS, card)
    tensors = {"weight": torch.from_numpy(models).view(ROWS, 700, 500).to(card)}
    write_models(matrix, range(ROWS), layout.slices, tensors)
    here, there = Updates(layout, models.copy()), Updates(layout, matrix)
    for each in (here, there):
        each.add_rows([{}] * ROWS)
        assert not each.screen(gram=True)
    np.testing.assert_array_equal(there.matrix[:, :], here.matrix)
    ends = (layout.size,)
    expected, found = (gram_matrices(each.vectors, ends, exact=True) for each in (here, there))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-6)
    weights = random.random(ROWS)
    found, expected = (weighted_sum(weights, each.vectors) for each in (there, here))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_updates_beyond_a_share_of_a_card_stay_outside(card: torch.device) -> None:
    layout = Layout({"weight": np.zeros(1_000_000, np.float32)})
    assert not rows_on_card(
        [layout], int(SHARE * torch.cuda.mem_get_info(card)[1] / (4 * layout.size)) + 1, card
    )


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_examples_that_do_not_fit_are_fetched_ahead(
    engine: str, card: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PLAIN | {"engine": engine, "device": str(card)}
    expected = Outcome.of(run(tmp_path / "there", **plain))
    monkeypatch.setattr("fairbloom.tasks.task.has_room", lambda device, size: False)
    _load_for_device.cache_clear()
    streamed = Outcome.of(run(tmp_path / "streamed", **plain))
    _load_for_device.cache_clear()
    assert not streamed.differences(expected)


@pytest.mark.gpu
def test_two_processes_on_one_card_give_equal_bits(card: torch.device, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    processes = [
        subprocess.Popen(command(small(folder, device=str(card), **PLAIN)), cwd=ROOT)
        for folder in folders
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    one, two = map(Outcome.of, folders)
    assert not one.differences(two)


ROUNDS = 60
# Bytes of the card that a test may use: a few of the wide models, not ten.
LIMIT = 600e6

# Bytes that may be kept after a run.
RETURNED = 1e6


def command(settings: Settings) -> list[str]:
    """Return the command of a run, which accepts only settings that have an effect."""
    words = [sys.executable, "-m", "fairbloom", "run", "--out", settings.out]
    usual = Settings.of({}).run_config()
    for key, value in settings.run_config().items():
        if key != "out" and value != usual.get(key):
            written = str(value).lower() if isinstance(value, bool) else value
            words += ["--set", f"{key}={written}"]
    return words


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_run_ends_with_the_same_bits(engine: str, device: str, tmp_path: Path) -> None:
    plain = {"device": device, "model": "mlp", "engine": engine, "num_rounds": ROUNDS}
    whole = Outcome.of(run(tmp_path / "whole", **plain))
    folder = tmp_path / "run"
    rows = folder / "rounds.csv"
    process = subprocess.Popen(command(small(folder, **plain)), cwd=ROOT)
    while process.poll() is None and not (rows.exists() and rows.read_bytes().count(b"\n") > 5):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not Outcome.of(run(folder, **plain)).differences(whole)


@pytest.fixture
def little_memory(card: torch.device) -> Iterator[torch.device]:
    """Let PyTorch use a small part of the card."""
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(card)
    torch.cuda.set_per_process_memory_fraction(LIMIT / total, card)
    yield card
    torch.cuda.set_per_process_memory_fraction(1.0, card)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_does_not_fit_is_reported(
    engine: str, little_memory: torch.device, tmp_path: Path
) -> None:
    with pytest.raises(FairbloomError, match="out of memory"):
        run(
            tmp_path / "run",
            engine=engine,
            device=str(little_memory),
            model="tests.gpu.own:too_wide",
        )


@pytest.mark.gpu
def test_clients_that_do_not_fit_at_once_are_computed_in_parts(
    little_memory: torch.device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {
        "device": str(little_memory),
        "model": "tests.gpu.own:wide",
        "method": "fedavg",
        "clients": 20,
        "fraction": 1.0,
        "num_rounds": 2,
        "evaluate_every": 0,
    }
    with caplog.at_level(logging.WARNING, "flwr"):
        parts = run(tmp_path / "stacked", engine="stacked", **plain)
    assert "more memory than is free" in caplog.text
    assert_close(parts, run(tmp_path / "loop", engine="loop", **plain))


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["wrong_first", "wrong_last"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_side_assert_ends_the_run_with_its_message(
    task: str, engine: str, card: torch.device, tmp_path: Path
) -> None:
    settings = small(
        tmp_path / "run",
        task=f"tests.gpu.own:{task}",
        model="",
        method="fedavg",
        fraction=1.0,
        device=str(card),
        engine=engine,
    )
    done = subprocess.run(command(settings), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode > 0, done.stdout
    assert "the GPU has stopped (CUDA error: device-side assert" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_memory_returns_to_its_start(
    model: str, engine: str, card: torch.device, tmp_path: Path
) -> None:
    used = list[int]()
    for number in range(3):  # the first run loads what a process keeps; the data of others leave
        run(
            tmp_path / f"{number}",
            engine=engine,
            device=str(card),
            model=model,
            batch_size=10,
            num_rounds=2,
            seed=number,
        )
        gc.collect()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_allocated(card))
    assert max(used) <= used[0] + RETURNED


@pytest.mark.gpu
def test_deployed_clients_give_the_numbers_of_the_cpu(
    device: str, scripts: Path, tmp_path: Path
) -> None:
    plain = {
        "clients": 2,
        "method": "fedavg",
        "model": "cnn",
        "fraction": 1.0,
        "num-rounds": 3,
        "evaluate-every": 0,
    }
    clients = names(2)
    deployed = tmp_path / "deployed"
    with federation(tmp_path / "home", len(clients), scripts) as there:
        there.start_clients(*clients)
        there.submit({**plain, "device": device, "out": str(deployed)})
    alone = {**plain, "device": "cpu", "engine": "loop", "out": str(tmp_path / "alone")}
    assert_close(deployed, simulate(Settings.of(alone)))
