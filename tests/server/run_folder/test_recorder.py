"""The run folder: which run it belongs to, and what is left in it after a crash."""

import itertools
import logging
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from flwr.app import Array, ArrayRecord

from fairbloom.protocol.parameters import SettingsError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.version import RUN_FOLDER_FORMAT as FORMAT
from fairbloom.server.checkpoint import list_checkpoints, load_last, load_model
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import ENGINE, is_finished, write_first_files
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.run_folder.rows import ClientTable, round_columns
from fairbloom.server.run_folder.stopping import EarlyStopping
from fairbloom.server.run_folder.values import Beginning
from fairbloom.server.settings import Settings
from fairbloom.strategies import Round
from fairbloom.tasks import load_task
from tests.simulation.helpers import Outcome, assert_whole, run, small, table

from ..test_checkpoint import full_disk

ROUNDS = 12


def settings(**changes: Any) -> Settings:
    return Settings.of({"clients": 3, "num-rounds": ROUNDS, **changes})


def records(path: Path, chosen: Settings, **options: Any) -> RunRecorder:
    return RunRecorder(path, chosen.run_config(), chosen.strategy(), **options)


def a_round(number: int, **changes: Any) -> Round:
    """Return a round of three clients, of which the first trained."""
    plain: dict[str, Any] = {
        "number": number,
        "participants": ("a",),
        "refused": {},
        "missing": (),
        "coefficients": {"a": 1.0},
        "arrays": ArrayRecord({"w": Array(np.full(3, number, np.float32))}),
        "metrics": {},
        "train_metrics": {"a": {"num-examples": 8, "loss-before": 1.0}},
        "evaluations": {name: {"num-examples": 2, "accuracy": number / 20, "loss": 0.5} for name in "abc"},
        "bytes_sent": 12,
        "bytes_received": 12,
    }
    return Round(**(plain | changes))


def record(folder: RunRecorder, number: int, seconds: float = 0.25, **changes: Any) -> Mapping[str, object]:
    folder.method.progress.finished_rounds = number
    return folder.record(a_round(number, **changes), seconds)


def rounds_in(path: Path) -> list[int]:
    return [int(row["round"]) for row in table(path)]


# Which run a folder belongs to ---------------------------------------------------------------------------------------


def test_the_settings_are_written_as_used(tmp_path: Path) -> None:
    chosen = settings(method="fedfv", **{"fedfv.alpha": 0.3})
    records(tmp_path / "run", chosen)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written.pop("run-folder-format") == FORMAT
    assert written == chosen.run_config()


def test_a_run_with_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    records(tmp_path, settings(method="fedfv", seed=1))
    with pytest.raises(RunFolderError) as refusal:
        records(tmp_path, settings(method="fedfv", seed=2, **{"fedfv.alpha": 0.3}))
    message = str(refusal.value)
    assert "seed = 1 there and 2 here" in message
    assert "fedfv.alpha = 0.1 there and 0.3 here" in message
    assert "clients" not in message
    assert "--out" in message


@pytest.mark.parametrize("changed", [{"max-growth": 20.0}, {"loss-limit": float("inf")}, {"update-limit": 1e3}])
def test_limits_may_be_changed_until_the_run_is_finished(tmp_path: Path, changed: dict[str, float]) -> None:
    records(tmp_path, settings())
    continued = records(tmp_path, settings(**changed))
    continued.begin()
    assert tomllib.loads((tmp_path / "config.toml").read_text()).items() >= changed.items()
    continued.finish({"w": np.zeros(3)})
    records(tmp_path, settings(**changed))
    with pytest.raises(RunFolderError, match=f"{next(iter(changed))} = .* there and .* here"):
        records(tmp_path, settings())


