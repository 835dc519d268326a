"""The run folder: whose it is, and what is left in it after a crash."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from flwr.app import Array, ArrayRecord

from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.server.records import CLIENT_COLUMNS, RunFolder, RunFolderError, as_csv, round_columns
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.strategies import Round
from tests.simulation.helpers import Outcome, assert_whole, run, small, table

ROUNDS = 12


def settings(**changes: Any) -> Settings:
    return Settings.of({"clients": 3, "num-rounds": ROUNDS, **changes})


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


def record(folder: RunFolder, number: int, **changes: Any) -> Mapping[str, object]:
    return folder.record(a_round(number, **changes), {"round": number}, seconds=0.25)


def rounds_in(path: Path) -> list[int]:
    return [int(row["round"]) for row in table(path)]


# Whose folder it is -------------------------------------------------------------------------------------------------


def test_the_settings_are_written_as_used(tmp_path: Path) -> None:
    chosen = settings(method="fedfv", **{"fedfv.alpha": 0.3})
    RunFolder(tmp_path / "run", chosen)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written.pop("run-folder-format") == 1
    assert written == chosen.run_config()


def test_a_run_with_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    RunFolder(tmp_path, settings(method="fedfv", seed=1))
    with pytest.raises(RunFolderError) as refusal:
        RunFolder(tmp_path, settings(method="fedfv", seed=2, **{"fedfv.alpha": 0.3}))
    message = str(refusal.value)
    assert "seed = 1 there and 2 here" in message
    assert "fedfv.alpha = 0.1 there and 0.3 here" in message
    assert "clients" not in message
    assert "--out" in message


@pytest.mark.parametrize("changed", [{"max-growth": 20.0}, {"loss-limit": float("inf")}])
def test_limits_may_be_changed_until_the_run_is_finished(tmp_path: Path, changed: dict[str, float]) -> None:
    RunFolder(tmp_path, settings())
    continued = RunFolder(tmp_path, settings(**changed))
    assert tomllib.loads((tmp_path / "config.toml").read_text()).items() >= changed.items()
    continued.finish({"w": np.zeros(3)})
    RunFolder(tmp_path, settings(**changed))
    with pytest.raises(RunFolderError, match=f"{next(iter(changed))} = .* there and .* here"):
        RunFolder(tmp_path, settings())


def test_clients_may_enroll_while_a_run_goes_on_and_after_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings(**{"enrolled-sizes": "a=8"}))
    RunFolder(tmp_path, settings(**{"enrolled-sizes": "a=8 b=9"}))
    assert tomllib.loads((tmp_path / "config.toml").read_text())["enrolled-sizes"] == "a=8 b=9"
    folder.finish({"w": np.zeros(3)})
    RunFolder(tmp_path, settings(**{"enrolled-sizes": "a=8 b=9 c=10"}))
    assert tomllib.loads((tmp_path / "config.toml").read_text())["enrolled-sizes"] == "a=8 b=9"


def as_written_before(folder: Path) -> None:
    """Take from a run folder what is newer than the first folders were: settings, a column, the first counts."""
    config = tomllib.loads((folder / "config.toml").read_text())
    newer = {"max-growth", "loss-limit", "enrolled-sizes"}
    assert newer <= set(config)
    (folder / "config.toml").write_text(tomli_w.dumps({k: v for k, v in config.items() if k not in newer}))
    rows = [{k: v for k, v in row.items() if k != "decided_by"} for row in table(folder / "rounds.csv")]
    (folder / "rounds.csv").write_text(as_csv(tuple(rows[0]), rows, header=True))
    model, state = load_checkpoint(folder / "checkpoint" / "round.safetensors")
    assert state["strategy"].pop("first-counts")
    save_checkpoint(folder / "checkpoint" / "round.safetensors", model, state)


def test_a_folder_from_before_limits_and_deciders_is_continued(tmp_path: Path) -> None:
    class EndedError(Exception):
        pass

    def end(row: Mapping[str, object]) -> None:
        if row["round"] == 2:
            raise EndedError

    whole = run(tmp_path / "whole", num_rounds=5)
    with pytest.raises(EndedError):
        simulate(small(tmp_path / "run", num_rounds=5), end)
    as_written_before(tmp_path / "run")
    continued = run(tmp_path / "run", num_rounds=5)
    assert not Outcome.of(continued).differences(Outcome.of(whole))
    assert [row["decided_by"] for row in table(continued / "rounds.csv")] == [""] * 5
    assert tomllib.loads((continued / "config.toml").read_text())["loss-limit"] == 1000.0


def test_a_finished_folder_from_before_limits_is_shown(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    as_written_before(folder)
    assert RunFolder(folder, small(folder, num_rounds=2)).finished
    with pytest.raises(RunFolderError, match=r"loss-limit = 1000\.0 there and 5\.0 here"):
        RunFolder(folder, small(folder, num_rounds=2, loss_limit=5.0))


def test_the_same_settings_and_another_place_are_the_same_run(tmp_path: Path) -> None:
    RunFolder(tmp_path / "here", settings(out="here"))
    (tmp_path / "here").rename(tmp_path / "there")
    RunFolder(tmp_path / "there", settings(out="there"))


@pytest.mark.parametrize("content", ["thesis.tex", ".hidden", "rounds.csv"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("precious")
    with pytest.raises(RunFolderError, match="no run folder: choose another --out"):
        RunFolder(tmp_path, settings())
    assert [path.name for path in tmp_path.iterdir()] == [content]
    assert (tmp_path / content).read_text() == "precious"


def test_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("precious")
    with pytest.raises(RunFolderError, match="no run folder: choose another --out"):
        RunFolder(tmp_path / "run", settings())
    assert (tmp_path / "run").read_text() == "precious"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path, settings()).finished
    assert (tmp_path / "config.toml").exists()


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path, settings())
    config = tomllib.loads((tmp_path / "config.toml").read_text())
    (tmp_path / "config.toml").write_text(tomli_w.dumps({**config, "run-folder-format": 2, "not-yet-known": 1}))
    with pytest.raises(RunFolderError, match=r"newer version \(run-folder-format = 2.*upgrade fairbloom"):
        RunFolder(tmp_path, settings())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match=r"the run folder cannot be written to .*: Permission denied.*permissions"):
        RunFolder(tmp_path / "run", settings())


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"the run folder cannot be written to .*: Not a directory"):
        RunFolder(tmp_path / "file" / "run", settings())


# Rows and checkpoints -----------------------------------------------------------------------------------------------


def test_a_new_run_has_nothing_to_continue_and_empty_tables(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    assert folder.resume() is None
    assert (tmp_path / "rounds.csv").read_text() == ",".join(round_columns(settings().strategy())) + "\n"
    assert (tmp_path / "clients.csv").read_text() == ",".join(CLIENT_COLUMNS) + "\n"


def test_a_run_continues_from_the_last_recorded_round(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    for number in (1, 2, 3):
        record(folder, number)
    continued = RunFolder(tmp_path, settings()).resume()
    assert continued is not None
    np.testing.assert_array_equal(continued[0]["w"], np.full(3, 3.0))
    assert continued[1] == {"round": 3}
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2, 3]


def test_refused_and_missing_clients_are_in_the_rounds_row(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    refused = {"b": 'error 2: a "quoted", broken\nreason', "c": "not finite"}
    record(folder, 1, participants=("a", "b", "c", "d"), refused=refused, missing=("d",))
    (row,) = table(tmp_path / "rounds.csv")
    assert row["refused"] == 'b: error 2: a "quoted", broken\nreason | c: not finite'
    assert (row["participants"], row["replies_used"], row["missing"]) == ("4", "1", "d")


def test_who_decided_a_round_is_in_its_row(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    record(folder, 1)
    record(folder, 2, decided_by="a")
    assert [row["decided_by"] for row in table(tmp_path / "rounds.csv")] == ["", "a"]


def test_a_reason_of_several_lines_survives_a_restart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    for number in (1, 2):
        record(folder, number, refused={"b": "ValueError: line one\n2,line two\r\nline three"})
    before = (tmp_path / "rounds.csv").read_bytes()
    RunFolder(tmp_path, settings()).resume()
    assert (tmp_path / "rounds.csv").read_bytes() == before


def test_the_best_model_is_remembered_across_a_restart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    record(folder, 1, evaluations={"a": {"num-examples": 2, "accuracy": 0.9}})
    best = (tmp_path / "model-best.safetensors").read_bytes()
    continued = RunFolder(tmp_path, settings())
    continued.resume()
    record(continued, 2, evaluations={"a": {"num-examples": 2, "accuracy": 0.8}})
    assert (tmp_path / "model-best.safetensors").read_bytes() == best
    record(continued, 3, evaluations={"a": {"num-examples": 2, "accuracy": 0.95}})
    assert (tmp_path / "model-best.safetensors").read_bytes() != best


def test_a_run_is_finished_when_its_model_is_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    assert not folder.finished
    folder.finish({"w": np.zeros(3)})
    assert RunFolder(tmp_path, settings()).finished


@pytest.mark.parametrize(("name", "rows"), [("rounds.csv", 1), ("clients.csv", 3)])
def test_rows_torn_anywhere_after_the_last_checkpoint_are_dropped(tmp_path: Path, name: str, rows: int) -> None:
    """As a power failure leaves them: the rows of round 12 in part, the checkpoint of round 11."""
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    refused = {"b": 'ValueError: "capteur" cassé\n3,2,1\r\n'}
    for number in range(1, ROUNDS):
        record(folder, number, refused=refused)
    checkpoint, path = (tmp_path / "checkpoint" / "round.safetensors").read_bytes(), tmp_path / name
    whole = path.read_bytes()
    record(folder, ROUNDS, refused=refused)
    (tmp_path / "checkpoint" / "round.safetensors").write_bytes(checkpoint)
    written = path.read_bytes()
    assert written.startswith(whole)
    wrong = []
    for length in range(len(whole), len(written) + 1):
        path.write_bytes(written[:length])
        try:
            RunFolder(tmp_path, settings()).resume()
            found = path.read_bytes()[len(whole) :] if path.read_bytes() != whole else b""
        except ValueError as error:
            found = repr(error).encode()
        if found:
            wrong.append(f"torn after {written[len(whole) : length]!r}: {found!r}")
    assert not wrong, "\n".join(wrong)
    path.write_bytes(written)
    assert rounds_in(path).count(ROUNDS) == rows


def test_tables_that_are_gone_are_started_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, settings())
    folder.resume()
    record(folder, 1)
    (tmp_path / "clients.csv").unlink()
    continued = RunFolder(tmp_path, settings())
    continued.resume()
    record(continued, 2)
    assert rounds_in(tmp_path / "clients.csv") == [2, 2, 2]


def test_tables_and_checkpoint_agree_after_a_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=4)
    model, state = load_checkpoint(folder / "checkpoint" / "round.safetensors")
    assert state["strategy"]["round"] == max(rounds_in(folder / "rounds.csv")) == 4
    assert sorted(model) == ["1.bias", "1.weight"]
    for name in ("rounds.csv", "clients.csv"):
        assert_whole(folder / name)


def test_a_run_folder_can_be_opened_without_writing_to_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert RunFolder(folder, small(folder, num_rounds=2)).finished
    assert {path: path.read_bytes() for path in before} == before
