"""Who was asked, answered and counted, and who took part far less than the others.

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
from fairbloom.experiments.results.caveats import caveats_of_comparison, caveats_of_run
from fairbloom.experiments.results.run import Run
from fairbloom.rounds.participation import COLUMNS, Participations
from fairbloom.rounds.round import Round
from fairbloom.server.run_folder.attendance import (
    Attendance,
    describe_rare,
    find_rare,
    read_attendance,
)
from fairbloom.server.run_folder.files import BEST, COEFFICIENTS, MODEL, ROUNDS
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.run_folder.run_tables import Records
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies import FairStrategy, FedAvg, from_config
from fairbloom.system.values import decode, encode
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
    found = found.after(round_of(1, used="ab"))  # c is refused
    found = found.after(round_of(2, missing=("b",), used="a"))
    assert COLUMNS == ("rounds_asked", "rounds_answered", "rounds_counted")
    assert rows(found) == {"a": [2, 2, 2], "b": [2, 1, 1], "c": [2, 2, 0], "d": [0, 0, 0]}


# Far fewer rounds than the others -----------------------------------------------------------------


def attended(used: int, **absent: int) -> Attendance:
    name = "x" if absent else "y"
    return Attendance(name, 60, used, absent)


# The clients of a run of 60 rounds, and how many are rare. Where used and absent rounds are fewer
# than 60, the client was not drawn in the others.
RARE: list[tuple[str, list[Attendance], int]] = [
    ("it hung, and owed a reply", [attended(7, missing=1, owing=52), attended(60)], 1),
    ("a third, which is above half of itself only", [attended(20, offline=40), attended(60)], 1),
    ("half of the rounds", [attended(30, offline=30), attended(60)], 0),
    ("all others are as rare", [attended(7, offline=53), attended(8, owing=52)], 0),
    ("it is alone", [attended(7, offline=53)], 0),
    ("always refused", [attended(0, refused=60), attended(60), attended(60)], 1),
    ("drawn in a tenth, and always refused", [attended(0, refused=6), attended(6)], 1),
    ("drawn seldom, and away seldom", [attended(2, offline=7), attended(6), attended(6)], 0),
    ("drawn seldom, and never absent", [attended(1), attended(6), attended(6)], 0),
    ("drawn as often, its evaluations refused", [attended(6, refused=54), attended(6)], 0),
    ("never there", [attended(0, offline=60), attended(6), attended(6)], 1),
]


@pytest.mark.parametrize(
    ("clients", "count"), [row[1:] for row in RARE], ids=[row[0] for row in RARE]
)
def test_a_rare_client_is_one_that_its_absences_made_rare(
    clients: list[Attendance], count: int
) -> None:
    assert find_rare(clients) == clients[:count]


def write_rounds(
    folder: Path, rows: list[dict[str, Any]], used: dict[str, list[int]], *, finished: bool = True
) -> None:
    columns = ("round", "refused", "missing", "offline", "owing", "excluded")
    numbered = [{"round": number, **row} for number, row in enumerate(rows, start=1)]
    ROUNDS.path_in(folder).write_text(format_csv(columns, numbered))
    weights = [
        {"round": number, "client": name, "coefficient": 1.0}
        for name, numbers in used.items()
        for number in numbers
    ]
    COEFFICIENTS.path_in(folder).write_text(format_csv(COEFFICIENTS.needed, weights))
    if finished:
        MODEL.path_in(folder).touch()


@pytest.mark.parametrize("finished", [False, True])
def test_attendance_is_read_from_the_tables(tmp_path: Path, finished: bool) -> None:
    """A round counts once, by one kind; a refused evaluation takes no update away."""
    rows = [
        {"missing": "a", "refused": "b: evaluation: its loss is too large"},
        {"owing": "a"},
        {"offline": "a 'the third'", "excluded": "a"},
        {"refused": "a: too long"},
    ]
    write_rounds(tmp_path, rows, {"b": [1, 2, 3, 4], "the third": [2, 4]}, finished=finished)
    found = {each.client: each for each in read_attendance(tmp_path)}
    assert found == {
        "a": Attendance("a", 4, 0, {"missing": 1, "owing": 1, "offline": 1, "refused": 1}),
        "b": Attendance("b", 4, 4, {}),
        "the third": Attendance("the third", 4, 2, {"offline": 1}),
    }
    assert str(found["a"]) == (
        "a took part in 0 of 4 rounds (refused in 1, missing in 1, offline in 1, owing in 1)"
    )
    assert [each.client for each in read_attendance(tmp_path, ["b"])] == ["b"]
    assert describe_rare(tmp_path, ()) == [str(found["a"])]
    assert describe_rare(tmp_path, ["b", "the third"]) == []


def test_without_absences_no_attendance_is_read(tmp_path: Path) -> None:
    write_rounds(tmp_path, [{}, {}], {"b": [1, 2]})
    assert read_attendance(tmp_path) == []
    write_rounds(tmp_path, [{"offline": "a"}], {"b": [1]})
    COEFFICIENTS.path_in(tmp_path).unlink()
    assert read_attendance(tmp_path) == []


def test_of_many_rare_clients_three_are_named(tmp_path: Path) -> None:
    away = " ".join(f"away-{number}" for number in range(5))
    there = {f"there-{number}": [1, 2] for number in range(6)}
    write_rounds(tmp_path, [{"offline": away}] * 2, there)
    *named, last = describe_rare(tmp_path, ())
    assert [words.split()[0] for words in named] == ["away-0", "away-1", "away-2"]
    assert last == "2 more clients took part in so few rounds (rounds.csv says why)"


def test_a_runs_end_and_its_page_name_who_took_part_rarely(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    chosen = Settings.of({"clients": 2, "num-rounds": 3})
    folder = RunRecorder(tmp_path, chosen.strategy(), Records(config=chosen.run_config()))
    folder.resume()
    for number in (1, 2, 3):
        folder.method.enter(folder.method.run_state.stopped(number))
        folder.record(replace(round_of(number, used="ab"), owing=("c",)), 0.1)
    assert not [text for text in said.messages if "took part" in text]
    folder.finish({"w": np.zeros(3)})
    sentence = "c took part in 0 of 3 rounds (owing in 3)"
    assert sentence in said.messages
    run = load(tmp_path)
    assert run.absences()["owing"] == [("c", 3)]
    assert f"{sentence}." in caveats_of_run(run)
    assert f"{tmp_path.name}: {sentence}." in caveats_of_comparison({"FedAvg": [run]})


def test_a_round_that_nobody_answers_was_asked_for() -> None:
    """Such a round has no participants."""
    found = Participations()
    found = found.after(replace(round_of(1, missing=("a", "b"), used=""), participants=()))
    assert [*rows(found).values()] == [[1, 0, 0], [1, 0, 0], [0] * 3, [0] * 3]


def test_the_state_continues_to_the_same_numbers() -> None:
    whole = Participations()
    begun = Participations()
    for number in (1, 2, 3):
        whole = whole.after(round_of(number, used="ab"[:number]))
        if number < 3:
            begun = begun.after(round_of(number, used="ab"[:number]))
    continued = decode(Participations, json.loads(json.dumps(encode(begun))))
    continued = continued.after(round_of(3, used="ab"))
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
