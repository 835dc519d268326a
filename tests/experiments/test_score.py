"""The score that fairness is measured in: set, chosen by the data, and undefined for clients."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import fairbloom as api
from fairbloom.client.guard.disclosure import guarded
from fairbloom.client.local import LocalClient
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.presentation import write_report
from fairbloom.protocol.scores import F1, Score
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.files import CONFIG, SCHEMA
from fairbloom.tasks import load_task
from fairbloom.tasks.score import count_classes
from tests.simulation.helpers import table

from .helpers import compared_by_hand

LOSS = "test_loss_of_global_model"
ACCURACY = "test_accuracy_of_global_model"

GIVEN = {"csv.target": "y", "device": "cpu"}


def write_site(folder: Path, name: str, positive: int, negative: int) -> None:
    """Write a CSV file in which x says little about y, with some numbers of rows of each class."""
    rows = [(k % 7, "yes") for k in range(positive)] + [
        ((k + 2) % 7, "no") for k in range(negative)
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))


@pytest.fixture
def unbalanced(tmp_path: Path) -> Path:
    """Two sites, in one of which four of five are ill."""
    write_site(tmp_path / "sites", "a", 40, 40)
    write_site(tmp_path / "sites", "b", 64, 16)
    return tmp_path / "sites"


@pytest.fixture
def balanced(tmp_path: Path) -> Path:
    """Two sites: one with three of five in a class, and one with all of them in one."""
    write_site(tmp_path / "sites", "a", 48, 32)
    write_site(tmp_path / "sites", "b", 40, 0)
    return tmp_path / "sites"


def run_sites(
    data: Path, out: Path, rounds: int = 1, settings: Mapping[str, Any] | None = None, **more: Any
) -> Any:
    given = GIVEN | dict(settings or {})
    return api.run(
        "csv", data_dir=data, rounds=rounds, out=out, progress=False, settings=given, **more
    )


def run_digits(out: Path, **more: Any) -> Any:
    return api.run("digits", clients=4, rounds=2, out=out, progress=False, device="cpu", **more)


# Chosen -------------------------------------------------------------------------------------------


def test_by_the_loss_the_worst_client_is_the_largest(tmp_path: Path) -> None:
    """Of personal models, too, and the best model is that of the round with the least."""
    run = run_digits(tmp_path / "run", score="loss", method="ditto", settings={"ditto.lam": 0.1})
    last = {
        row["client"]: float(row[LOSS])
        for row in table(tmp_path / "run" / "clients.csv")
        if row["round"] == "2"
    }
    assert run.score.name == "loss"
    assert run.final() == last
    assert run.final(model="personal").keys() == last.keys()
    assert run.final(model="personal") != last
    rounds = table(tmp_path / "run" / "rounds.csv")
    assert float(rounds[-1][f"{LOSS}_worst"]) == max(last.values())
    expected = summarize(last, lower_is_better=True)
    assert {key: float(rounds[-1][f"{LOSS}_{key}"]) for key in expected} == pytest.approx(expected)
    best = min(rounds, key=lambda row: float(row[f"{LOSS}_mean"]))["round"]
    with safe_open(tmp_path / "run" / "model-best.safetensors", "np") as model:
        about = str(model.metadata())
    assert f"{LOSS}_mean" in about
    assert f'"round": {best}' in about


def test_what_a_method_receives_does_not_depend_on_the_score(tmp_path: Path) -> None:
    models = []
    for name in ("accuracy", "loss"):
        run_digits(tmp_path / name, score=name, method="fedfa")
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert {name: array.tobytes() for name, array in models[0].items()} == {
        name: array.tobytes() for name, array in models[1].items()
    }


def test_early_stopping_goes_by_the_score(tmp_path: Path) -> None:
    given = {"early-stopping": 1, "validation-share": 0.2, "learning-rate": 5.0, "num-rounds": 6}
    run = api.run(
        "digits",
        clients=4,
        score="loss",
        out=tmp_path,
        progress=False,
        settings=given,
        device="cpu",
    )
    assert "mean validation loss was best" in run.stopped


def test_a_further_score_is_measured_when_fairness_goes_by_it(
    unbalanced: Path, tmp_path: Path
) -> None:
    run = run_sites(unbalanced, tmp_path / "run", score="f1")
    assert run.score == replace(F1, of="yes")
    assert run.settings["scores"] == "f1"


@pytest.mark.parametrize("name", ["acuracy", "auc", "f1-at-0.50"])
def test_a_score_that_a_task_lacks_is_refused_with_those_it_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        FairbloomError, match=f"score = '{name}'.*accuracy, loss, recall, calibration-error, brier"
    ):
        run_digits(tmp_path / "run", score=name)
    assert not (tmp_path / "run").exists()


# By the data --------------------------------------------------------------------------------------


def test_unbalanced_natural_clients_go_by_balanced_accuracy(
    unbalanced: Path, tmp_path: Path
) -> None:
    assert run_sites(unbalanced, tmp_path / "run").score.name == "balanced-accuracy"
    assert (
        tomllib.loads((tmp_path / "run" / "config.toml").read_text())["score"]
        == "balanced-accuracy"
    )
    columns = (tmp_path / "run" / "clients.csv").read_text().splitlines()[0].split(",")
    assert next(name for name in columns if "accuracy" in name) == ACCURACY


def test_balanced_clients_and_those_of_one_class_keep_accuracy(
    balanced: Path, tmp_path: Path
) -> None:
    run = run_sites(balanced, tmp_path / "run")
    assert run.settings["score"] == run.score.name == "accuracy"


def test_a_run_that_goes_on_keeps_its_score(unbalanced: Path, tmp_path: Path) -> None:
    run_sites(unbalanced, tmp_path / "run", score="accuracy")
    extended = run_sites(unbalanced, tmp_path / "run", rounds=2)
    assert (extended.score.name, extended.rounds_done) == ("accuracy", 2)
    with pytest.raises(FairbloomError, match="score = 'accuracy' there and 'auc' here"):
        run_sites(unbalanced, tmp_path / "run", rounds=3, score="auc")


def test_all_runs_of_a_study_go_by_one_score(tmp_path: Path) -> None:
    """All rows decide, and not a seed's test rows, of which more or less may be in one class."""
    write_site(tmp_path / "sites", "a", 40, 40)
    write_site(tmp_path / "sites", "b", 66, 34)
    assert {
        run_sites(tmp_path / "sites", tmp_path / f"{s}", seed=s).score.name for s in range(2)
    } == {"accuracy"}
    api.compare(
        "csv",
        data_dir=tmp_path / "sites",
        methods="fedavg",
        rounds=1,
        seeds=2,
        jobs=1,
        settings=GIVEN,
        out=tmp_path / "cmp",
        progress=False,
    )
    settings = [
        tomllib.loads(path.read_text())
        for path in (tmp_path / "cmp" / "runs").glob("*/config.toml")
    ]
    assert len(settings) == 2
    assert len({each["score"] for each in settings}) == 1


