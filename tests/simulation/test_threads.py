"""A run computes with one thread, or with as many as it is set to: repeated, the same bits."""

from pathlib import Path

import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.experiments.studies import pool
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.settings import Settings
from fairbloom.simulation import run as running
from fairbloom.simulation.run import simulate

from .helpers import (
    Outcome,
    StoppedError,
    assert_same_model,
    checkpoints_every,
    run,
    small,
    stop_after,
)

# On a busy machine each step of two threads takes long, as one waits for the other.
SHORT = {
    "method": "fedavg",
    "num_rounds": 2,
    "clients": 40,
    "fraction": 0.05,
    "fraction_evaluate": 0.05,
}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_has_its_threads_and_gives_them_back(tmp_path: Path, threads: int) -> None:
    seen = set()
    torch.set_num_threads(2)
    try:
        simulate(
            small(tmp_path / "run", threads=threads),
            lambda recorded: seen.add(torch.get_num_threads()),
        )
        assert (seen, torch.get_num_threads()) == ({threads}, 2)
        with pytest.raises(StoppedError):
            simulate(small(tmp_path / "other", threads=threads), stop_after(1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("engine", "model"), [("loop", "cnn"), ("stacked", "mlp")])
def test_threads_repeat_and_resume_to_the_same_bits(
    tmp_path: Path, engine: str, model: str
) -> None:
    settings = {**SHORT, "engine": engine, "model": model}
    one, two, again = (
        run(tmp_path / name, threads=threads, **settings)
        for name, threads in (("one", 1), ("two", 2), ("again", 2))
    )
    with checkpoints_every(1), pytest.raises(StoppedError):
        simulate(small(tmp_path / "cut", threads=2, **settings), stop_after(1))
    cut = run(tmp_path / "cut", threads=2, **settings)
    assert Outcome.of(two) == Outcome.of(again) == Outcome.of(cut)
    assert_same_model(one, two)


def test_a_continued_run_keeps_its_threads(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        simulate(small(tmp_path / "run", threads=2, **SHORT), stop_after(1))
    with pytest.raises(FairbloomError, match=r"threads"):
        run(tmp_path / "run", **SHORT)
    run(tmp_path / "run", threads=2, **SHORT)


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_threads_are_refused_on_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(running, "choose_device", lambda named: torch.device(device))
    with pytest.raises(SettingsError, match=f"threads = 2 has no effect on the device {device}.*"):
        run(tmp_path / "run", threads=2)
    assert not (tmp_path / "run").exists()


def test_threads_are_refused_with_deployed_clients() -> None:
    Settings.of({"threads": 1}).check_deployed()
    with pytest.raises(SettingsError, match=r"threads = 2: .*OMP_NUM_THREADS"):
        Settings.of({"threads": 2}).check_deployed()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "many"])
def test_a_number_of_threads_is_at_least_one(threads: object) -> None:
    with pytest.raises(SettingsError, match=r"threads = .*int at least 1"):
        Settings.of({"threads": threads})


@pytest.mark.parametrize(
    ("threads", "runs", "jobs", "remedy"),
    [
        (1, 9, 9, 0),  # as many runs as are asked for
        (2, 4, 2, 0),
        (2, 4, 3, 2),
        (3, 4, 2, 1),
        (9, 4, 2, 1),
        (9, 4, 1, 0),  # a run that was begun on more processors continues
        (9, 1, 4, 0),
        (2, 2, 9, 0),
    ],
)
def test_runs_side_by_side_have_no_more_threads_than_processors(
    monkeypatch: pytest.MonkeyPatch, threads: int, runs: int, jobs: int, remedy: int
) -> None:
    monkeypatch.setattr(pool, "processors_here", lambda: 4)
    study = {f"runs/{seed}": small("run", seed=seed) for seed in range(1, runs)}
    study["runs/0"] = small("run", threads=threads)
    if not remedy:
        pool.check_threads(study, jobs)
        return
    with pytest.raises(SettingsError, match=f"threads = {threads}: .* set --jobs {remedy},"):
        pool.check_threads(study, jobs)
    pool.check_threads(study, remedy)
