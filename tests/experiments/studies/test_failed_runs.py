"""Runs that fail in a comparison: the others continue, and a row and a sentence report them."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.study import Study, find_study

from ..helpers import as_json, captured, fairbloom, times_in

FAILING = "FedAvg (learning-rate=1e+30)"
FOLDER = "runs/fedavg-learning-rate=1e+30-seed"
DIVERGED = {f"{FOLDER}{seed}": "the run has learned nothing" for seed in range(2)}
ROW = f"{FAILING}: failed with 2 of 2 seeds"
SMALL = (
    "--seeds",
    2,
    "--clients",
    5,
    "--rounds",
    2,
    "--jobs",
    1,
    "--model",
    "mlp",
    "--set",
    "device=cpu",
)
WORDS = (
    "compare",
    "--methods",
    "fedavg(learning-rate=1e30),fedavg,fedfv",
    *SMALL,
    "--set",
    "unused-rounds=1",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    return out


@pytest.fixture
def out(compared: Path, tmp_path: Path) -> Path:
    """A copy of that comparison."""
    return shutil.copytree(compared, tmp_path / "cmp")


def test_a_failed_method_is_a_row_and_a_sentence_everywhere(
    compared: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    sentence = f"{FAILING} failed with 2 of 2 seeds, so it is not compared."
    printed = " ".join(captured(capsys, "show", compared).out.split())
    assert f"{FAILING} with seed 0: the run has learned nothing" in printed
    for shown in (printed, unescape((compared / REPORT).read_text(encoding="utf-8"))):
        with subtests.test(shown=shown):
            assert ROW in shown
            assert sentence in shown
    about = as_json(capsys, "show", compared)
    assert about["failed"] == {FAILING: "failed with 2 of 2 seeds"}
    assert sentence in about["verdict"]["sentences"]
    assert {row["method"] for row in about["methods"]} == {"FedAvg", "FedFV"}
    assert [*find_study(compared).failed] == [*DIVERGED]


def test_a_baseline_that_always_fails_is_an_error_with_a_remedy(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = captured(
        capsys, *WORDS, "--baseline", "fedavg(learning-rate=1e30)", "--out", out, code=2
    ).err
    assert f"{FAILING} with seed 0: the run has learned nothing" in message
    assert "--baseline" in message
    # as the command with another baseline does
    replace(find_study(out), baseline="FedFV").write(out)
    assert api.load(out).baseline == "FedFV"


def note_failures(folder: Path, failed: Mapping[str, str]) -> None:
    replace(find_study(folder), failed=failed).write(folder)


def test_runs_that_failed_are_tried_again(out: Path) -> None:
    """A run that failed, as with a full disk, is finished in the meantime."""
    before = times_in(out / "runs")
    note_failures(out, {**DIVERGED, "runs/fedfv-seed1": "No space left on device"})
    assert api.load(out).failed["FedFV"] == "failed with 1 of 2 seeds"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    assert set(api.load(out).failed) == {FAILING}
    kept = {path: time for path, time in before.items() if "1e+30" not in str(path)}
    assert kept.items() <= times_in(out / "runs").items()


def test_seeds_that_the_baseline_failed_with_are_left_out(out: Path) -> None:
    note_failures(out, {**DIVERGED, "runs/fedavg-seed0": "broken"})
    found = api.load(out)
    assert (found.seeds, found.methods) == ((1,), ("FedAvg", "FedFV"))
    assert (
        "FedAvg failed with 1 of 2 seeds, so these seeds are left out." in found.verdict.sentences
    )
    assert f"{FAILING} failed with 2 of 2 seeds, so it is not compared." in found.verdict.sentences


def test_a_method_that_lacks_a_client_is_left_out_by_name(out: Path) -> None:
    clients = out / "runs" / "fedfv-seed0" / "clients.csv"
    header, *rows = clients.read_text().splitlines()
    kept = [row for row in rows if not row.startswith("2,client-3,")]
    clients.write_text("\n".join([header, *kept]) + "\n")
    found = api.load(out)
    assert found.methods == ("FedAvg",)
    assert found.failed["FedFV"] == "has no test accuracy of client-3 with seed 0"
    assert (
        "FedFV has no test accuracy of client-3 with seed 0, so it is not compared."
        in found.verdict.sentences
    )


def test_a_method_that_failed_with_one_seed_is_not_compared() -> None:
    arms = [Arm("FedAvg", "fedavg"), Arm("FedFV", "fedfv"), Arm("TERM", "term")]
    study = Study("compare", arms, [3, 4], "FedAvg")
    some = replace(study, failed={"runs/fedfv-seed4": "broken"})
    assert [arm.label for arm in some.finished.arms] == ["FedAvg", "TERM"]
    with_base = replace(study, failed={"runs/fedfv-seed4": "", "runs/fedavg-seed4": ""})
    assert (with_base.finished.seeds, len(with_base.finished.arms)) == ([3], 3)
    with pytest.raises(
        FairbloomError, match=r"FedAvg with seed 3: broken\. All runs of the baseline failed"
    ):
        _ = replace(study, failed={f"runs/fedavg-seed{seed}": "broken" for seed in (3, 4)}).finished
