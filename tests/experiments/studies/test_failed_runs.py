"""Runs that fail in a comparison: the others go on, and the failed ones are a row and a sentence."""

import json
import shutil
from html import unescape
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.comparison import Failure, Plan, load_comparison
from fairbloom.experiments.results.plans import COMPARISON
from fairbloom.experiments.results.run import REPORT

from ..helpers import fairbloom

FAILING = "FedAvg (learning-rate=1e+30)"
DIVERGED = {(FAILING, seed): Failure("", diverged=True) for seed in range(2)}
ROW = f"{FAILING}: diverged with 2 of 2 seeds"
SMALL = ("--seeds", 2, "--clients", 5, "--rounds", 2, "--jobs", 1, "--model", "mlp", "--set", "device=cpu")
WORDS = ("compare", "--methods", "fedavg(learning-rate=1e30),fedavg,fedfv", *SMALL, "--set", "unused-rounds=1")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    return out


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_diverged_method_is_a_row_and_a_sentence_everywhere(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = f"{FAILING} diverged with 2 of 2 seeds, so it is not compared."
    assert fairbloom("show", compared) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ROW in printed
    assert sentence in printed
    assert f"{FAILING} with seed 0: the run has learned nothing" in printed
    page = unescape((compared / REPORT).read_text(encoding="utf-8"))
    assert ROW in page
    assert sentence in page
    assert fairbloom("show", compared, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["failed"] == {FAILING: "diverged with 2 of 2 seeds"}
    assert sentence in shown["verdict"]["sentences"]
    assert {row["method"] for row in shown["methods"]} == {"FedAvg", "FedFV"}
    recorded = json.loads((compared / COMPARISON).read_text())["failed"]
    assert {seed: each["diverged"] for seed, each in recorded[FAILING].items()} == {"0": True, "1": True}


def test_diverged_runs_are_run_again_only_without_their_folder(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    before = written(out / "runs")
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    assert written(out / "runs") == before
    assert load_comparison(out).failed == {FAILING: "diverged with 2 of 2 seeds"}
    gone = out / "runs" / "fedavg-learning-rate=1e+30-seed1"
    shutil.rmtree(gone)
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    assert gone.exists()


def test_a_baseline_that_always_fails_is_an_error_with_a_remedy(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    assert fairbloom(*WORDS, "--baseline", "fedavg(learning-rate=1e30)", "--out", out) == 2
    told = capsys.readouterr().err
    assert f"error: {FAILING} with seed 0: the run has learned nothing" in told
    assert "All runs of the baseline failed" in told
    assert "choose another one by --baseline" in told
    assert fairbloom(*WORDS, "--baseline", "fedfv", "--out", out) == 0


def test_runs_that_failed_otherwise_are_tried_again(compared: Path, tmp_path: Path) -> None:
    """As one whose disk was full: here it is finished meanwhile."""
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    full = Failure("No space left on device")
    Plan.read(out).with_failures({**DIVERGED, ("FedFV", 1): full}).write(out)
    assert load_comparison(out).failed["FedFV"] == "failed with 1 of 2 seeds"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    assert set(load_comparison(out).failed) == {FAILING}


def test_seeds_that_the_baseline_failed_with_are_left_out(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    Plan.read(out).with_failures({**DIVERGED, ("FedAvg", 0): Failure("", diverged=True)}).write(out)
    found = load_comparison(out)
    assert (found.seeds, found.methods) == ((1,), ("FedAvg", "FedFV"))
    assert "FedAvg diverged with 1 of 2 seeds, so these seeds are left out." in found.verdict.sentences
    assert f"{FAILING} diverged with 2 of 2 seeds, so it is not compared." in found.verdict.sentences


def test_a_method_that_failed_with_one_seed_is_not_compared() -> None:
    runs = {"FedAvg": ["a0", "a1"], "FedFV": ["b0", "b1"], "TERM": ["c0", "c1"]}
    plan = Plan(runs, [3, 4], "FedAvg")
    some = plan.with_failures({("FedFV", 4): Failure("", diverged=True)})
    assert some.finished.runs == {"FedAvg": ["a0", "a1"], "TERM": ["c0", "c1"]}
    with_base = plan.with_failures({("FedFV", 4): Failure(""), ("FedAvg", 4): Failure("")})
    assert (with_base.finished.seeds, with_base.finished.runs["FedFV"]) == ([3], ["b0"])
    with pytest.raises(FairbloomError, match=r"FedAvg with seed 3: broken\. All runs of the baseline failed"):
        _ = plan.with_failures({("FedAvg", seed): Failure("broken") for seed in (3, 4)}).finished