# Clients without the score ------------------------------------------------------------------------

Scored = Sequence[Mapping[str, float]]


def test_a_client_without_a_score_is_left_out_of_all_methods() -> None:
    base: Scored = [{"a": 0.5, "b": 0.7, "c": 0.1}, {"a": 0.5, "b": 0.7, "c": 0.2}]
    fair: Scored = [{"a": 0.6, "b": 0.8}, {"a": 0.6, "b": 0.8, "c": 0.3}]
    comparison = compared_by_hand(F1, FedAvg=base, FedFV=fair)
    assert [row["worst"] for row in comparison.rows()] == [0.5, 0.2, 0.6, 0.3]
    assert comparison.left_out == {0: ["c"], 1: []}


@pytest.mark.parametrize("seeds_of_c", [2, 3])
def test_a_client_is_compared_from_three_seeds_on(seeds_of_c: int) -> None:
    def by_seed(shift: float, seeds_of_c: int) -> Scored:
        return [
            {"a": 0.5 + shift, "b": 0.6 + shift}
            | ({"c": 0.1 * k + shift} if k < seeds_of_c else {})
            for k in range(5)
        ]

    comparison = compared_by_hand(
        Score("auc"), FedAvg=by_seed(0.0, seeds_of_c), FedFV=by_seed(0.1, 5)
    )
    measures = {row["measure"] for row in comparison.difference_rows()}
    assert ("client:c" in measures) == (seeds_of_c == 3)
    assert comparison.difference("FedFV", "client:c").seeds == seeds_of_c
    assert "client:a" in measures


# The larger class ---------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["a", "b"])
def test_the_share_of_the_larger_class_is_shown_beside_the_score(
    unbalanced: Path, tmp_path: Path, client: str
) -> None:
    run = run_sites(unbalanced, tmp_path / "run")
    shares = run.column("test_share_of_larger_class")
    targets = load_task(run.settings).splits(client).test.all_targets.numpy()
    assert shares[client] == pytest.approx(
        100.0 * max(np.mean(targets == 0), np.mean(targets == 1))
    )
    rows = table(tmp_path / "run" / "clients.csv")
    assert {row["client"]: float(row["test_share_of_larger_class"]) for row in rows} == shares
    assert "larger class, %" not in write_report(run, tmp_path / "report.html").read_text()
    by_accuracy = api.load(run.folder, score="accuracy")
    assert "larger class, %" in write_report(by_accuracy, tmp_path / "report.html").read_text()


def test_a_device_says_nothing_of_a_class_with_few_examples(
    unbalanced: Path, tmp_path: Path
) -> None:
    run_sites(unbalanced, tmp_path / "run")
    config = {
        **CONFIG.read(tmp_path / "run").settings,
        "schema": SCHEMA.read(tmp_path / "run"),
        "state-dir": "",
    }
    here = LocalClient.of(RunSettings.of(config), 1, "b")
    deployed = guarded(here, 20)
    smaller, _ = count_classes(here.splits.test) or (0, 0)
    assert smaller < 5
    assert "larger-class" in here.describe_tests()
    assert "larger-class" not in deployed.describe_tests()