def test_clients_may_enroll_while_a_run_goes_on_and_after_it(tmp_path: Path) -> None:
    folder = records(tmp_path, settings(**{"enrolled-sizes": "a=8"}))
    records(tmp_path, settings(**{"enrolled-sizes": "a=8 b=9"})).begin()
    assert tomllib.loads((tmp_path / "config.toml").read_text())["enrolled-sizes"] == "a=8 b=9"
    folder.finish({"w": np.zeros(3)})
    records(tmp_path, settings(**{"enrolled-sizes": "a=8 b=9 c=10"}))
    assert tomllib.loads((tmp_path / "config.toml").read_text())["enrolled-sizes"] == "a=8 b=9"


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change entries of config.toml, or take those away that are None."""
    config = tomllib.loads((folder / "config.toml").read_text()) | changes
    (folder / "config.toml").write_text(tomli_w.dumps({k: v for k, v in config.items() if v is not None}))


def test_a_setting_that_is_newer_than_the_folder_had_its_default(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    rewrite_config(tmp_path, **{"weight-decay": None})
    records(tmp_path, settings()).begin()
    assert tomllib.loads((tmp_path / "config.toml").read_text())["weight-decay"] == 0.0
    rewrite_config(tmp_path, **{"weight-decay": None})
    folder.finish({"w": np.zeros(3)})
    records(tmp_path, settings())
    with pytest.raises(RunFolderError, match=r"weight-decay = 0\.0 there and 0\.5 here"):
        records(tmp_path, settings(**{"weight-decay": 0.5}))


def test_the_same_settings_and_another_place_are_the_same_run(tmp_path: Path) -> None:
    records(tmp_path / "here", settings(out="here"))
    (tmp_path / "here").rename(tmp_path / "there")
    records(tmp_path / "there", settings(out="there"))


@pytest.mark.parametrize("content", ["thesis.tex", ".hidden", "rounds.csv"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("precious")
    with pytest.raises(RunFolderError, match="no run folder: choose another folder"):
        records(tmp_path, settings())
    assert [path.name for path in tmp_path.iterdir()] == [content]
    assert (tmp_path / content).read_text() == "precious"


def test_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("precious")
    with pytest.raises(RunFolderError, match="run is a file, not a folder: choose another folder"):
        records(tmp_path / "run", settings())
    assert (tmp_path / "run").read_text() == "precious"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert not records(tmp_path, settings()).finished
    assert (tmp_path / "config.toml").exists()


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(("number", "remedy"), [(FORMAT - 1, "use the version that wrote it"), (FORMAT + 1, "upgrade")])
def test_a_folder_of_another_format_is_refused_unchanged(
    tmp_path: Path, number: int, remedy: str, finished: bool
) -> None:
    folder = records(tmp_path, settings())
    if finished:
        folder.finish({"w": np.zeros(3)})
    rewrite_config(tmp_path, **{"run-folder-format": number, "not-yet-known": 1})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match=rf"run-folder-format = {number}.*{remedy}.*--out"):
        records(tmp_path, settings())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


BROKEN_CONFIGS = {
    "no TOML": (b"run-folder-format = 2\nseed = \n", r"is no valid TOML: Invalid value \(at line 2, column 8\)"),
    "cut off": (b'run-folder-format = 2\nmethod = "fedf', r"is no valid TOML: .*\(at end of document\)"),
    "twice": (b"seed = 1\nseed = 2\n", r"is no valid TOML: .*\(at line 2, column 9\)"),
    "no text": (b"\x89PNG\r\n\x00\xff", r"is no valid TOML: .*byte 0x89"),
    "zeros": (bytes(100), r"is no valid TOML: .*\(at line 1, column 1\)"),
    "empty": (b"", r"has run-folder-format = None"),
    "something else's": (b'[project]\nname = "x"\n', r"has run-folder-format = None"),
    "a word for a number": (b'run-folder-format = "two"\n', r"has run-folder-format = 'two'"),
}


@pytest.mark.parametrize(("content", "fault"), BROKEN_CONFIGS.values(), ids=BROKEN_CONFIGS)
def test_settings_that_cannot_be_read_are_refused_with_file_line_and_remedy(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    records(tmp_path, settings())
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(
        RunFolderError, match=f"config.toml cannot be read: it {fault}.*estore it from a copy, or"
    ) as refusal:
        records(tmp_path, settings())
    assert str(refusal.value).startswith(f"{tmp_path}/config.toml ")
    assert "\n" not in str(refusal.value)


def test_settings_that_are_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(RunFolderError, match=r"config.toml cannot be read: Is a directory. .*restore it from a copy"):
        records(tmp_path, settings())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match=r"the run folder cannot be written to .*: Permission denied.*permissions"):
        records(tmp_path / "run", settings())


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"/file is a file, not a folder: choose another folder"):
        records(tmp_path / "file" / "runs" / "run", settings())


@pytest.mark.parametrize("place", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["name", "path"])
def test_a_place_with_too_long_a_name_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(RunFolderError, match=r"x cannot be used: File name too long. Choose another folder"):
        records(tmp_path / place, settings())


# Rows and checkpoints -----------------------------------------------------------------------------------------------


def test_a_new_run_has_nothing_to_continue_and_empty_tables(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    assert folder.resume() is None
    assert (tmp_path / "rounds.csv").read_text() == ",".join(round_columns(settings().strategy())) + "\n"
    assert (tmp_path / "clients.csv").read_text() == ",".join(ClientTable().columns) + "\n"


def test_a_run_continues_from_the_last_recorded_round(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number in (1, 2, 3):
        record(folder, number)
    continued = records(tmp_path, settings()).resume()
    assert continued is not None
    np.testing.assert_array_equal(continued[0]["w"], np.full(3, 3.0))
    assert continued[1]["round"] == 3
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2, 3]


def test_refused_and_missing_clients_are_in_the_rounds_row(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    refused = {"b": 'error 2: a "quoted", broken\nreason', "c": "not finite"}
    record(folder, 1, participants=("a", "b", "c", "d"), refused=refused, missing=("d",))
    (row,) = table(tmp_path / "rounds.csv")
    assert row["refused"] == 'b: error 2: a "quoted", broken\nreason | c: not finite'
    assert (row["participants"], row["replies_used"], row["missing"]) == ("4", "1", "d")


def test_a_reason_of_several_lines_survives_a_restart(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number in (1, 2):
        record(folder, number, refused={"b": "ValueError: line one\n2,line two\r\nline three"})
    before = (tmp_path / "rounds.csv").read_bytes()
    records(tmp_path, settings()).resume()
    assert (tmp_path / "rounds.csv").read_bytes() == before


def test_reasons_longer_than_the_librarys_cells_survive_a_restart(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    record(folder, 1, refused={f"client-{k}": "ValueError: " + "x" * 1000 for k in range(200)})
    before = (tmp_path / "rounds.csv").read_bytes()
    records(tmp_path, settings()).resume()
    assert (tmp_path / "rounds.csv").read_bytes() == before


def test_the_best_model_is_remembered_across_a_restart(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    record(folder, 1, evaluations={"a": {"num-examples": 2, "accuracy": 0.9}})
    best = (tmp_path / "model-best.safetensors").read_bytes()
    continued = records(tmp_path, settings())
    continued.resume()
    record(continued, 2, evaluations={"a": {"num-examples": 2, "accuracy": 0.8}})
    assert (tmp_path / "model-best.safetensors").read_bytes() == best
    record(continued, 3, evaluations={"a": {"num-examples": 2, "accuracy": 0.95}})
    assert (tmp_path / "model-best.safetensors").read_bytes() != best


def test_a_run_is_finished_when_its_model_is_there(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    assert not folder.finished
    folder.finish({"w": np.zeros(3)})
    assert records(tmp_path, settings()).finished


@pytest.mark.parametrize(("name", "rows"), [("rounds.csv", 1), ("clients.csv", 3)])
def test_rows_torn_anywhere_after_the_last_checkpoint_are_dropped(tmp_path: Path, name: str, rows: int) -> None:
    """As a power failure leaves them: the rows of round 12 in part, the checkpoint of round 11."""
    folder = records(tmp_path, settings())
    folder.resume()
    refused = {"b": 'ValueError: "capteur" cassé\n3,2,1\r\n'}
    for number in range(1, ROUNDS):
        record(folder, number, refused=refused)
    path = tmp_path / name
    whole = path.read_bytes()
    record(folder, ROUNDS, refused=refused)
    (tmp_path / "checkpoint" / f"{ROUNDS}.safetensors").unlink()
    written = path.read_bytes()
    assert written.startswith(whole)
    wrong = []
    for length in range(len(whole), len(written) + 1):
        path.write_bytes(written[:length])
        try:
            folder.resume()
            found = path.read_bytes()[len(whole) :] if path.read_bytes() != whole else b""
        except ValueError as error:
            found = repr(error).encode()
        if found:
            wrong.append(f"torn after {written[len(whole) : length]!r}: {found!r}")
    assert not wrong, "\n".join(wrong)
    path.write_bytes(written)
    assert rounds_in(path).count(ROUNDS) == rows


def test_tables_that_are_gone_are_started_again(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    record(folder, 1)
    (tmp_path / "clients.csv").unlink()
    continued = records(tmp_path, settings())
    continued.resume()
    record(continued, 2)
    assert rounds_in(tmp_path / "clients.csv") == [2, 2, 2]


def test_tables_and_checkpoint_agree_after_a_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=4)
    last = load_last(folder / "checkpoint")
    assert last is not None
    model, state = last
    assert state["strategy"]["round"] == max(rounds_in(folder / "rounds.csv")) == 4
    assert sorted(model) == ["1.bias", "1.weight"]
    for name in ("rounds.csv", "clients.csv"):
        assert_whole(folder / name)


def test_a_run_folder_can_be_opened_without_writing_to_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert records(folder, small(folder, num_rounds=2)).finished
    assert {path: path.read_bytes() for path in before} == before


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "header": lambda content: content[:40] + b"?" + content[41:],
    "data": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_finished_run_whose_model_is_damaged_is_refused_and_writes_it_again_once_it_is_deleted(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    whole, model = Outcome.of(folder), folder / "model.safetensors"
    model.write_bytes(damage(model.read_bytes()))
    with pytest.raises(RunFolderError, match=r"model.safetensors is damaged: .*\. Delete that file and run the same"):
        run(folder, num_rounds=2)
    model.unlink()
    assert not Outcome.of(run(folder, num_rounds=2)).differences(whole)


# Tables that are not a run's ----------------------------------------------------------------------------------------

FOREIGN = {
    "empty": (b"", "its first line has no column round"),
    "a picture": (b"\x89PNG\r\n\x00\xff\n", "can't decode byte 0x89"),
    "another table": (b"epoch,loss\n1,2\n", "its first line has no column round"),
    "another table with rounds": (b"round,gains\n1,2\n", "its column gains is none of this run's"),
    "a header as a row": (b"round,client\nround,client\n", "the round in line 2 is 'round'"),
    "cells missing": (b"round,client\n1\n", "line 2 has more or fewer cells than the first"),
    "cells too many": (b"round,client\n1,a,b\n", "line 2 has more or fewer cells than the first"),
    "zeros": (b"round,client\n" + bytes(20) + b"\n", "the round in line 2 is"),
    "later rounds": (b"round,client\n7,a\n", "it goes up to round 7, while the last checkpoint is of round 2"),
}


@pytest.mark.parametrize(("content", "fault"), FOREIGN.values(), ids=FOREIGN)
def test_a_table_that_is_not_the_runs_is_refused_with_its_fault_and_left_alone(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number in (1, 2):
        record(folder, number)
    (tmp_path / "clients.csv").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"clients\.csv cannot be read: ") as refusal:
        records(tmp_path, settings()).resume()
    assert fault in str(refusal.value)
    assert "Restore what is missing from a copy, or move the table away" in str(refusal.value)
    assert (tmp_path / "clients.csv").read_bytes() == content
    (tmp_path / "clients.csv").rename(tmp_path / "moved-away")
    assert records(tmp_path, settings()).resume() is not None


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again_unasked(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number in range(1, 6):
        record(folder, number)
    before = (tmp_path / "rounds.csv").read_bytes()
    for path in list_checkpoints(tmp_path / "checkpoint"):
        path.unlink()
    with pytest.raises(RunFolderError, match="it goes up to round 5, while the last checkpoint is of round 0"):
        records(tmp_path, settings()).resume()
    assert (tmp_path / "rounds.csv").read_bytes() == before


# Rounds that share a checkpoint -------------------------------------------------------------------------------------


def shared(path: Path, *seconds: float, **options: Any) -> RunRecorder:
    """Record rounds that took so long and may share a checkpoint."""
    folder = records(path, settings(method="fedfv"), in_process=True, **options)
    folder.resume()
    for number, each in enumerate(seconds, folder.saved + 1):
        record(folder, number, each)
    return folder


def saved(path: Path) -> list[int]:
    """Return the rounds whose checkpoints are in a folder."""
    return [int(file.stem) for file in list_checkpoints(path / "checkpoint")]


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        ([0.1] * 4, []),
        ([0.1] * 5, [5]),
        ([0.1] * 13, [10, 5]),
        ([0.4, 0.4, 0.4], [2]),
        ([0.6, 0.6, 0.1], [2, 1]),
        ([0.499999, 0.000001, 0.1], [2]),
    ],
)
def test_rounds_share_a_checkpoint_until_they_took_half_a_second_and_rows_come_with_it(
    tmp_path: Path, seconds: list[float], written: list[int]
) -> None:
    shared(tmp_path, *seconds)
    last = max(written, default=0)
    assert saved(tmp_path) == written
    assert rounds_in(tmp_path / "rounds.csv") == list(range(1, last + 1))
    assert len(rounds_in(tmp_path / "clients.csv")) == 3 * last
    assert (tmp_path / "model-best.safetensors").exists() == bool(written)


def test_what_waits_is_written_when_a_run_is_over(tmp_path: Path) -> None:
    shared(tmp_path, 0.1, 0.1).finish({"w": np.zeros(3)})
    assert saved(tmp_path) == [2]
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2]
    assert is_finished(tmp_path)


def test_rows_written_together_are_the_bytes_of_rows_written_one_by_one(tmp_path: Path) -> None:
    shared(tmp_path / "one", *[1.0] * 4)
    shared(tmp_path / "four", *[1.0 / 8] * 4).write()
    assert (tmp_path / "one" / "clients.csv").read_bytes() == (tmp_path / "four" / "clients.csv").read_bytes()
    one, four = (table(tmp_path / run / "rounds.csv") for run in ("one", "four"))
    assert [{**row, "seconds": ""} for row in one] == [{**row, "seconds": ""} for row in four]


def test_the_best_of_rounds_that_share_a_checkpoint_is_the_best_model(tmp_path: Path) -> None:
    folder = shared(tmp_path)
    for number, accuracy in enumerate((0.5, 0.9, 0.7), 1):
        record(folder, number, 0.1, evaluations={"a": {"num-examples": 2, "accuracy": accuracy}})
    folder.write()
    model, about = load_model(tmp_path / "model-best.safetensors")
    assert about["round"] == 2
    np.testing.assert_array_equal(model["w"], np.full(3, 2.0))


class StoppedError(Exception):
    """A run is stopped here."""


def record_until(stop: type[BaseException] | None, folder: RunRecorder, rounds: int, seconds: float) -> None:
    """Record rounds until the run is stopped, in the midst of remembering the next one."""
    with folder.write_at_end():
        for number in range(1, rounds + 1):
            record(folder, number, seconds)
        folder.method.memory["seen"].append("b")
        folder.method.memory["losses"]["a"] += 1.0
        folder.method.progress.finished_rounds = rounds + 1
        folder.method.progress.first_counts = {"b": 8.0}
        if stop is not None:
            raise stop


def remembering(folder: RunRecorder) -> RunRecorder:
    """Let the method of a run remember something."""
    folder.method.memory = {"seen": ["a"], "losses": {"a": np.ones(2)}}
    return folder


@pytest.mark.parametrize("stop", [StoppedError, KeyboardInterrupt, SystemExit])
def test_a_run_that_is_stopped_has_written_its_finished_rounds_as_they_were(
    tmp_path: Path, stop: type[BaseException]
) -> None:
    with pytest.raises(stop):
        record_until(stop, remembering(shared(tmp_path)), 2, seconds=0.1)
    continued = records(tmp_path, settings(method="fedfv")).resume()
    assert continued is not None
    state = continued[1]
    assert (state["round"], state["first-counts"], state["memory"]["seen"]) == (2, {}, ["a"])
    np.testing.assert_array_equal(state["memory"]["losses"]["a"], np.ones(2))
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2]


def test_a_stopped_run_whose_clients_have_personal_models_goes_back_to_its_last_checkpoint(tmp_path: Path) -> None:
    """Some of them may already be of the next round."""
    folder = records(tmp_path, settings(method="ditto"), in_process=True)
    folder.resume()
    with pytest.raises(StoppedError):
        record_until(StoppedError, remembering(folder), 7, seconds=0.1)
    assert saved(tmp_path) == [5]
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2, 3, 4, 5]


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], set[str]]]:
    """Return a function that returns the errors which have been logged."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    yield lambda: {entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR}
    logging.getLogger("flwr").removeHandler(caplog.handler)


