"""A device with only the extra `client` predicts with the model that it keeps."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairbloom import load
from fairbloom.prediction.predictor import load_predictor
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.checkout import ROOT
from tests.prediction.hospitals import write_hospital, write_hospitals
from tests.prediction.made import copy_to_device

from .without import environment_of

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find only what a device installs."""
    path = environment_of(EXTRAS["client"], tmp_path_factory.mktemp("device") / "path")
    return {**os.environ, "PYTHONPATH": path}


def predict(device: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairbloom", "predict", *map(str, arguments)]
    return subprocess.run(command, env=device, capture_output=True, text=True, timeout=300)


def test_libraries_of_servers_are_not_found(
    device: dict[str, str], subtests: pytest.Subtests
) -> None:
    for name in ("pandas", "vl_convert", "cvxopt"):
        with subtests.test(name=name):
            done = subprocess.run(
                [sys.executable, "-c", f"import {name}"], env=device, capture_output=True
            )
            assert b"ModuleNotFoundError" in done.stderr, name


@pytest.mark.slow
def test_a_device_predicts_from_its_state_folder(
    device: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    data = write_hospitals(tmp_path / "hospitals")
    state = tmp_path / "state"
    settings = {
        "task": "csv",
        "data-dir": str(data),
        "num-rounds": 2,
        "personal-lambda": 0.1,
        "device": "cpu",
    }
    run = simulate(Settings.of({**settings, "out": str(tmp_path / "run")}))
    new = write_hospital(tmp_path / "new.csv", 40, 7)
    copy_to_device(load(run), "h1", state)
    for model, by in (("last", " by the model of round 2 of 2"), ("personal", "")):
        with subtests.test(model=model, by=by):
            there = tmp_path / f"there-{model}.csv"
            expected = tmp_path / f"here-{model}.csv"
            done = predict(device, state, new, "--out", there, "--model", model)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"40 predictions{by}: {there}\n"
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
