"""`pip install fairbloom` without extras runs, compares, and draws tables and figures."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checkout import ROOT
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


def test_libraries_of_extras_are_not_found(
    plain: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ("ray", "PIL", "torchjd"):
        with subtests.test(name=name):
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
def test_it_runs_on_several_processes(plain: dict[str, str], tmp_path: Path) -> None:
    options = ("--clients", "4", "--rounds", "2", "--set", "engine=workers", "--out", "ran")
    done = fairbloom(plain, tmp_path, "run", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran" / "model.safetensors").exists()


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
    assert "pip install 'fairbloom[torchjd]'" in " ".join(done.stderr.replace("│", " ").split())
    assert "torchjd" in PROJECT["optional-dependencies"]


@pytest.mark.slow
def test_an_export_names_the_extra_that_it_needs(plain: dict[str, str], tmp_path: Path) -> None:
    run = (
        "run",
        "--model",
        "logistic",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--set",
        "engine=loop",
        "--out",
        "ran",
    )
    assert fairbloom(plain, tmp_path, *run).returncode == 0
    done = fairbloom(plain, tmp_path, "export", "ran")
    assert done.returncode == 2
    assert "pip install 'fairbloom[onnx]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "ran" / "exports").exists()