def test_what_stopped_a_run_is_told_where_its_rounds_cannot_be_written_either(
    tmp_path: Path, errors: Callable[[], set[str]]
) -> None:
    folder = remembering(shared(tmp_path))
    with full_disk(10), pytest.raises(StoppedError):
        record_until(StoppedError, folder, 1, seconds=0.1)
    (said,) = errors()
    assert said.startswith("the rounds after round 0 are run again when the run continues: round 1 cannot be written")
    assert rounds_in(tmp_path / "rounds.csv") == []


def test_what_a_disk_has_refused_is_told_once_and_names_the_rounds(
    tmp_path: Path, errors: Callable[[], set[str]]
) -> None:
    folder = remembering(shared(tmp_path))
    with full_disk(10), pytest.raises(RunFolderError, match=r"rounds 1 to 3 cannot be written to .*: File too"):
        record_until(None, folder, 3, seconds=0.2)
    assert errors() == set()


interrupts: list[tuple[str, Iterator[int]]] = []
hooked: list[bool] = []


def _interrupt(event: str, arguments: tuple[Any, ...]) -> None:
    """Interrupt the process as Ctrl-C does, once, when it touches a file for the n-th time."""
    if interrupts and event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(interrupts[0][0]):
        folder, moments = interrupts.pop()
        if next(moments):
            raise KeyboardInterrupt
        interrupts.append((folder, moments))


