"""Simulated privacy accounts: paired noise, budgets that end, and methods that none of them allows."""

import logging
from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.private.budget import Budget
from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import ENGINE, PRIVACY, read_stop
from fairbloom.simulation.run import simulate
from fairbloom.strategies.registry import METHODS
from tests.client.private.device import SCHEMA, write_table
from tests.experiments.helpers import fairbloom

from .helpers import Outcome, StoppedError, rounds, run, small, stop_after, table

PRIVATE: dict[str, Any] = {
    "task": "csv",
    "schema": SCHEMA,
    "clients": 0,
    "privacy.mode": "simulated",
    "privacy.epsilon": "3",
    "batch_size": 0,
    "fraction": 1.0,
    "method": "fedavg",
}

ALLOWED = {
    *("fedavg", "fedprox", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "scaffold", "feddyn"),
    *("qfedavg", "qfedsgd", "term", "afl", "deltafl", "vred", "semivred", "gifair", "fedfv"),
    *("fedmdfg", "fedlf", "adafed", "aaggff", "fedpw", "fairmoo"),
}


@pytest.fixture(autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables of five clients, which `PRIVATE` runs read."""
    folder = tmp_path_factory.mktemp("tables")
    for seed in range(5):
        write_table(folder / f"client-{seed}.csv", 60, seed)
    monkeypatch.setitem(PRIVATE, "data_dir", str(folder))
    return folder


def private(out: Path, changes: dict[str, Any]) -> Path:
    return run(out, **{**PRIVATE, **changes})


@pytest.mark.parametrize("method", ["fedfv", "scaffold"])
def test_a_run_repeats_and_resumes_to_the_same_bits(tmp_path: Path, method: str) -> None:
    """Noise and what is left follow from seed and round: a cut-off round is not charged twice."""
    whole = private(tmp_path / "whole", {"method": method})
    with pytest.raises(StoppedError):
        simulate(small(tmp_path / "cut", **{**PRIVATE, "method": method}), stop_after(3))
    again = private(tmp_path / "cut", {"method": method})
    assert Outcome.of(again) == Outcome.of(whole)
    assert PRIVACY.read(again) == PRIVACY.read(whole)


def test_each_client_has_its_own_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page of the run names who has none, and that nobody is protected."""
    about = PRIVACY.read(private(tmp_path, {"privacy.epsilon": "client-0=8 client-2=1"}))
    assert about["simulated"]
    assert {name: each["epsilon"] for name, each in about["clients"].items()} == {
        "client-0": 8.0,
        "client-2": 1.0,
    }
    assert ENGINE.read(tmp_path)["engine"] == "loop"
    capsys.readouterr()
    assert fairbloom("show", str(tmp_path)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "simulated, no privacy" in said
    assert "Without an account: client-1, client-3, client-4." in said


def test_tables_with_a_rare_class_are_scored_by_accuracy(tmp_path: Path) -> None:
    """Balanced accuracy, their usual score, is none that an account reports."""
    for seed, name in enumerate(("north", "south")):
        rows = [f"{20 + k},{'ill' if k % 8 == seed else 'well'}" for k in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,outcome", *rows]))
    schema = "\n".join(line for line in SCHEMA.replace("dose", "age").splitlines()[5:])
    folder = private(
        tmp_path / "run",
        {
            "schema": f"target = 'outcome'\n{schema[schema.index('[') :]}\n",
            "data_dir": str(tmp_path),
        },
    )
    assert rounds(folder)[-1]["test_accuracy_of_global_model_mean"]


def test_a_spent_client_is_left_out_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = private(tmp_path, {"privacy.epsilon": "client-0=3", "privacy.steps": 3})
    assert [row["round"] for row in rounds(folder) if "client-0" in row["refused"]] == ["4"]
    assert [row["excluded"] for row in rounds(folder)] == ["", "", "", "", "client-0", "client-0"]
    assert [each.getMessage() for each in caplog.records if "from now" in each.getMessage()] == [
        "client-0 has spent the privacy budget after round 3, and is left out from now on"
    ]


@pytest.mark.parametrize(("spend", "raised"), [("", True), ("lowest", True), ("all", False)])
def test_rounds_that_set_the_noise_are_not_raised(tmp_path: Path, spend: str, raised: bool) -> None:
    given = {"privacy.tests": 2, "privacy.spend": spend}
    private(tmp_path, {**given, "num_rounds": 1})
    if raised:
        assert len(rounds(private(tmp_path, {**given, "num_rounds": 2}))) == 2
        return
    with pytest.raises(FairbloomError, match="num-rounds"):
        private(tmp_path, {**given, "num_rounds": 2})


def test_scores_are_exact_and_reports_stand_beside(tmp_path: Path) -> None:
    """A simulation protects nobody; only clients with an account have a report."""
    folder = private(tmp_path, {"privacy.epsilon": "client-0=3 client-1=1"})
    final = {row["client"]: row for row in table(folder / "clients.csv") if row["round"] == "6"}
    tests = int(final["client-0"]["test_examples"])
    for name, epsilon in (("client-0", 3.0), ("client-1", 1.0)):
        row = final[name]
        right = float(row["test_accuracy_of_global_model"]) / 100 * tests
        assert right == pytest.approx(round(right), abs=1e-6)
        deviation = Budget(epsilon, 1e-5).test_sigma * 1.0198 / tests
        assert float(row["test_accuracy_deviation"]) == pytest.approx(100 * deviation, rel=1e-3)
        assert (
            abs(float(row["reported_test_accuracy"]) / 100 * tests - right) < 6 * tests * deviation
        )
        assert row["reported_test_accuracy"] != row["test_accuracy_of_global_model"]
        assert float(row["test_loss_deviation"]) > 0
        assert row["reported_test_loss"] != row["test_loss_of_global_model"]
    for name in ("client-2", "client-3", "client-4"):
        cells = [cell for key, cell in final[name].items() if "report" in key or "deviat" in key]
        assert cells == [""] * 4
    assert "excluded" not in rounds(run(tmp_path / "plain", num_rounds=1))[0]


@pytest.mark.parametrize("engine", ["auto", "stacked"])
def test_a_run_stops_when_all_are_spent(tmp_path: Path, engine: str) -> None:
    """The final model is evaluated all the same."""
    done = rounds(private(tmp_path, {"privacy.steps": 2, "engine": engine}))
    assert len(done) == 3
    assert [bool(row["test_accuracy_of_global_model_mean"]) for row in done] == [False, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_allowed_or_refused_before_a_round(tmp_path: Path, method: str) -> None:
    settings = small(tmp_path, **{**PRIVATE, "num_rounds": 1, "method": method})
    if method in ALLOWED:
        simulate(settings)
        assert len(PRIVACY.read(tmp_path)["clients"]) == 5
        return
    with pytest.raises(FairbloomError, match="account"):
        simulate(settings)
    assert not (tmp_path / "rounds.csv").exists() or not rounds(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 10}, "batch-size"),
        ({"task": "digits", "schema": "", "data_dir": ""}, "task = csv"),
        ({"schema": "", "csv.target": "outcome"}, "write-schema"),
        (
            {"schema": SCHEMA.replace("center = 50.0\nscale = 20.0\n", "")},
            "center and scale for age",
        ),
        ({"schema": "groups = ['dose']\n" + SCHEMA}, "groups"),
        ({"privacy.spend": "some"}, "a number of units"),
        ({"privacy.spend": "0"}, "a number of units"),
        ({"privacy.epsilon": "0"}, "above 0"),
        ({"privacy.epsilon": "client-0"}, "above 0"),
        ({"privacy.epsilon": "client-0=3 nobody=3"}, "nobody: the run has no such client"),
        ({"privacy.epsilon": ""}, "no effect"),
        ({"privacy.mode": "none"}, "no effect"),
        ({"best_model": "worst-10"}, "best-model need scores"),
        ({"score": "balanced-accuracy"}, "report only accuracy and loss"),
        ({"early_stopping": 2}, "early-stopping"),
    ],
    ids=str,
)
def test_settings_of_no_account_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        simulate(small(tmp_path, **{**PRIVATE, **changes}))


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [5]), (2, [1, 3, 5]), (5, [4, 5])], ids=["1", "2", "5"]
)
def test_accounts_report_tests_as_often_as_is_set(
    tmp_path: Path, every: int, evaluated: list[int]
) -> None:
    """By default, of the final model only."""
    done = rounds(private(tmp_path, {"privacy.tests": 3, "evaluate_every": every}))
    scores = [row["test_accuracy_of_global_model_mean"] for row in done]
    assert [place for place, score in enumerate(scores) if score] == evaluated


@pytest.mark.parametrize(("count", "early"), [(2, False), (3, True)])
def test_a_run_that_spends_all_in_its_last_round_is_whole(
    tmp_path: Path, count: int, early: bool
) -> None:
    """It has not ended early."""
    folder = private(tmp_path, {"privacy.spend": "8", "num_rounds": count})
    assert bool(read_stop(folder)) == early
    assert len(rounds(folder)) == 2
