"""What a device installs, by the extra `client` alone, predicts with the models that it keeps."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairbloom.client.kept import About, keep_model
from fairbloom.prediction.predictor import load_predictor
from fairbloom.server.run_folder.files import CONFIG, MODEL, SCHEMA
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.checkout import ROOT
from tests.prediction.hospitals import write_hospital, write_hospitals

from .without import environment_of

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find what a device installs, and nothing else."""
    path = environment_of(EXTRAS["client"], tmp_path_factory.mktemp("device") / "path")
    return {**os.environ, "PYTHONPATH": path}


def client(device: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairbloom.deploy", "client", *map(str, arguments)]
    return subprocess.run(command, env=device, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", ["pandas", "vl_convert", "cvxopt"])
def test_what_a_device_lacks_is_not_found(device: dict[str, str], name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], env=device, capture_output=True)
    assert b"ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_a_device_lists_its_models_and_predicts_by_them(device: dict[str, str], tmp_path: Path) -> None:
    data = write_hospitals(tmp_path / "hospitals")
    settings = {"task": "csv", "data-dir": str(data), "num-rounds": 2, "personal-lambda": 0.1, "device": "cpu"}
    run = simulate(Settings.of({**settings, "out": str(tmp_path / "run")}))
    new = write_hospital(tmp_path / "new.csv", 40, 7)
    site = tmp_path / "state" / "abcdefgh" / "new"
    (own,) = (run / "clients").glob("*/h1")
    shutil.copytree(own, site)
    settings = {**CONFIG.read(run).settings, "schema": SCHEMA.read(run)}
    keep_model(site, settings, MODEL.read(run), About("run", 2, "checksum"))
    listed = client(device, "models", tmp_path / "state")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout == f"{site}: run run, final model of round 2, personal model of round 2\n"
    for model in ("last", "personal"):
        there, expected = tmp_path / f"there-{model}.csv", tmp_path / f"here-{model}.csv"
        done = client(device, "predict", tmp_path / "state", new, "--out", there, "--model", model)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"40 predictions by {site}: {there}\n"
        load_predictor(site, model=model).predict_file(new, expected)
        assert there.read_bytes() == expected.read_bytes()


@pytest.mark.slow
def test_what_a_device_cannot_predict_is_one_line_with_a_remedy(device: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age\n1\n")
    done = client(device, "predict", tmp_path, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"fairbloom: {tmp_path} keeps no models: name a client's state-dir")
    assert "Traceback" not in done.stderr
