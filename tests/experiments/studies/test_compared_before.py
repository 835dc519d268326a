"""Comparisons into the folder of an earlier one: the tables have the methods that are named now."""

import json
import shutil
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from tests.simulation.helpers import table

from ..helpers import fairbloom

SMALL = ("--seeds", 1, "--clients", 5, "--rounds", 2, "--fraction", 0.5, "--jobs", 1, "--set", "device=cpu")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom("compare", "--methods", "fedavg,fedfv", *SMALL, "--out", out) == 0
    return out


@pytest.mark.slow
def test_tables_have_the_named_methods_and_no_run_is_repeated(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/model.safetensors")}
    assert fairbloom("compare", "--methods", "qfedavg(q=1),fedavg", *SMALL, "--out", out) == 0
    assert list(dict.fromkeys(row["method"] for row in table(out / "comparison.csv"))) == ["QFedAvg (q=1)", "FedAvg"]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert api.load(out).values["FedAvg"] == api.load(compared).values["FedAvg"]


def test_a_comparison_whose_plan_is_damaged_is_compared_anew(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    about = json.loads((out / "study.json").read_text())
    del about["arms"]
    (out / "study.json").write_text(json.dumps(about))
    with pytest.raises(FairbloomError, match=r"arms: Field required\. Run the same command again"):
        api.load(out)
    assert fairbloom("compare", "--methods", "fedfv", *SMALL, "--out", out) == 0
    assert api.load(out).methods == ("FedFV",)


def test_a_comparison_does_not_write_into_the_folder_of_a_run(
    compared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its clients.csv would take the place of the run's."""
    run = tmp_path / "run"
    shutil.copytree(compared / "runs" / "fedavg-seed0", run)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert fairbloom("compare", "--methods", "fedavg,fedfv", *SMALL, "--out", run) == 2
    assert f"{run} is the folder of a single run: choose another folder (--out)" in capfd.readouterr().err
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_folder_with_files_of_somebody_s_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clients.csv").write_text("age,outcome\n50,well\n")
    assert fairbloom("compare", *SMALL, "--out", tmp_path) == 2
    assert f"{tmp_path} exists and holds no study: choose another folder (--out)" in capfd.readouterr().err
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("clients.csv", "age,outcome\n50,well\n")]
