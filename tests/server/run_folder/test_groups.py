"""Groups in the records of a run: clients' reports with any engine, and impossible reports."""

import logging
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.app import app
from fairbloom.experiments.results.run import load
from fairbloom.protocol.scores import ACCURACY, BRIER, SENSITIVITY, GroupScore
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.participation import Participations
from fairbloom.rounds.round import Round
from fairbloom.server.app import federate
from fairbloom.server.log_lines import summarize_row
from fairbloom.server.run_folder.csv_rows import ClientRows, format_round
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CLIENTS, GROUPED, GROUPS, MODEL, ROUNDS
from fairbloom.server.run_folder.group_rows import Grouped, format_groups
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.tasks.measures import TRUE_POSITIVE_RATE
from tests.simulation.helpers import (
    StoppedError,
    checkpoints_every,
    stop_after,
    table,
    without_seconds,
)
from tests.tables.helpers import grouped, inferred
from tests.tasks.test_groups import patients

from .test_recorder import a_round

PLAIN: dict[str, Any] = {
    "task": "csv",
    "num-rounds": 3,
    "device": "cpu",
}

SEXES = Grouped(
    {"sex": ("F", "M", None)}, (GroupScore("accuracy", percent=True), TRUE_POSITIVE_RATE)
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of three sites: b has few old patients, and c few women."""
    folder = tmp_path_factory.mktemp("data") / "sites"
    folder.mkdir()
    (folder / "a.csv").write_text(patients(120))
    (folder / "b.csv").write_text(patients(80, first=10))
    (folder / "c.csv").write_text(patients(90, sex=lambda k: "F" if k < 12 else "M"))
    return folder


def on(data: Path) -> dict[str, Any]:
    """Return the settings of a run on data with two groupings."""
    return {"data-dir": str(data), "schema": grouped(data, "sex", "age>=80")}


def run(data: Path, out: Path, **changes: Any) -> Path:
    return simulate(Settings.of({**PLAIN, **on(data), "out": str(out), **changes}))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(data, tmp_path_factory.mktemp("runs") / "finished", engine="loop")


def test_groups_csv_has_a_row_per_round_client_and_large_group(
    finished: Path,
    data: Path,
    subtests: pytest.Subtests,
) -> None:
    rows = table(finished / "groups.csv")
    assert list(rows[0])[:7] == ["round", "client", "model", "split", "grouping", "group", "count"]
    assert {row["split"] for row in rows} == {"test"}
    assert list(rows[0])[7:] == ["accuracy", "selection_rate", "positives", "true_positive_rate"]
    assert {row["round"] for row in rows} == {"1", "2", "3"}
    of_last = [row for row in rows if row["round"] == "3"]
    assert {(row["client"], row["grouping"]) for row in of_last} <= {
        (c, g) for c in "abc" for g in ("sex", "age>=80")
    }
    # her men would say how few women
    assert ("c", "sex") not in {(row["client"], row["grouping"]) for row in of_last}
    assert {row["group"] for row in of_last if row["grouping"] == "sex"} == {"F", "M"}
    tested = {row["client"]: int(row["test_examples"]) for row in table(finished / "clients.csv")}
    for client, grouping in {(row["client"], row["grouping"]) for row in of_last}:
        with subtests.test(client=client, grouping=grouping):
            counts = [
                int(row["count"])
                for row in of_last
                if (row["client"], row["grouping"]) == (client, grouping)
            ]
            assert min(counts) >= 5
            assert sum(counts) == tested[client]
    about = GROUPED.read(finished)
    assert about.groupings == {"sex": ("F", "M", None), "age>=80": (">=80", "<80", None)}


def test_clients_that_send_messages_report_the_same_groups(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    config = {**PLAIN, **on(data), "fraction": 1.0}

    def clients_of(method: Any) -> FlowerClients:
        return FlowerClients(
            method, InProcessGrid(app, Settings.of(config).run_config(), 3), timeout=60.0
        )

    out = federate(Settings.of({**config, "out": str(tmp_path / "run")}), clients_of)
    assert (out / "groups.csv").read_bytes() == (finished / "groups.csv").read_bytes()
    assert (out / "groups.json").read_bytes() == (finished / "groups.json").read_bytes()


def test_grouping_changes_no_other_number_and_adds_one_file(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    plain = run(data, tmp_path / "run", engine="loop", schema=inferred(data))
    assert CLIENTS.path_in(plain).read_bytes() == CLIENTS.path_in(finished).read_bytes()
    here, there = (MODEL.read(folder) for folder in (plain, finished))
    assert {name: array.tobytes() for name, array in here.items()} == {
        name: array.tobytes() for name, array in there.items()
    }
    assert without_seconds(plain / ROUNDS.name) == without_seconds(finished / ROUNDS.name)
    assert not GROUPED.exists_in(plain)
    assert not GROUPS.exists_in(plain)


def test_a_run_that_was_killed_goes_on_with_the_same_rows(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    settings = Settings.of(
        {**PLAIN, **on(data), "out": str(tmp_path / "run"), "engine": "loop", "fraction": 1.0}
    )

    with checkpoints_every(1):
        with pytest.raises(StoppedError):
            federate(settings, lambda method: LocalClients(method, settings), stop_after(2))
        with (tmp_path / "run" / GROUPS.name).open("a") as file:
            file.write("3,a,global,se")  # torn
        federate(settings, lambda method: LocalClients(method, settings))
    assert (tmp_path / "run" / GROUPS.name).read_bytes() == (finished / GROUPS.name).read_bytes()


def test_a_run_with_other_groups_is_another_run(finished: Path, data: Path) -> None:
    with pytest.raises(RunFolderError, match="schema = another text there and another text here"):
        run(data, finished, engine="loop", schema=grouped(data, "sex"))


@pytest.fixture(scope="module")
def validated(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(
        data,
        tmp_path_factory.mktemp("validated") / "run",
        method="ditto",
        engine="loop",
        **VALIDATED,
    )


VALIDATED: dict[str, Any] = {"validation-share": 0.3}


def test_accuracies_of_groups_add_up_to_the_clients_accuracy(
    validated: Path,
    subtests: pytest.Subtests,
) -> None:
    of_clients = {(row["round"], row["client"]): row for row in table(validated / "clients.csv")}
    parts: dict[tuple[str, str, str, str], list[dict[str, str]]] = {}
    for row in table(validated / "groups.csv"):
        if row["grouping"] == "sex":
            parts.setdefault((row["round"], row["client"], row["split"], row["model"]), []).append(
                row
            )
    seen = {(client, split, model) for _, client, split, model in parts}
    # c has too few women in any split
    assert seen == {*product("ab", ("test", "validation"), ("global", "personal"))}
    for (number, client, split, model), rows in parts.items():
        with subtests.test(rows=rows, number=number):
            right = sum(int(row["count"]) * float(row["accuracy"]) for row in rows)
            assert right / sum(int(row["count"]) for row in rows) == pytest.approx(
                float(of_clients[number, client][f"{split}_accuracy_of_{model}_model"])
            )
            assert min(int(row["count"]) for row in rows) >= 5


def test_reports_on_validation_examples_are_read_back(validated: Path) -> None:
    rows = [
        row
        for row in table(validated / "groups.csv")
        if (row["model"], row["split"]) == ("global", "validation")
    ]
    report = load(validated).by_group("global", "validation")
    assert [each.count for each in report.groups] == [
        int(row["count"]) for row in rows if row["round"] == "3"
    ]
    assert report.left_out("sex") == 0
    assert load(validated).by_group("global").rows() != report.rows()


def test_stacked_clients_report_equal_groups_of_validation(
    validated: Path, data: Path, tmp_path: Path
) -> None:
    other = table(
        run(data, tmp_path / "run", method="ditto", engine="stacked", **VALIDATED) / "groups.csv"
    )
    keys = ("round", "client", "model", "split", "grouping", "group", "count", "positives")
    assert [[row[key] for key in keys] for row in other] == [
        [row[key] for key in keys] for row in table(validated / "groups.csv")
    ]
    assert {row["split"] for row in other} == {"test", "validation"}


# Impossible reports -------------------------------------------------------------------------------


def finished_with(**report: Any) -> Round:
    report = {"num-examples": 50, "accuracy": 0.5} | {
        f"{key}]": value for key, value in report.items()
    }
    return a_round(2, evaluations={"a": report})


HONEST = {
    "count[sex:F": 20,
    "accuracy[sex:F": 0.5,
    "positives[sex:F": 10,
    "true-positive-rate[sex:F": 0.25,
}


def test_what_an_honest_client_reports_is_a_row() -> None:
    assert format_groups(finished_with(**HONEST, **{"count[sex:M": 30}), SEXES) == [
        (2, "a", "global", "test", "sex", "F", 20, 50.0, 10, 25.0),
        (2, "a", "global", "test", "sex", "M", 30, None, None, None),
    ]


def test_an_impossible_validation_report_leaves_the_test_report() -> None:
    def rows_with(accuracy: float) -> list[tuple[object, ...]]:
        report = {
            "num-examples": 50,
            "accuracy": 0.5,
            **{f"{key}]": value for key, value in HONEST.items()},
        }
        report |= {"count[sex:M]-validation": 60, "accuracy[sex:M]-validation": accuracy}
        return format_groups(replace(finished_with(), evaluations={"a": report}), SEXES)

    of_test = (2, "a", "global", "test", "sex", "F", 20, 50.0, 10, 25.0)
    assert rows_with(1.0) == [
        of_test,
        (2, "a", "global", "validation", "sex", "M", 60, 100.0, None, None),
    ]
    assert rows_with(1.5) == [of_test]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        *(({"count[sex:F": count}, f"its count of F is {count}") for count in (20.5, 0, -3)),
        ({"count[sex:M": 31}, "51 examples together, and it was tested on 50"),
        ({"positives[sex:F": 21}, "its positives of F is 21"),
        ({"accuracy[sex:F": 1.5}, "its accuracy of F is 1.5"),
        ({"accuracy[sex:M": 0.5}, "its count of M is None"),
        (
            {"count[sex:M": 20, "true-positive-rate[sex:M": 0.5},
            "its true-positive-rate of M comes without its positives",
        ),
    ],
)
def test_what_cannot_be_true_of_a_grouping_is_left_out_and_said(
    caplog: pytest.LogCaptureFixture, wrong: dict[str, Any], why: str
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        assert format_groups(finished_with(**{**HONEST, **wrong}), SEXES) == []
    assert why in caplog.text
    assert "client a" in caplog.text


def test_groups_that_nobody_agreed_on_are_in_no_row() -> None:
    strange = {"count[sex:X": 5, "count[race:F": 5, f"count[sex:{'x' * 10_000}": 5}
    assert len(format_groups(finished_with(**HONEST, **strange), SEXES)) == 1


# What else is not believed, and what a log line says ----------------------------------------------


def test_a_share_above_one_is_left_out_of_a_readable_run() -> None:
    """A client that reports one would otherwise make the table unreadable."""
    finished = finished_with()
    report = {**finished.evaluations["a"], "sensitivity": 7.0, "brier": 7.0}
    table = ClientRows((ACCURACY, SENSITIVITY, BRIER))
    (row,) = table.rows(replace(finished, evaluations={"a": report}), Participations())
    cells = dict(zip(table.columns, row, strict=True))
    assert cells["test_accuracy_of_global_model"] == 50.0
    assert cells["test_sensitivity_of_global_model"] is None
    assert cells["test_brier_of_global_model"] is None


def test_a_rounds_log_line_states_how_many_clients_a_mean_covers() -> None:
    finished = finished_with()
    both = replace(
        finished, evaluations={**finished.evaluations, "b": {"num-examples": 3}}, clients=2
    )
    row = format_round(both, 1.0)
    noisy = format_round(both, 1.0, score=replace(ACCURACY, noisy=True))
    assert [key for key in noisy if "accuracy" in key] == ["test_accuracy_of_global_model_mean"]
    assert (row["clients"], row["clients_scored"]) == (2, 1)
    assert (
        summarize_row(row, ACCURACY)
        == ": test accuracy 50.0 % over 1 of 2 clients, of the worst 10 % of clients 50.0 %"
    )
    assert "over" not in summarize_row(format_round(replace(finished, clients=1), 1.0), ACCURACY)


def test_a_rounds_log_line_has_personal_models_beside_the_global_one() -> None:
    measured = {"mean": 80.9, "worst_10": 52.2}
    row = {f"test_accuracy_of_global_model_{key}": value for key, value in measured.items()}
    row |= {f"test_accuracy_of_personal_model_{k}": v + 5.0 for k, v in measured.items()}
    assert summarize_row(row, ACCURACY) == (
        ": test accuracy 80.9 %, of the worst 10 % of clients 52.2 %; personal models 85.9 % and"
        " 57.2 %"
    )
    assert "personal models" not in summarize_row(row, ACCURACY, "personal")
    noisy = summarize_row(row, replace(ACCURACY, noisy=True))
    assert noisy.startswith(": test accuracy 80.9 %, perhaps with the noise of privacy accounts")
    assert "52.2" not in noisy
