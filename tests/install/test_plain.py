"""A plain `pip install fairbloom`, without any extra, runs and compares with tables and figures."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from shutil import copy

import pandas
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fairbloom.server.run_folder.files import MODEL
from tests.checkout import ROOT
from tests.prediction.made import patients, read, train, written
from tests.requirements import needed

from .without import environment_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find what a plain installation brings, and nothing else."""
    path = environment_of(PROJECT["dependencies"], tmp_path_factory.mktemp("plain") / "path")
    return {**os.environ, "PYTHONPATH": path}


def test_a_plain_installation_stays_small() -> None:
    """PyTorch, whose size depends on its build, and its CUDA libraries are left out."""
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}
    asked = needed(map(Requirement, PROJECT["dependencies"]), linux, cuda=False)
    brought = {canonicalize_name(each.name) for each in asked} - {"torch"}
    assert len(brought) <= 79
    megabytes = sum(file.size or 0 for name in brought for file in distribution(name).files or []) / 1e6
    assert megabytes <= 800  # 171 of pyarrow, 114 of SciPy, 88 of vl-convert-python, 66 of cvxopt


def fairbloom(plain: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("fairbloom"), *arguments]
    return subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True)


@pytest.mark.parametrize(
    "extra",
    ["ray", "torchvision", "PIL", "torchjd"],
)
def test_what_extras_bring_is_not_found(plain: dict[str, str], extra: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {extra}"], cwd=tmp_path, env=plain, capture_output=True)
    assert b"ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_it_compares_methods_and_draws_the_figures(plain: dict[str, str], tmp_path: Path) -> None:
    options = ("--clients", "4", "--rounds", "2", "--seeds", "1", "--methods", "fedavg,fedfv", "--out", "compared")
    done = fairbloom(plain, tmp_path, "compare", *options)
    assert done.returncode == 0, done.stderr
    assert "FedFV" in done.stdout
    assert list((tmp_path / "compared").glob("*.png"))
    shown = fairbloom(plain, tmp_path, "show", "compared")
    assert shown.returncode == 0, shown.stderr
    assert "FedFV" in shown.stdout


@pytest.mark.slow
def test_it_runs_on_several_processes(plain: dict[str, str], tmp_path: Path) -> None:
    options = ("--clients", "4", "--rounds", "2", "--set", "engine=workers", "--out", "ran")
    done = fairbloom(plain, tmp_path, "run", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran" / "model.safetensors").exists()


def test_a_device_predicts_with_what_is_installed_there(tmp_path: Path) -> None:
    run = train(tmp_path)
    (kept,) = (run.folder / "clients").rglob("north")
    for name in ("config.toml", "schema.toml"):
        copy(run.folder / name, kept)
    MODEL.write(kept, MODEL.read(run.folder), {"serves": "global"})  # as a device keeps it
    (tmp_path / "new.csv").write_text(written(patients(0, 10)), encoding="utf-8")
    path = environment_of(PROJECT["optional-dependencies"]["client"], tmp_path / "path")
    code = (
        "from pathlib import Path; from fairbloom.prediction.predictor import load_predictor\n"
        f"for model in ('last', 'personal'): load_predictor(Path({str(kept)!r}), model=model).predict_file("
        "Path('new.csv'), Path(f'{model}.csv'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for model in ("last", "personal"):
        expected = run.predict(pandas.DataFrame(patients(0, 10)), client="north", model=model)
        assert [row["predicted_outcome"] for row in read(tmp_path / f"{model}.csv")] == [*expected["predicted_outcome"]]


@pytest.mark.slow
def test_what_needs_an_extra_says_in_one_line_which(plain: dict[str, str], tmp_path: Path) -> None:
    plain = {**plain, "FAIRBLOOM_DATA": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    done = fairbloom(plain, tmp_path, "run", "--rounds", "1", "--out", "ran", "--method", "torchjd:upgrad")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "pip install 'fairbloom[torchjd]'" in " ".join(done.stderr.replace("│", " ").split())
    assert "torchjd" in PROJECT["optional-dependencies"]


@pytest.mark.slow
def test_an_export_names_the_extra_that_it_needs(plain: dict[str, str], tmp_path: Path) -> None:
    run = ("run", "--model", "logistic", "--clients", "2", "--rounds", "1", "--set", "engine=loop", "--out", "ran")
    assert fairbloom(plain, tmp_path, *run).returncode == 0
    done = fairbloom(plain, tmp_path, "export", "ran")
    assert done.returncode == 2
    assert "pip install 'fairbloom[onnx]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "ran" / "exports").exists()
