"""Comparisons into the folder of an earlier one: what was compared before stays in the tables, or is named."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import load_comparison
from tests.simulation.helpers import table

from ..helpers import fairbloom

SMALL = ("--seeds", 1, "--clients", 5, "--rounds", 2, "--fraction", 0.5, "--jobs", 1, "--set", "device=cpu")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom("compare", "--methods", "fedavg,fedfv", *SMALL, "--out", out) == 0
    return out


@pytest.mark.slow
def test_methods_that_were_compared_before_stay_in_the_tables_and_are_not_run_again(
    compared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/model.safetensors")}
    words = ("compare", "--methods", "qfedavg(q=1)", *SMALL, "--out", out)
    assert fairbloom(*words) == 0
    assert "left out" not in caplog.text
    methods = ["QFedAvg (q=1)", "FedAvg", "FedFV"]
    assert list(dict.fromkeys(row["method"] for row in table(out / "comparison.csv"))) == methods
    assert {file: file.stat().st_mtime_ns for file in before} == before
    again = load_comparison(out)
    assert (again.methods, again.baseline) == (tuple(methods), "FedAvg")
    old = load_comparison(compared)
    assert all(again.values[method] == old.values[method] for method in old.methods)
    assert fairbloom(*words, "--baseline", "fedfv") == 0
    assert load_comparison(out).baseline == "FedFV"


@pytest.mark.slow
@pytest.mark.parametrize("change", [("--seeds", 2), ("--rounds", 3), ("--set", "learning-rate=0.2")])
def test_methods_that_were_compared_otherwise_are_left_out_with_a_word_until_they_are_named(
    compared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: tuple[str, object]
) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    words = ("compare", *SMALL, *change, "--out", out)
    assert fairbloom(*words, "--methods", "qfedavg") == 0
    assert re.search("FedAvg, FedFV: left out of the tables in .* name them among the methods", caplog.text)
    assert load_comparison(out).methods == ("QFedAvg",)
    if change[0] == "--seeds":
        assert fairbloom(*words, "--methods", "qfedavg,fedavg,fedfv") == 0
        assert load_comparison(out).methods == ("QFedAvg", "FedAvg", "FedFV")


def test_a_method_of_a_user_that_is_gone_is_left_out_of_the_next_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "gone_tomorrow.py"
    mine.write_text("from fairbloom.strategies import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    words = ("compare", *SMALL, "--out", "cmp")
    assert fairbloom(*words, "--methods", "gone_tomorrow:Mine") == 0
    mine.unlink()
    monkeypatch.delitem(sys.modules, "gone_tomorrow")
    assert fairbloom(*words, "--methods", "fedavg") == 0
    assert "Mine: left out of the tables in cmp" in caplog.text
    assert load_comparison("cmp").methods == ("FedAvg",)


def test_a_comparison_whose_plan_is_damaged_is_compared_anew(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    about = json.loads((out / "comparison.json").read_text())
    del about["methods"]
    (out / "comparison.json").write_text(json.dumps(about))
    with pytest.raises(FairbloomError, match=r"has no 'methods'\. Run the same fairbloom compare again"):
        load_comparison(out)
    assert fairbloom("compare", "--methods", "fedfv", *SMALL, "--out", out) == 0
    assert load_comparison(out).methods == ("FedFV",)


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
