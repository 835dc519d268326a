"""The run folder: which run it belongs to, and its content after a crash."""

import os
import shutil
import threading
import tomllib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tomli_w
from flwr.app import Array, ArrayRecord

from fairbloom.protocol.parameters import SettingsError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.version import RUN_FOLDER_FORMAT as FORMAT
from fairbloom.rounds.run_state import ScoreSoFar
from fairbloom.server.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    load_last,
    load_model,
)
from fairbloom.server.run_folder import recorder
from fairbloom.server.run_folder.csv_rows import (
    ClientRows,
    Validation,
    parse_refusals,
    round_columns,
)
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import ROUNDS as ROUNDS_TABLE, is_finished
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.run_folder.run_tables import Records
from fairbloom.server.run_folder.stopping import NEVER, EarlyStopping
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.strategies import Round
from tests.simulation.helpers import (
    Outcome,
    assert_whole,
    checkpoints_every,
    drafts,
    run,
    small,
    table,
)
from tests.simulation.test_rounds_as_set import run_after_first_round

from ..test_checkpoint import full_disk

ROUNDS = 12


def settings(**changes: Any) -> Settings:
    return Settings.of({"clients": 3, "num-rounds": ROUNDS, **changes})


def records(
    path: Path,
    chosen: Settings,
    keep: Callable[[int], None] = lambda since: None,
    **options: Any,
) -> RunRecorder:
    written = Records(config=chosen.run_config(), **options)
    return RunRecorder(path, chosen.strategy(), written, keep=keep)


def resume(folder: RunRecorder) -> Any:
    """Continue from the last checkpoint, as a run does: its method has the state."""
    if (continued := folder.resume()) is not None:
        folder.method.load_state_dict(continued[1])
    return continued


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
        "evaluations": {
            name: {"num-examples": 2, "accuracy": number / 20, "loss": 0.5} for name in "abc"
        },
        "bytes_sent": 12,
        "bytes_received": 12,
    }
    return Round(**(plain | changes))


def record(
    folder: RunRecorder, number: int, seconds: float = 0.25, **changes: Any
) -> Mapping[str, object]:
    folder.method.enter(folder.method.run_state.stopped(number))
    return folder.record(a_round(number, **changes), seconds)


def rounds_in(path: Path) -> list[int]:
    return [int(row["round"]) for row in table(path)]


# Which run a folder belongs to --------------------------------------------------------------------


def test_a_run_with_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    records(tmp_path, settings(method="fedfv", seed=1))
    with pytest.raises(RunFolderError) as refusal:
        records(tmp_path, settings(method="fedfv", seed=2, **{"fedfv.alpha": 0.3}))
    message = str(refusal.value)
    assert "seed = 1 there and 2 here" in message
    assert "fedfv.alpha = 0.1 there and 0.3 here" in message
    assert "clients" not in message
    assert "--out" in message


