"""A card at its limits: kills, models that do not fit, asserts, and memory that must come back."""

import gc
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.deployment import federation, names
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import ROOT, Outcome, run, small

from .test_numbers import ENGINES, assert_close

pytestmark = pytest.mark.gpu

ROUNDS = 60
LIMIT = 600e6
"""Bytes of the card that a test may use: a few of the wide models, not ten."""

RETURNED = 1e6
"""Bytes that may be kept after a run."""


def command(settings: Settings) -> list[str]:
    """Return the command of a run, which accepts only settings that have an effect."""
    words = [sys.executable, "-m", "fairbloom", "run", "--out", settings.out]
    usual = Settings.of({}).run_config()
    for key, value in settings.run_config().items():
        if key != "out" and value != usual.get(key):
            written = str(value).lower() if isinstance(value, bool) else value
            words += ["--set", f"{key}={written}"]
    return words


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


@pytest.mark.parametrize(
    ("task", "words"),
    [("wrong_first", "device-side assert"), ("wrong_last", "the GPU has stopped")],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_side_assert_ends_the_run_with_its_message(
    task: str, words: str, engine: str, card: torch.device, tmp_path: Path
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
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_memory_returns_to_its_start(
    model: str, engine: str, card: torch.device, tmp_path: Path
) -> None:
    used = list[int]()
    for number in range(3):  # the first run loads what a process keeps
        run(
            tmp_path / f"{number}",
            engine=engine,
            device=str(card),
            model=model,
            batch_size=10,
            num_rounds=2,
        )
        gc.collect()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_allocated(card))
    assert used[2] <= used[1] + RETURNED


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
