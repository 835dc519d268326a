"""`fairbloom new` writes an app that runs: its names, its dependencies, what travels with it, and
what it promises."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from packaging.requirements import Requirement

from fairbloom import __version__
from fairbloom.protocol.settings import Mark, marked
from fairbloom.rounds.round import Round
from fairbloom.scaffold.new import TEMPLATE
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, FedMGDAPlus
from tests.experiments.helpers import ROOT, fairbloom

OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def app(here: Path) -> Iterator[Path]:
    assert fairbloom("new", "my-hearts") == 0
    yield here / "my-hearts"
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_hearts"]:
        del sys.modules[name]


def project(app: Path) -> dict:
    return tomllib.loads((app / "pyproject.toml").read_text())


# Names --------------------------------------------------------------------------------------------


def test_the_app_has_its_name_and_nothing_of_the_templates(
    app: Path, subtests: pytest.Subtests
) -> None:
    files = {str(file.relative_to(app)) for file in app.rglob("*") if file.is_file()}
    assert files == {
        *("pyproject.toml", "README.md", ".gitignore", "tests/test_app.py"),
        *(
            f"my_hearts/{name}.py"
            for name in ("__init__", "__main__", "task", "client_app", "server_app")
        ),
    }
    for file in files:
        with subtests.test(file=file):
            assert "my_app" not in (app / file).read_text()
            assert "my-app" not in (app / file).read_text()
    assert [entry.name for entry in app.parent.iterdir()] == ["my-hearts"]


NO_NAME = (
    "is not a valid app name: use up to 32 lower-case letters and digits, words joined by hyphens"
)
WRONG_NAMES = {
    **{
        name: f"{name!r} {NO_NAME}"
        for name in ("", "../app", "My-App", "my_app", "2-apps", "app-", "a" * 33)
    },
    **{name: f"a module {name} is installed already" for name in ("fairbloom", "flwr", "test")},
    "class": (
        "'class' is a keyword of Python, which cannot be the name of a package: choose another"
        " name, for example my-class"
    ),
    "torch": (
        "'torch': a module torch is installed already, and your app would hide it: choose another"
        " name, for example my-torch"
    ),
}


def test_a_name_that_will_not_do_is_said_and_nothing_is_written(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    for name, said in WRONG_NAMES.items():
        with subtests.test(name=name, said=said):
            assert fairbloom("new", name) == 2
            assert said in capsys.readouterr().err
            assert not list(here.iterdir())


def test_what_is_there_already_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hearts").write_text("years of work")
    assert fairbloom("new", "hearts") == 2
    assert "hearts exists already: choose another name" in capsys.readouterr().err
    assert (here / "hearts").read_text() == "years of work"


def test_a_directory_that_takes_no_files_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    assert fairbloom("new", "hearts") == 2
    assert (
        "hearts cannot be written in this directory: No such file or directory"
        in capsys.readouterr().err
    )
    os.chdir(here)


# What it asks for, and what travels ---------------------------------------------------------------


def test_its_dependencies_are_pinned_as_ours(subtests: pytest.Subtests) -> None:
    """The version of Flower is the one that real nodes need: an app may be deployed."""
    ours = {Requirement(each).name: Requirement(each) for each in OURS}
    theirs = {
        each.name: each for each in map(Requirement, project(TEMPLATE)["project"]["dependencies"])
    }
    assert theirs.pop("fairbloom").specifier.contains(__version__)
    assert set(theirs) <= set(ours)
    for name, requirement in theirs.items():
        with subtests.test(name=name, requirement=requirement):
            assert requirement.specifier == ours[name].specifier


def test_flower_takes_it_as_it_is(app: Path) -> None:
    _, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_federation_and_runs_in_its_folder_do_not_travel_with_it(app: Path) -> None:
    for place in (
        "federation/operators.toml",
        "operators/operators.toml",
        "runs/my-hearts/config.toml",
    ):
        (app / place).parent.mkdir(parents=True, exist_ok=True)
        (app / place).write_text('secret = "secret"\n')
    names = ZipFile(BytesIO(build_fab_from_disk(app))).namelist()
    assert {name for name in names if not name.startswith("my_hearts/")} == {
        "pyproject.toml",
        ".info/CONTENT",
    }


def test_the_settings_that_a_deployed_client_takes_are_those_that_it_says() -> None:
    settings = list(project(TEMPLATE)["tool"]["flwr"]["app"]["config"])
    assert "the last six" in (TEMPLATE / "pyproject.toml").read_text()
    assert [key for key in settings if key in marked(Mark.SENT_TO_CLIENTS)] == settings[-6:]


# What it promises ---------------------------------------------------------------------------------


def python_m(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=app, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_the_apps_own_test_passes(app: Path) -> None:
    done = python_m(app, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_its_readme_tells_what_it_shows(
    app: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The clients' accuracies in percent after the app's number of rounds, the mean and the
    worst."""
    import torch
    from flwr.app import ArrayRecord

    monkeypatch.syspath_prepend(app)
    client_app, task = (
        importlib.import_module(f"my_hearts.{name}") for name in ("client_app", "task")
    )
    config = project(app)["tool"]["flwr"]["app"]["config"]
    words = " ".join((app / "README.md").read_text().split())
    for strategy, mean, worst, said in (
        (FedAvg(), 74, 36, "in 74 % of a client's"),
        (FedMGDAPlus(), 83, 73, "to 83 % and 73 %"),
    ):
        with subtests.test(strategy=strategy, mean=mean):
            finished: list[Round] = []
            torch.manual_seed(config["seed"])
            grid = InProcessGrid(client_app.app, config, config["clients"])
            strategy.start(
                grid,
                ArrayRecord(task.Net().state_dict()),
                config["num-rounds"],
                on_round=finished.append,
            )
            found = [100 * metrics["accuracy"] for metrics in finished[-1].evaluations.values()]
            assert np.mean(found) == pytest.approx(mean, abs=2)
            assert np.min(found) == pytest.approx(worst, abs=4)
            assert said in words


@pytest.mark.slow
def test_it_prints_how_each_client_is_served_and_no_log(app: Path) -> None:
    done = python_m(app, "my_hearts", "num-rounds=2")
    assert done.stdout.startswith("2 rounds with 8 clients\n")
    assert re.search(r"client-1 +\d+\.\d +67\n", done.stdout)
    assert "Aggregate" not in done.stderr + done.stdout