def test_limits_may_be_changed_until_the_run_is_finished(tmp_path: Path) -> None:
    """And who is enrolled also after that."""
    limits = {"max-growth": 20.0, "loss-limit": float("inf"), "update-limit": 1e3}
    records(tmp_path, settings())
    continued = records(tmp_path, settings(**limits))
    continued.begin()
    assert tomllib.loads((tmp_path / "config.toml").read_text()).items() >= limits.items()
    continued.finish({"w": np.zeros(3)})
    assert records(tmp_path, settings(**limits, **{"enrolled-sizes": "a=8"})).finished
    with pytest.raises(RunFolderError) as refusal:
        records(tmp_path, settings())
    assert all(limit in str(refusal.value) for limit in limits)


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change entries of config.toml, or take those away that are None."""
    changes = {"number-of-settings": None, **changes}  # of fewer settings in an older version
    config = tomllib.loads((folder / "config.toml").read_text()) | changes
    (folder / "config.toml").write_text(
        tomli_w.dumps({k: v for k, v in config.items() if v is not None})
    )


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


@pytest.mark.parametrize("content", ["thesis.tex", ".hidden", "rounds.csv"])
def test_an_unusable_folder_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    file = tmp_path / content
    file.write_text("precious")
    for place in (tmp_path, file, file / "runs" / "run"):
        with pytest.raises(RunFolderError):
            records(place, settings())
    assert [path.name for path in tmp_path.iterdir()] == [content]
    assert file.read_text() == "precious"


@pytest.mark.parametrize("place", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["name", "path"])
def test_too_long_a_path_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(RunFolderError):
        records(tmp_path / place, settings())


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
@pytest.mark.parametrize("finished", [False, True])
def test_a_folder_of_another_format_is_refused_unchanged(
    tmp_path: Path, finished: bool, number: int
) -> None:
    folder = records(tmp_path, settings())
    if finished:
        folder.finish({"w": np.zeros(3)})
    rewrite_config(tmp_path, **{"run-folder-format": number, "not-yet-known": 1})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match=f"run-folder-format = {number}"):
        records(tmp_path, settings())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(
        RunFolderError,
        match=r"the run folder cannot be written to .*: Permission denied.*permissions",
    ):
        records(tmp_path / "run", settings())


# Rows and checkpoints -----------------------------------------------------------------------------


def test_a_new_run_has_nothing_to_continue_and_empty_tables(tmp_path: Path) -> None:
    assert records(tmp_path, settings()).resume() is None
    assert (tmp_path / "rounds.csv").read_text() == ",".join(
        round_columns(settings().strategy(), also=("owing", "revoked", "other_rows"))
    ) + "\n"
    assert (tmp_path / "clients.csv").read_text() == ",".join(ClientRows().columns) + "\n"


def begun(path: Path, rounds: int, **changes: Any) -> RunRecorder:
    """Record rounds, each with a checkpoint of its own."""
    folder = records(path, settings())
    resume(folder)
    for number in range(1, rounds + 1):
        record(folder, number, **changes)
    return folder


def test_a_run_continues_from_the_last_recorded_round(tmp_path: Path) -> None:
    begun(tmp_path, 3)
    continued = records(tmp_path, settings()).resume()
    np.testing.assert_array_equal(continued[0]["w"], np.full(3, 3.0))
    assert continued[1]["finished_rounds"] == 3
    assert rounds_in(tmp_path / "rounds.csv") == [1, 2, 3]


def test_any_reason_of_a_refusal_is_recorded_and_read_back(tmp_path: Path) -> None:
    refused = {
        "b": 'error 2: a "quoted", broken\nreason',
        "c": "ValueError: line one\n2,line two\r\nline three",
    } | {f"client-{k}": "ValueError: " + "x" * 1000 for k in range(200)}
    begun(tmp_path, 2, participants=("a", "b", "c", "d"), refused=refused, missing=("d",))
    before = (tmp_path / "rounds.csv").read_bytes()
    records(tmp_path, settings()).resume()
    assert (tmp_path / "rounds.csv").read_bytes() == before
    row = ROUNDS_TABLE.read(tmp_path)[-1]
    assert dict(parse_refusals(row["refused"])) == refused
    assert (row["participants"], row["replies_used"], row["missing"]) == ("4", "1", "d")


def test_the_best_model_is_remembered_across_a_restart(tmp_path: Path) -> None:
    begun(tmp_path, 1, evaluations={"a": {"num-examples": 2, "accuracy": 0.9}})
    best = (tmp_path / "model-best.safetensors").read_bytes()
    continued = records(tmp_path, settings())
    resume(continued)
    record(continued, 2, evaluations={"a": {"num-examples": 2, "accuracy": 0.8}})
    assert (tmp_path / "model-best.safetensors").read_bytes() == best
    record(continued, 3, evaluations={"a": {"num-examples": 2, "accuracy": 0.95}})
    assert (tmp_path / "model-best.safetensors").read_bytes() != best


@pytest.mark.parametrize(
    ("means", "falls"),
    [
        ((0.4, 0.9, 0.1), True),
        ((0.4, 0.9, 0.5), False),
        ((0.9, 0.4, 0.8), False),
        ((0.0, 0.0), False),
    ],
)
def test_a_run_whose_score_falls_warns_once_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, means: tuple[float, ...], falls: bool
) -> None:
    folder = records(tmp_path, settings())
    resume(folder)
    for number, mean in enumerate(means, 1):
        record(folder, number, evaluations={"a": {"num-examples": 2, "accuracy": mean}})
    assert not caplog.messages
    folder.finish({"w": np.zeros(3)})
    assert ["model-best.safetensors" in each for each in caplog.messages] == [True] * falls


@pytest.mark.parametrize("name", ["rounds.csv", "clients.csv"])
def test_torn_rows_after_the_last_checkpoint_are_dropped(tmp_path: Path, name: str) -> None:
    """As a power failure leaves them: the rows of round 12 in part, the checkpoint of round 11."""
    refused = {"b": 'ValueError: "capteur" cassé\n3,2,1\r\n'}
    folder = begun(tmp_path, ROUNDS - 1, refused=refused)
    path = tmp_path / name
    whole = path.read_bytes()
    record(folder, ROUNDS, refused=refused)
    (tmp_path / "checkpoint" / f"{ROUNDS}.safetensors").unlink()
    written = path.read_bytes()
    assert written.startswith(whole)
    for length in range(len(whole), len(written) + 1):
        path.write_bytes(written[:length])
        resume(folder)
        assert path.read_bytes() == whole, length


def test_tables_and_checkpoint_agree_after_a_run(tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder = run(tmp_path / "run", num_rounds=4)
    last = load_last(folder / "checkpoint")
    assert last is not None
    model, state = last
    assert state["strategy"]["finished_rounds"] == max(rounds_in(folder / "rounds.csv")) == 4
    assert sorted(model) == ["1.bias", "1.weight"]
    for name, size in state["tables"].items():
        with subtests.test(name=name, size=size):
            assert (folder / name).stat().st_size == size
            assert_whole(folder / name)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "header": lambda content: content[:40] + b"?" + content[41:],
    "data": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@pytest.mark.parametrize("damage", DAMAGES.values())
def test_a_damaged_final_model_is_written_again_once_deleted(
    tmp_path: Path, damage: Callable[..., Any]
) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    whole = Outcome.of(folder)
    model = folder / "model.safetensors"
    model.write_bytes(damage(model.read_bytes()))
    with pytest.raises(RunFolderError, match=r"model\.safetensors"):
        run(folder, num_rounds=2)
    model.unlink()
    assert not Outcome.of(run(folder, num_rounds=2)).differences(whole)


def test_a_table_that_is_not_the_runs_is_refused_and_left_alone(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    begun(tmp_path, 2)
    path = tmp_path / "clients.csv"
    whole = path.read_bytes()
    for content in (whole[:-1], b"epoch" + whole[5:], None):
        with subtests.test(content=content):
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(RunFolderError, match=r"clients\.csv"):
                records(tmp_path, settings()).resume()
            assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.parametrize(
    ("seconds", "refused"),
    [
        *[(each, True) for each in ([0.01] * 102, [0.5] * 3, [0.3] * 5, [])],
        *[(each, False) for each in ([0.01] * 99, [0.5, 0.1, 0.1], [0.3] * 4)],
    ],
)
def test_a_run_is_refused_without_a_checkpoint_that_it_had(
    tmp_path: Path, seconds: list[float], refused: bool
) -> None:
    """A killed run may have the rounds of two: those of the second are recorded before it waits for
    the first."""
    shared(tmp_path, *seconds) if seconds else begun(tmp_path, 2)
    before = (tmp_path / "rounds.csv").read_bytes()
    for each in list_checkpoints(tmp_path / "checkpoint"):
        each.unlink()
    with pytest.raises(RunFolderError, match="no checkpoint") if refused else nullcontext():
        shared(tmp_path) if seconds else begun(tmp_path, 0)
    assert ((tmp_path / "rounds.csv").read_bytes() == before) == refused


# Rounds that share a checkpoint -------------------------------------------------------------------


def shared(path: Path, *seconds: float, **options: Any) -> RunRecorder:
    """Record rounds that took so long and may share a checkpoint."""
    folder = records(path, settings(method="fedfv"), in_process=True, **options)
    resume(folder)
    for number, each in enumerate(seconds, folder.saved + 1):
        record(folder, number, each)
    folder.flush()
    return folder


def saved(path: Path) -> list[int]:
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
def test_rounds_share_a_checkpoint_until_they_took_half_a_second(
    tmp_path: Path, seconds: list[float], written: list[int]
) -> None:
    shared(tmp_path, *seconds)
    assert saved(tmp_path) == written
    assert rounds_in(tmp_path / "rounds.csv") == list(range(1, len(seconds) + 1))
    assert (tmp_path / "model-best.safetensors").exists() == bool(written)
    assert shared(tmp_path).saved == max(written, default=0)
    assert rounds_in(tmp_path / "rounds.csv") == list(range(1, max(written, default=0) + 1))
    assert len(rounds_in(tmp_path / "clients.csv")) == 3 * max(written, default=0)


def test_the_best_model_may_precede_a_shared_checkpoint(tmp_path: Path) -> None:
    folder = shared(tmp_path)
    for number, accuracy in enumerate((0.5, 0.9, 0.7), 1):
        record(folder, number, 0.2, evaluations={"a": {"num-examples": 2, "accuracy": accuracy}})
    folder.flush()
    model, about = load_model(tmp_path / "model-best.safetensors")
    assert about["round"] == 2
    np.testing.assert_array_equal(model["w"], np.full(3, 2.0))


def test_a_disk_that_takes_no_rows_is_told_with_the_round(tmp_path: Path) -> None:
    folder = shared(tmp_path, 0.1)
    before = (tmp_path / "rounds.csv").read_bytes()
    with full_disk(10), pytest.raises(RunFolderError, match="round 2 cannot be written"):
        record(folder, 2)
    assert (tmp_path / "rounds.csv").read_bytes() == before


def test_clients_store_their_own_before_each_checkpoint(tmp_path: Path) -> None:
    """They are called with the round to which the run may go back."""
    asked: list[tuple[int, list[int]]] = []
    shared(tmp_path, *[0.25] * 10, keep=lambda since: asked.append((since, saved(tmp_path))))
    assert asked == [(0, []), (2, [2]), (2, [4, 2]), (4, [6, 4]), (6, [8, 6])]
    (tmp_path / "checkpoint" / "10.safetensors").write_bytes(b"")
    asked.clear()
    shared(
        tmp_path, *[0.1] * 5, *[0.6] * 2, keep=lambda since: asked.append((since, saved(tmp_path)))
    )
    assert asked == [(8, [10, 8]), (8, [13, 8]), (13, [14, 13])]


@pytest.mark.parametrize("seconds", [[0.01] * 150, [0.1, *[0.01] * 149], [0.3] * 6, [1.0] * 3])
def test_rows_of_two_checkpoints_that_are_not_there_are_dropped(
    tmp_path: Path, seconds: list[float]
) -> None:
    """The last one was damaged, say, and the run killed before the next one was written."""
    shared(tmp_path, *seconds)
    last, before = saved(tmp_path)
    kept = (tmp_path / "checkpoint" / f"{before}.safetensors").read_bytes()
    shared(tmp_path, *seconds[-1:] * (last - before))
    for number in (last, saved(tmp_path)[0]):
        (tmp_path / "checkpoint" / f"{number}.safetensors").unlink()
    (tmp_path / "checkpoint" / f"{before}.safetensors").write_bytes(kept)
    assert shared(tmp_path).saved == before
    assert rounds_in(tmp_path / "rounds.csv") == list(range(1, before + 1))


def test_a_finished_run_without_its_checkpoints_stays_as_it_is(tmp_path: Path) -> None:
    """Its first checkpoint was written before its model."""
    with checkpoints_every(1):
        folder = run(tmp_path / "run", num_rounds=2)
        shutil.rmtree(folder / "checkpoint")
        with pytest.raises(RunFolderError, match="no checkpoint"):
            run(folder, num_rounds=3)
    assert is_finished(folder)


# A thread that writes checkpoints ------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk to which tables are flushed, before a checkpoint is written, once it is set."""
    ready = threading.Event()
    monkeypatch.setattr(recorder, "sync_folder", lambda _: ready.wait(60.0))
    return ready


