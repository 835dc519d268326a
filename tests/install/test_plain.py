"""`pip install fairbloom` without extras runs, compares, and draws tables and figures.

Editors and type checkers find the modules of an editable checkout, with their types.

A device with only the extra `client` predicts with the model that it keeps.
"""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fairbloom import load
from fairbloom.errors import install_command
from fairbloom.prediction.predictor import load_predictor
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.checkout import ROOT
from tests.prediction.hospitals import write_hospital, write_hospitals
from tests.prediction.made import copy_to_device
from tests.requirements import needed

from .without import environment_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find only what a plain installation brings."""
    path = environment_of(PROJECT["dependencies"], tmp_path_factory.mktemp("plain") / "path")
    return {**os.environ, "PYTHONPATH": path}


def test_a_plain_installation_stays_small() -> None:
    """Without PyTorch, which has another size in each build, and its CUDA libraries."""
    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
    }
    asked = needed(map(Requirement, PROJECT["dependencies"]), linux, cuda=False)
    brought = {canonicalize_name(each.name) for each in asked} - {"torch"}
    assert len(brought) <= 79
    megabytes = (
        sum(file.size or 0 for name in brought for file in distribution(name).files or []) / 1e6
    )
    assert megabytes <= 800  # 171 of pyarrow, 114 of SciPy, 88 of vl-convert-python, 66 of cvxopt


def fairbloom(
    plain: dict[str, str], folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("fairbloom"), *arguments]
    return subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["ray", "PIL", "torchjd"])
def test_libraries_of_extras_are_not_found(
    plain: dict[str, str], tmp_path: Path, name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=tmp_path,
        env=plain,
        capture_output=True,
    )
    assert b"ModuleNotFoundError" in done.stderr, name


@pytest.mark.slow
def test_it_compares_methods_and_draws_the_figures(plain: dict[str, str], tmp_path: Path) -> None:
    options = (
        "--clients",
        "4",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--methods",
        "fedavg,fedfv",
        "--out",
        "compared",
    )
    done = fairbloom(plain, tmp_path, "compare", *options)
    assert done.returncode == 0, done.stderr
    assert "FedFV" in done.stdout
    assert list((tmp_path / "compared").glob("*.png"))
    shown = fairbloom(plain, tmp_path, "show", "compared")
    assert shown.returncode == 0, shown.stderr
    assert "FedFV" in shown.stdout


@pytest.mark.slow
def test_a_method_names_the_extra_that_it_needs(plain: dict[str, str], tmp_path: Path) -> None:
    plain = {
        **plain,
        "FAIRBLOOM_DATA": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    done = fairbloom(
        plain, tmp_path, "run", "--rounds", "1", "--out", "ran", "--method", "torchjd:upgrad"
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert install_command("torchjd") in " ".join(done.stderr.replace("│", " ").split())
    assert "torchjd" in PROJECT["optional-dependencies"]


THEIRS = """
import fairbloom
from fairbloom.client.fair import fair
from fairbloom.rounds.ranges import within
from fairbloom.strategies import FedFV

reveal_type(within("[0, 1]", share=1))
strategy: int = FedFV(alpha=0.1)
finished: int = fairbloom.run(rounds=1)
"""


def checked(folder: Path, *command: str | Path) -> str:
    """Return the output of a type checker for a user's file with two wrong lines."""
    (folder / "theirs.py").write_text(THEIRS)
    done = subprocess.run(
        [sys.executable, "-m", *command, "theirs.py"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_fairbloom_is_installed_from_its_checkout() -> None:
    files = importlib.metadata.files("fairbloom") or []
    assert not [file for file in files if file.parts[:2] == ("fairbloom", "strategies")], (
        "this test needs an editable installation"
    )


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_knows_the_types_of_imports(checker: str, tmp_path: Path) -> None:
    options: dict[str, tuple[str | Path, ...]] = {
        "mypy": ("--cache-dir", tmp_path / "cache"),
        "pyright": ("--pythonpath", sys.executable),
    }
    output = checked(tmp_path, checker, *options[checker])
    errors = [line for line in output.splitlines() if " error: " in line]
    assert len(errors) == 2, output
    assert "FedFV" in errors[0]
    assert "Run" in errors[1]
    assert "float" in output


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find only what a device installs."""
    path = environment_of(EXTRAS["client"], tmp_path_factory.mktemp("device") / "path")
    return {**os.environ, "PYTHONPATH": path}


def predict(device: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairbloom", "predict", *map(str, arguments)]
    return subprocess.run(command, env=device, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", ["pandas", "vl_convert", "cvxopt"])
def test_libraries_of_servers_are_not_found(device: dict[str, str], name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], env=device, capture_output=True)
    assert b"ModuleNotFoundError" in done.stderr, name


@pytest.mark.slow
def test_a_device_predicts_from_its_state_folder(
    device: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    state = tmp_path / "state"
    settings = {
        "task": "csv",
        "data-dir": str(write_hospitals(tmp_path / "hospitals")),
        "num-rounds": 2,
        "personal-lambda": 0.1,
        "device": "cpu",
    }
    run = simulate(Settings.of({**settings, "out": str(tmp_path / "run")}))
    new = write_hospital(tmp_path / "new.csv", 40, 7)
    copy_to_device(load(run), "h1", state)
    trial = "the model of round 2 of a trial, not released"
    for model, by in (("last", ""), ("personal", "the client's own beside ")):
        with subtests.test(model=model, by=by):
            there = tmp_path / f"there-{model}.csv"
            expected = tmp_path / f"here-{model}.csv"
            done = predict(device, state, new, "--out", there, "--model", model)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"40 predictions by {by}{trial}: {there}\n"
            load_predictor(run, client="h1", model=model).predict_file(new, expected)
            assert there.read_bytes() == expected.read_bytes()


@pytest.mark.slow
def test_a_folder_without_a_run_is_one_line_with_a_remedy(
    device: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text("age\n1\n")
    done = predict(device, tmp_path, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path} holds no run")
    assert "Traceback" not in done.stderr
