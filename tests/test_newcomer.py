"""A newcomer adds a method and a task, each in one file and one line (CONTRIBUTING.md); all commands know them."""

import csv
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.deploy.federation import federation
from tests.deploy.flower import flower

from .checkout import PACKAGES, ROOT, copy_packages

METHOD = '''
"""The newcomer's method."""

import numpy as np

from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy


class Mine(FairStrategy):
    """Clients with a high loss count more.

    Parameters
    ----------
    strength
        How much high losses count: 0 not at all.
    floor
        Number that is added to every loss.
    """

    needs = frozenset({"loss-before"})
    default_weighting = None

    def __init__(self, *, strength: NonNegative, floor: float = 0.1, **options):
        super().__init__(**options)
        self.strength, self.floor = strength, floor

    def weigh(self, cohort):
        weights = (self.floor + np.maximum(cohort.losses, 0.0)) ** self.strength
        return weights / weights.sum()
'''

TASK = '''
"""The newcomer's data: two clouds of points."""

from functools import partial

import torch
from torch.nn import Linear
from torch.nn.functional import cross_entropy

from fairbloom.protocol.streams import generator

from .task import Examples, Splits, Task


def load(setup, *, noise):
    def cloud(client, part, size):
        random = generator(setup.seed, "clouds", client, part)
        targets = torch.arange(size) % 2
        inputs = targets[:, None] + noise * torch.from_numpy(random.normal(size=(size, 2)))
        return Examples(inputs.float(), targets)

    def model():
        torch.manual_seed(setup.seed)
        return Linear(2, 2)

    return Task(
        clients=tuple(f"client-{i}" for i in range(setup.clients)),
        model=model,
        loss=partial(cross_entropy, reduction="none"),
        splits=lambda client: Splits(cloud(client, "train", 20), cloud(client, "test", 10)),
    )
'''

LINE_OF_TASK = """\
    TaskInfo("clouds", "Two clouds of points", "made up", "fairbloom.tasks.clouds:load", settings=(
        Parameter("noise", float, 0.5, "Standard deviation of a cloud", Range("[0, inf)")),)),
"""

CLIENTS, ROUNDS = 2, 2
OURS: dict[str, Any] = {"task": "clouds", "clouds.noise": 0.3, "method": "mine", "mine.strength": 2}
SETTINGS: dict[str, Any] = {"clients": CLIENTS, "num-rounds": ROUNDS, "fraction": 1.0, "device": "cpu"}


def added(file: Path, after: str, line: str) -> None:
    """Add a line to a file of the checkout."""
    text = file.read_text()
    assert text.count(after) == 1
    file.write_text(text.replace(after, after + line))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the newcomer has worked."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_packages(("fairbloom", *PACKAGES, "docs"), folder)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder)
    (folder / "strategies" / "mine.py").write_text(METHOD)
    added(folder / "strategies" / "__init__.py", "from .fedprox import FedProx\n", "from .mine import Mine\n")
    added(folder / "strategies" / "__init__.py", "    for method in (\n", "        Mine,\n")
    (folder / "tasks" / "clouds.py").write_text(TASK)
    added(folder / "tasks" / "known.py", "KNOWN = (\n", LINE_OF_TASK)
    subprocess.run([sys.executable, "-m", "docs.run_config"], cwd=folder, check=True)  # make settings
    return folder


