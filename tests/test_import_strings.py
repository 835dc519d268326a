"""A task and a method in a user's files, named by import strings wherever names can be given."""

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from fairbloom.imports import imported
from fairbloom.strategies import FedFV

from .commands import fairbloom
from .simulation.helpers import table

THEIRS = '''
"""Somebody's task and method."""

from functools import partial

import numpy as np
import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import Examples, Score, Splits, Task


def slopes(setup, *, noise: float = 0.1):
    """Lines of different slopes, one a client.

    Parameters
    ----------
    noise : float at least 0, default 0.1
        Standard deviation of the answers.
    """
    if noise < 0:
        raise FairbloomError(f"slopes.noise = {noise}: it must be at least 0")

    def points(client, part, size):
        random = generator(setup.seed, "slopes", client, part)
        inputs = torch.from_numpy(random.normal(size=(size, 1))).float()
        errors = torch.from_numpy(random.normal(size=(size, 1))).float()
        return Examples(inputs, inputs * (1 + int(client[-1])) + noise * errors)

    def model():
        with torch.random.fork_rng():
            torch.manual_seed(setup.seed)
            return torch.nn.Linear(1, 1)

    return Task(
        clients=tuple(f"site-{i}" for i in range(setup.clients)),
        model=model,
        loss=lambda outputs, targets: (outputs - targets).square().sum(dim=1),
        splits=lambda client: Splits(points(client, "train", 20), points(client, "test", 10)),
        scores={
            Score("mae", higher_is_better=False): lambda outputs, targets: (
                (outputs - targets).abs().mean(dim=1)
            )
        },
    )


class WorstHalf(FairStrategy):
    """The mean of the share of the clients with the highest loss.

    Parameters
    ----------
    share : float in (0, 1], default 0.5
        Share of the clients that count.
    """

    needs = frozenset({"loss-before"})

    def __init__(self, *, share: float = 0.5, **options):
        super().__init__(**options)
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share!r}")
        self.share = share

    def weigh(self, cohort):
        worst = np.argsort(cohort.losses)[-max(round(self.share * cohort.size), 1) :]
        return np.isin(np.arange(cohort.size), worst) / len(worst)
'''

CLIENTS = 4
ROUNDS = 3
OURS: dict[str, Any] = {"task": "theirs:slopes", "slopes.noise": 0.2, "method": "theirs:WorstHalf"}
SETTINGS: dict[str, Any] = {"clients": CLIENTS, "num-rounds": ROUNDS, "learning-rate": 0.05}
SETTINGS |= {"fraction": 0.5, "device": "cpu"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "theirs.py").write_text(THEIRS)
    return tmp_path


def words_of(settings: Mapping[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def assert_it_is_theirs(run: Path) -> None:
    """Assert that a run has their task, their method and their share of 0.25."""
    assert load_file(run / "model.safetensors")["weight"].shape == (1, 1)
    there = tomllib.loads((run / "config.toml").read_text())
    assert {key: there[key] for key in OURS} == OURS
    assert there["worsthalf.share"] == 0.25
    assert json.loads((run / "scores.json").read_text())[0]["higher_is_better"] is False
    rows = table(run / "clients.csv")
    last = table(run / "rounds.csv")[-1]
    assert len(rows) == CLIENTS * ROUNDS
    errors = [float(row["test_mae_of_global_model"]) for row in rows[-CLIENTS:]]
    assert float(last["test_mae_of_global_model_worst"]) == max(errors)
    assert float(last["test_mae_of_global_model_best"]) == min(errors)


def test_both_run_in_the_directory_of_their_file(here: Path) -> None:
    done = fairbloom(
        here, "run", *words_of(SETTINGS | OURS | {"worsthalf.share": 0.25}), "--out", "a"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_it_is_theirs(here / "a")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"method": "theirs:WorstHlf"},
            "method = 'theirs:WorstHlf': theirs has no WorstHlf; it has ",
        ),
        (
            {"method": "their:WorstHalf"},
            "method = 'their:WorstHalf': there is no module their, neither in",
        ),
        (
            {"method": "theirs:np"},
            "method = 'theirs:np': it is not a subclass of fairbloom.strategies.FairStrategy",
        ),
        (
            {"task": "theirs:torch"},
            "task = 'theirs:torch': it is a module; a task is a function, or class",
        ),
        (
            {"task": "theirs:WorstHalf"},
            "task = 'theirs:WorstHalf': it takes no argument; a task is a function, or class",
        ),
        ({"worsthalf.share": 2.0}, "share must be in (0, 1], got 2.0 (worsthalf.share = 2.0)"),
        (
            {"worsthalf.shr": 0.5},
            "unknown setting worsthalf.shr = 0.5; did you mean worsthalf.share?",
        ),
        ({"slopes.noise": "much"}, "slopes.noise = 'much': allowed is float"),
        ({"slopes.noise": -1.0}, "slopes.noise = -1.0: it must be at least 0"),
        ({"slopes.nose": 1}, "unknown setting slopes.nose = 1; did you mean slopes.noise?"),
        ({"data-dir": "/nowhere/at/all"}, "data-dir = '/nowhere/at/all'"),
        ({"data-dir": "a" * 3000}, "a: no file can have so long a name: give a shorter one"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(
    here: Path, changed: dict[str, Any], words: str
) -> None:
    done = fairbloom(here, "run", *words_of({**SETTINGS, **OURS, **changed}), "--out", "a")
    assert (done.returncode, done.stdout) == (2, ""), changed
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (here / "a").exists()


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        # with its traceback
        ("raise RuntimeError('theirs alone')", 1, ("theirs.py", "RuntimeError: theirs alone")),
        (
            *("import no_such_library", 2),
            ("theirs imports no_such_library, which is not installed here: install it",),
        ),
    ],
)
def test_an_error_in_their_module_is_told(
    here: Path, code: str, status: int, words: tuple[str, ...]
) -> None:
    (here / "theirs.py").write_text(code)
    done = fairbloom(here, "run", *words_of({**SETTINGS, **OURS}), "--out", "a")
    assert done.returncode == status
    assert [each for each in words if each not in done.stderr] == []


def test_an_import_string_may_name_an_attribute() -> None:
    assert imported("method", "fairbloom.strategies:FedFV.weigh") is FedFV.weigh


def test_the_current_folder_goes_before_installed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, word in (("installed", "theirs"), ("here", "mine")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "twice_there.py").write_text(f"word = {word!r}\n")
    monkeypatch.setattr(
        sys, "path", [*sys.path, str(tmp_path / "installed"), str(tmp_path / "here")]
    )
    monkeypatch.chdir(tmp_path / "here")
    assert imported("task", "twice_there:word") == "mine"
    assert sys.path.count(str(tmp_path / "here")) == 1