def test_a_round_is_recorded_while_a_checkpoint_is_written(
    tmp_path: Path, disk: threading.Event
) -> None:
    """The checkpoint and the best model are those of the round before; the next one waits."""
    folder = shared(tmp_path)
    record(folder, 1, 0.6)
    record(folder, 2, 0.1)
    assert (saved(tmp_path), rounds_in(tmp_path / "rounds.csv")) == ([], [1, 2])
    threading.Timer(0.2, disk.set).start()
    record(folder, 3, 0.6)
    folder.close()
    assert saved(tmp_path) == [3, 1]
    model, state = load_checkpoint(tmp_path / "checkpoint" / "1.safetensors")
    np.testing.assert_array_equal(model["w"], np.full(3, 1.0))
    assert state["strategy"]["finished_rounds"] == state["strategy"]["best"]["best_round"] == 1
    assert state["strategy"]["participations"]["rounds_asked"] == {"a": 1}


def test_a_checkpoint_needs_no_thread(tmp_path: Path) -> None:
    """None begins once a program is over, whose threads may still train."""
    folder = shared(tmp_path)
    folder._writer.shutdown()
    record(folder, 1, 0.6)
    assert saved(tmp_path) == [1]


@pytest.mark.parametrize(
    "go_on",
    [
        lambda folder: record(folder, 2, 0.6),
        lambda folder: folder.finish({"w": np.zeros(3)}),
        RunRecorder.close,
    ],
    ids=["next", "finish", "close"],
)
def test_a_disk_without_room_for_a_checkpoint_ends_the_run(
    tmp_path: Path, go_on: Callable[[RunRecorder], object]
) -> None:
    folder = shared(tmp_path)
    with full_disk(20_000):
        record(folder, 1, 0.6, arrays={"w": np.zeros(9_000)})
        with pytest.raises(
            RunFolderError, match=r"round 1 cannot be written to .*: File too large\. .*make room"
        ):
            go_on(folder)
    assert (saved(tmp_path), drafts(tmp_path), is_finished(tmp_path)) == ([], [], False)
    shared(tmp_path, 0.1, 0.1).finish({"w": np.zeros(3)})
    assert (saved(tmp_path), is_finished(tmp_path)) == ([2], True)