@pytest.fixture(autouse=True)
def theirs(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process that is started import the newcomer's checkout."""
    monkeypatch.setenv("PYTHONPATH", str(checkout))


DRIVER = """
import contextlib, io, json, sys
from fairbloom.cli import main

answers = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["fairbloom", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""
"""Runs commands one after the other in one process, which imports everything once."""


def fairbloom(*commands: list[str], folder: Path) -> list[tuple[int, str, str]]:
    """Run commands; return the exit code, the output and the errors of each."""
    driver = [sys.executable, "-P", "-c", DRIVER, json.dumps(commands)]
    done = subprocess.run(driver, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def assignments(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def assert_it_is_theirs(run: Path) -> None:
    """The final model is that of the newcomer's task, and the settings are those that were given."""
    assert load_file(run / "model.safetensors")["weight"].shape == (2, 2)
    there = tomllib.loads((run / "config.toml").read_text())
    assert {key: there[key] for key in OURS} == OURS
    assert there["mine.floor"] == 0.1
    with (run / "clients.csv").open() as file:
        assert len(list(csv.DictReader(file))) == CLIENTS * ROUNDS


# In process ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_are_listed_with_what_they_have_of_their_own(tmp_path: Path) -> None:
    methods, tasks, defaults = fairbloom(["methods", "--json"], ["tasks"], ["settings", "--json"], folder=tmp_path)
    (method,) = (each for each in json.loads(methods[1]) if each["name"] == "mine")
    assert [(each["key"], each["default"]) for each in method["parameters"]] == [
        ("mine.strength", "required"),
        ("mine.floor", "0.1"),
    ]
    assert "clouds.noise (float at least 0, default 0.5) Standard deviation" in tasks[1]
    assert {"mine.strength": "", "mine.floor": 0.1, "clouds.noise": 0.5}.items() <= json.loads(defaults[1]).items()


@pytest.mark.slow
def test_they_are_run_and_a_finished_run_is_shown(tmp_path: Path) -> None:
    command = ["run", *assignments(SETTINGS | OURS), "--out", "a"]
    others = ["run", *assignments(SETTINGS | OURS | {"clouds.noise": 5.0}), "--out", "b"]
    first, again, noisy = fairbloom(command, command, others, folder=tmp_path)
    assert (first[0], first[2]) == (0, "")
    assert again == first
    assert noisy[0] == 0
    assert_it_is_theirs(tmp_path / "a")
    ours, theirs = (load_file(tmp_path / out / "model.safetensors")["weight"] for out in ("a", "b"))
    assert (ours != theirs).all()  # the task's own setting is heard


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"mine.strength": None},
        "method = 'mine' needs mine.strength (float at least 0: How much high losses count: 0 not at all), which has "
        "no default: give it by --set mine.strength=…",
    ),
    ({"mine.strength": -1}, "mine.strength = -1: allowed is float at least 0"),
    ({"mine.strength": "much"}, "mine.strength = 'much': allowed is float at least 0"),
    ({"clouds.noise": -1}, "clouds.noise = -1: allowed is float at least 0"),
    ({"task": "digits"}, "clouds.noise has no effect with task = 'digits': leave it out, or set task=clouds"),
    ({"method": "fedavg"}, "mine.strength has no effect with method = 'fedavg': leave it out, or set method=mine"),
    ({"model": "mlp"}, "model has no effect with task = 'clouds', which leaves no choice: leave it out"),
]


def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    given = [{k: v for k, v in (SETTINGS | OURS | changes).items() if v is not None} for changes, _ in REFUSED]
    commands = (["run", *assignments(settings), "--out", "a"] for settings in given)
    answers = fairbloom(*commands, folder=tmp_path)
    assert answers == [(2, "", f"error: {words}\n") for _, words in REFUSED]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_they_are_compared_with_others(tmp_path: Path) -> None:
    shared = {key: value for key, value in (SETTINGS | OURS).items() if key != "method"}
    words = ["compare", "--methods", "fedavg,mine", "--seeds", "1", "--jobs", "1", "--out", "a"]
    ((code, printed, errors),) = fairbloom([*words, *assignments(shared)], folder=tmp_path)
    assert (code, errors) == (0, "")
    assert "Mine" in printed
    assert_it_is_theirs(tmp_path / "a" / "runs" / "mine-seed0")


# Between processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_they_are_run_by_flower_on_ray(checkout: Path, tmp_path: Path) -> None:
    with flower(tmp_path / "home") as runtime:
        given = {**SETTINGS, **OURS, "out": str(tmp_path / "a")}
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        assert runtime.run("local", given, federation, app=checkout) == "finished:completed"
        assert_it_is_theirs(tmp_path / "a")
        del given["mine.strength"]
        assert (
            runtime.run("local", {**given, "out": str(tmp_path / "b")}, federation, app=checkout) == "finished:failed"
        )
        assert "needs mine.strength (float at least 0" in (tmp_path / "home" / "run.log").read_text()


@pytest.mark.slow
def test_they_are_run_by_deployed_clients(checkout: Path, tmp_path: Path) -> None:
    with federation(tmp_path / "home", CLIENTS) as there:
        names = [path.name for path in sorted((there.folder / "bundles").iterdir())]
        there.start_clients(*names)
        given = {**SETTINGS, **OURS, "out": str(tmp_path / "a")}
        there.submit(given, checkout)
    assert_it_is_theirs(tmp_path / "a")