def test_ctrl_c_at_any_touch_of_a_file_leaves_all_finished_rounds_on_disk(tmp_path: Path) -> None:
    """A hook cannot be taken away, so there is one."""
    if not hooked:
        sys.addaudithook(_interrupt)
        hooked.append(True)
    whole = shared(tmp_path / "whole", *[0.25] * 6).path
    for moment in itertools.count():
        path = tmp_path / str(moment)
        folder = shared(path, *[0.25] * 5)
        interrupts.append((str(path), iter([*[0] * moment, 1])))
        try:
            with folder.write_at_end():
                record(folder, 6)
        except KeyboardInterrupt:
            for name in (
                "rounds.csv",
                "clients.csv",
                "coefficients.csv",
                "model-best.safetensors",
                "checkpoint/6.safetensors",
            ):
                assert (path / name).read_bytes() == (whole / name).read_bytes(), f"{name} after touch {moment}"
            assert saved(path) == [6, 4]
        else:
            break
        finally:
            interrupts.clear()
    # Three tables, two drafts and twice their folders are opened, the drafts are renamed, and a checkpoint is removed.
    assert moment == 10


def test_clients_store_their_own_before_each_checkpoint_with_the_round_the_run_may_go_back_to(tmp_path: Path) -> None:
    asked: list[tuple[int, list[int]]] = []
    shared(tmp_path, *[0.25] * 10, keep=lambda since: asked.append((since, saved(tmp_path))))
    assert asked == [(0, []), (2, [2]), (2, [4, 2]), (4, [6, 4]), (6, [8, 6])]
    (tmp_path / "checkpoint" / "10.safetensors").write_bytes(b"")
    asked.clear()
    shared(tmp_path, *[0.1] * 5, *[0.6] * 2, keep=lambda since: asked.append((since, saved(tmp_path))))
    assert asked == [(8, [10, 8]), (8, [13, 8]), (13, [14, 13])]


