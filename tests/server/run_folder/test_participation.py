"""Who was asked, answered and counted.

A user's app chooses its best model, and stops early, by a metric of validation examples.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from safetensors.numpy import load_file

import fairbloom
from fairbloom import RunFolder, Score, load
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.run import Run
from fairbloom.rounds.round import Round
from fairbloom.server.run_folder.files import BEST
from fairbloom.server.run_folder.participation import COLUMNS, Participations
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies import FairStrategy, FedAvg, from_config
from tests.simulation.helpers import StoppedError, stop_after, table, without_seconds


def round_of(number: int, missing: tuple[str, ...] = (), *, used: str) -> Round:
    """Return a round of a, b and c, some of which were used."""
    return Round(
        number=number,
        participants=("a", "b", "c"),
        refused={},
        missing=missing,
        coefficients=dict.fromkeys(used, 0.5),
        arrays={},
        metrics={},
        train_metrics={},
        evaluations={},
        bytes_sent=0,
        bytes_received=0,
    )


def rows(found: Participations) -> dict[str, list[object]]:
    names = ("a", "b", "c", "d")
    return dict(zip(names, map(list, zip(*found.cells(names), strict=True)), strict=True))


def test_rounds_are_counted() -> None:
    found = Participations()
    found.add(round_of(1, used="ab"))  # c is refused
    found.add(round_of(2, missing=("b",), used="a"))
    assert COLUMNS == ("rounds_asked", "rounds_answered", "rounds_counted")
    assert rows(found) == {"a": [2, 2, 2], "b": [2, 1, 1], "c": [2, 2, 0], "d": [0, 0, 0]}


def test_a_round_that_nobody_answers_was_asked_for() -> None:
    """Such a round has no participants."""
    found = Participations()
    found.add(replace(round_of(1, missing=("a", "b"), used=""), participants=()))
    assert [*rows(found).values()] == [[1, 0, 0], [1, 0, 0], [0] * 3, [0] * 3]


def test_the_state_continues_to_the_same_numbers() -> None:
    whole = Participations()
    begun = Participations()
    for number in (1, 2, 3):
        whole.add(round_of(number, used="ab"[:number]))
        if number < 3:
            begun.add(round_of(number, used="ab"[:number]))
    continued = Participations(json.loads(json.dumps(begun.state_dict())))
    continued.add(round_of(3, used="ab"))
    assert rows(continued) == rows(whole)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("taken") / "run"
    settings = {"clients": 6, "num-rounds": 4, "fraction": 0.5, "seed": 3, "out": str(out)}
    return load(simulate(Settings.of(settings)))


def test_the_table_has_the_rounds_of_each_client(drawn: Run) -> None:
    last = drawn.clients[drawn.clients["round"] == 4].set_index("client")
    taken = drawn.clients.groupby("client")["participated"].sum()
    assert [
        column
        for column in ("rounds_asked", "rounds_answered", "rounds_counted")
        if last[column].to_dict() != taken.to_dict()
    ] == []


# The clients' mean validation accuracy after each round: best of the first seven after round 4.
VALIDATION = (0.1, 0.4, 0.3, 0.6, 0.5, 0.5, 0.2, 0.9)

VALIDATED = len(VALIDATION)
COLUMN = "validation_val_acc_of_global_model_mean"

# Clients that get better on test examples in each round, and not on validation examples.
falling = ClientApp()


@falling.train()
def train(message: Message, context: Context) -> Message:
    arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + np.float32(1.0))})
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}),
        reply_to=message,
    )


@falling.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    number = int(str(message.content["config"]["server-round"]))
    mean = VALIDATION[number - 1]
    metrics = {
        "num-examples": 2,
        "eval_acc": 0.1 * number,
        "val_acc": mean + 0.05 * (1 - 2 * int(str(context.node_config["partition-id"]))),
        "val_loss": 1.0 - mean,
        "neg_val_loss": mean - 1.0,
        "odd": -1.0,
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def start(
    folder: Path,
    rounds: int = VALIDATED,
    strategy: FairStrategy | None = None,
    on_round: Any = None,
    **given: Any,
) -> Result:
    """Run two clients with the arguments of the run folder, by default with a patience of 2."""
    given = {"score": "eval_acc", "best_model": "val_acc", "early_stopping": 2} | given
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    return RunFolder(folder, wait=False, **given).start(
        strategy or FedAvg(), InProcessGrid(falling, {}, 2), arrays, rounds, on_round=on_round
    )


def rounds_done(folder: Path) -> int:
    return fairbloom.load(folder).rounds_done


def best_round(folder: Path) -> int:
    number = int(BEST.read_about(folder)["round"])
    assert set(load_file(folder / BEST.name)["w"]) == {float(number)}
    return number


# The best model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best_model", "best"),
    [
        ("", 7),
        ("eval_acc", 7),
        ("val_acc", 4),
        ("val_loss", 4),
        ("neg_val_loss", 4),
        (Score("val_acc", higher_is_better=False), 1),
    ],
)
def test_the_best_model_is_that_of_the_best_mean(
    best_model: str | Score, best: int, tmp_path: Path
) -> None:
    start(tmp_path / "run", 7, best_model=best_model, early_stopping=0)
    assert best_round(tmp_path / "run") == best
    assert rounds_done(tmp_path / "run") == 7


def test_the_run_config_chooses_the_measure_and_the_patience(tmp_path: Path) -> None:
    config = {"method": "fedavg", "early-stopping": 1, "best-model": "worst-10"}
    with pytest.raises(FairbloomError, match="best-model and early-stopping of the run config"):
        from_config(config).start(InProcessGrid(falling, {}, 2), ArrayRecord())
    start(tmp_path / "run", strategy=from_config(config), early_stopping=0)
    start(tmp_path / "same", early_stopping=1, best_by="worst-10")
    assert fairbloom.load(tmp_path / "run").stopped == fairbloom.load(tmp_path / "same").stopped
    assert "val_acc of the worst 10 % of clients was" in fairbloom.load(tmp_path / "run").stopped


def test_rounds_csv_has_the_mean_that_chooses(tmp_path: Path) -> None:
    start(tmp_path / "run", early_stopping=0)
    assert [float(row[COLUMN]) for row in table(tmp_path / "run" / "rounds.csv")] == pytest.approx(
        VALIDATION
    )
    start(tmp_path / "plain", early_stopping=0, best_model="")
    assert COLUMN not in table(tmp_path / "plain" / "rounds.csv")[0]


def test_a_score_in_percent_is_shown_and_checked_as_such(tmp_path: Path) -> None:
    start(tmp_path / "run", best_model=Score("val_acc", percent=True))
    assert float(table(tmp_path / "run" / "rounds.csv")[3][COLUMN]) == pytest.approx(60.0)
    assert "was best in round 4, 60.0 %, and" in fairbloom.load(tmp_path / "run").stopped


# An early end -------------------------------------------------------------------------------------


def test_rounds_without_a_gain_end_the_run_as_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = start(tmp_path / "run")
    run = fairbloom.load(tmp_path / "run")
    assert (run.rounds_done, run.finished) == (6, True)
    assert run.stopped == (
        "the mean validation val_acc was best in round 4, 0.6, and not better in the 2 rounds"
        " since (early-stopping = 2)"
    )
    assert set(result.arrays["w"].numpy()) == {6.0}
    assert best_round(tmp_path / "run") == 4
    with caplog.at_level("INFO", "flwr"):
        again = start(tmp_path / "run")
    assert list(again.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert "is finished, since the mean validation val_acc was best in round 4" in caplog.text
    start(tmp_path / "run", rounds=20)  # it has stopped because of its patience, not its rounds
    assert rounds_done(tmp_path / "run") == 6


@pytest.mark.parametrize("patience", [4, 0])
def test_more_patience_continues_to_the_bits_of_a_whole_run(patience: int, tmp_path: Path) -> None:
    start(tmp_path / "whole", early_stopping=patience)
    start(tmp_path / "run")
    start(tmp_path / "run", early_stopping=patience)
    assert [
        name
        for name in ("rounds.csv", "clients.csv")
        if without_seconds(tmp_path / "run" / name) != without_seconds(tmp_path / "whole" / name)
    ] == []
    assert rounds_done(tmp_path / "run") == 8
    assert best_round(tmp_path / "run") == best_round(tmp_path / "whole") == 8
    with pytest.raises(FairbloomError, match=r"early-stopping = .* there and 1 here"):
        start(tmp_path / "run", early_stopping=1, rounds=20)


@pytest.mark.parametrize("lost", [3, 5])
def test_a_run_that_was_lost_stops_in_the_same_round(tmp_path: Path, lost: int) -> None:
    folder = tmp_path / str(lost)
    with pytest.raises(StoppedError):
        start(folder, on_round=stop_after(lost))
    start(folder)
    assert rounds_done(folder) == 6
    assert best_round(folder) == 4


@pytest.mark.parametrize("average", [False, True])
def test_a_run_lost_before_its_final_model_trains_no_more(
    average: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last checkpoint says that it had stopped."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(RunRecorder, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            start(folder, strategy=FedAvg(average_models=average))
    assert not fairbloom.load(folder).finished
    result = start(folder, strategy=FedAvg(average_models=average))
    assert (rounds_done(folder), fairbloom.load(folder).finished) == (6, True)
    assert "was best in round 4" in fairbloom.load(folder).stopped
    assert set(result.arrays["w"].numpy()) == {3.5 if average else 6.0}


def test_on_round_sees_the_last_round(tmp_path: Path) -> None:
    seen = list[int]()
    start(tmp_path / "run", on_round=lambda finished: seen.append(finished.number))
    assert seen == [1, 2, 3, 4, 5, 6]


# What has no effect is refused --------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"best_model": ""},
        r"early_stopping = 2 uses .* validation examples: .* best_model='val_acc'",
    ),
    ({"best_model": "harm"}, r"'harm' does not say .* Score\('harm', higher_is_better=True\)"),
    ({"best_by": "best"}, r"best_by = 'best': allowed"),
    ({"seeds": "both"}, r"seeds = 'both': allowed"),
    ({"early_stopping": -1}, r"early_stopping = -1: allowed is int at least 0"),
    ({"early_stopping": 1.5}, r"early_stopping = 1.5: allowed is int"),
    (
        {"best_model": "valid_acc"},
        r"reply eval_acc, neg_val_loss, num-examples, odd, val_acc, val_loss, and not 'valid_acc', which is named",
    ),
    (
        {"strategy": FedAvg(fraction_evaluate=0.0)},
        r"best_model = 'val_acc' has no effect with fraction_evaluate = 0.*: raise",
    ),
    (
        {"strategy": FedAvg(evaluate_every=0)},
        r"early_stopping = 2 has no effect with evaluate_every = 0.*: set evaluate_every",
    ),
    (
        {"best_model": Score("odd", percent=True)},
        r"early-stopping = 2 uses the mean validation odd, and up to round 2 no client has",
    ),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_a_wrong_choice_is_refused_with_the_remedy(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        start(tmp_path / "run", **given)


def test_another_metric_is_another_run(tmp_path: Path) -> None:
    start(tmp_path / "run", 2)
    with pytest.raises(
        FairbloomError, match="validation-metric = 'val_acc' there and 'val_loss' here"
    ):
        start(tmp_path / "run", 3, best_model="val_loss")