def test_ctrl_c_leaves_the_checkpoint_that_was_begun(tmp_path: Path, disk: threading.Event) -> None:
    others = threading.enumerate()
    folder = tmp_path / "run"
    threading.Timer(0.5, disk.set).start()
    with checkpoints_every(2), pytest.raises(KeyboardInterrupt):
        simulate(small(folder), Mock(side_effect=[None, KeyboardInterrupt]))
    left = {each.name.partition("_")[0] for each in threading.enumerate() if each not in others}
    assert (saved(folder), drafts(folder), "checkpoint" in left) == ([2], [], False)
    assert not Outcome.of(run(folder)).differences(Outcome.of(run(tmp_path / "whole")))


def test_the_thread_that_trains_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second round on, until the run is over."""
    waiting = list[threading.Thread]()
    monkeypatch.setattr(os, "fsync", lambda _: waiting.append(threading.current_thread()))
    monkeypatch.setattr(RunRecorder, "finish", lambda self, _: self.flush())
    with checkpoints_every(1):
        run_after_first_round(tmp_path / "run", "loop", waiting.clear)
    assert threading.current_thread() not in waiting
    assert len(waiting) >= 3 + 2  # three tables, a checkpoint and its folder


# Early stopping -----------------------------------------------------------------------------------


def test_one_validation_score_in_the_first_rounds_is_enough() -> None:
    stopping = EarlyStopping(3, Validation.of(ACCURACY))
    validated = {"a": {"accuracy": 0.5, "accuracy-validation": 0.5}}
    known = ScoreSoFar()
    for finished in (a_round(1), a_round(2, evaluations=validated), a_round(3), a_round(4)):
        known = stopping.after(known, finished)
    assert (known, stopping.reason(known)) == (ScoreSoFar(50.0, 2, last=2), "")


def test_a_run_without_early_stopping_forgets_its_score() -> None:
    """The same run, extended with early stopping once more, counts from there."""
    assert NEVER.after(ScoreSoFar(50.0, 2, last=9), a_round(10)) == ScoreSoFar()
    assert NEVER.reason(ScoreSoFar(50.0, 2, last=9)) == ""


def test_unevaluated_rounds_need_no_validation_score() -> None:
    stopping = EarlyStopping(2, Validation.of(ACCURACY))
    known = ScoreSoFar()
    for number in range(1, 6):
        known = stopping.after(known, a_round(number, evaluations={}))
    with pytest.raises(SettingsError, match="up to round 6 no client has reported any"):
        stopping.after(known, a_round(6))