def test_a_folder_whose_checkpoints_are_gone_is_refused_however_many_rounds_share_one(tmp_path: Path) -> None:
    shared(tmp_path, *[0.01] * 150)
    assert saved(tmp_path) == [150, 100]
    for path in list_checkpoints(tmp_path / "checkpoint"):
        path.unlink()
    with pytest.raises(RunFolderError, match="it goes up to round 150, while the last checkpoint is of round 0"):
        shared(tmp_path)


@pytest.mark.parametrize("seconds", [[0.01] * 150, [0.1, *[0.01] * 149], [0.3] * 6, [1.0] * 3])
def test_rows_of_two_checkpoints_that_are_not_there_are_dropped(tmp_path: Path, seconds: list[float]) -> None:
    """The last one was damaged, say, and the run killed before the next one was written."""
    shared(tmp_path, *seconds)
    last, before = saved(tmp_path)
    kept = (tmp_path / "checkpoint" / f"{before}.safetensors").read_bytes()
    shared(tmp_path, *seconds[-1:] * (last - before))
    newest = saved(tmp_path)[0]
    assert rounds_in(tmp_path / "rounds.csv")[-1] == newest > last
    for number in (last, newest):
        (tmp_path / "checkpoint" / f"{number}.safetensors").unlink()
    (tmp_path / "checkpoint" / f"{before}.safetensors").write_bytes(kept)
    assert shared(tmp_path).saved == before
    assert rounds_in(tmp_path / "rounds.csv") == list(range(1, before + 1))


# How the clients are computed ---------------------------------------------------------------------------------------


def test_the_engine_of_a_run_is_kept_as_it_began(tmp_path: Path) -> None:
    assert ENGINE.read(tmp_path) is None
    task = load_task(settings().run_config())
    begun = Beginning(task, data={}, engine={"engine": "workers", "workers": 2}, deployed=True)
    write_first_files(tmp_path, begun)
    write_first_files(tmp_path, replace(begun, engine={"engine": "loop"}))
    assert ENGINE.read(tmp_path) == {"engine": "workers", "workers": 2}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"loop"', b"\xff\xfe"])
def test_a_damaged_record_of_the_engine_is_refused_with_its_file_and_a_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "engine.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"engine\.json cannot be read: .*Restore it from a copy, or delete it"):
        ENGINE.read(tmp_path)


# Early stopping -----------------------------------------------------------------------------------------------------


def test_it_is_enough_that_one_client_has_a_validation_score_in_one_of_the_first_rounds() -> None:
    stopping, validated = EarlyStopping(3, ACCURACY), {"a": {"accuracy": 0.5, "accuracy-validation": 0.5}}
    stopping.observe(a_round(1))
    stopping.observe(a_round(2, evaluations=validated))
    stopping.observe(a_round(3))
    stopping.observe(a_round(4))
    assert (stopping.best, stopping.best_round, stopping.reason) == (50.0, 2, "")


def test_rounds_that_nobody_evaluated_say_nothing_of_validation_examples() -> None:
    stopping = EarlyStopping(2, ACCURACY)
    for number in range(1, 6):
        stopping.observe(a_round(number, evaluations={}))
    with pytest.raises(SettingsError, match="up to round 6 no client has reported any"):
        stopping.observe(a_round(6))
