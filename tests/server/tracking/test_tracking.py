"""Trackers: what a run hands over is read back by each tracker's own reader, and none of them can end a run."""

import json
import logging
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.files import MODEL, TENSORBOARD, TRACKING, WANDB
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.run_folder.taking_back import TakeBack
from fairbloom.server.settings import Settings
from fairbloom.server.tracking import tracked
from fairbloom.server.tracking.tracked import TrackingError
from fairbloom.server.tracking.tracker import FEW_CLIENTS, TrackedRun, metrics_of
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies import FedAvg
from tests.server.run_folder.test_flower import app
from tests.server.run_folder.test_recorder import a_round
from tests.server.test_app import deployed
from tests.simulation.helpers import checkpoints_every, run, small, table

BLOCK = 32768

MEAN = "test_accuracy_of_global_model/mean"

USERS = ("MLFLOW_", "WANDB_", "NETRC", "HOME")
"""Beginnings of environment variables by which a user chooses where runs are shown."""


class StoppedError(Exception):
    """A run ends after a round."""


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user without settings for trackers, and without keys."""
    for name in [name for name in os.environ if name.startswith(USERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    before = dict(os.environ)
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # what it has read of the environment
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def stop_after(number: int) -> Any:
    def stop(recorded: RecordedRound) -> None:
        if recorded.number == number:
            raise StoppedError

    return stop


def lose_rounds(settings: Settings) -> None:
    """Run three rounds of which nothing is written, as when the process is lost before their checkpoint."""
    with checkpoints_every(100), pytest.MonkeyPatch.context() as lost:
        lost.setattr(RunRecorder, "write", lambda recorder: None)
        with pytest.raises(StoppedError):
            simulate(settings, stop_after(3))


def means(folder: Path) -> dict[int, float]:
    return {int(row["round"]): float(row["test_accuracy_of_global_model_mean"]) for row in table(folder / "rounds.csv")}


def bits(folder: Path) -> bytes:
    return MODEL.path_in(folder).read_bytes()


# MLflow -------------------------------------------------------------------------------------------------------------


def mlflow_client(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow' / 'mlflow.db'}")


def runs_at_mlflow(folder: Path, experiment: str) -> list[Any]:
    with warnings.catch_warnings(action="ignore"):
        client = mlflow_client(folder)
        found = client.get_experiment_by_name(experiment)
        return list(client.search_runs([found.experiment_id]))


def curve(folder: Path, run_id: str, metric: str) -> list[tuple[int, float]]:
    with warnings.catch_warnings(action="ignore"):
        return [(m.step, m.value) for m in mlflow_client(folder).get_metric_history(run_id, metric)]


@pytest.mark.slow
def test_mlflow_has_settings_curves_files_and_the_end_of_a_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "study" / "runs" / "one", track="mlflow")
    (shown,) = runs_at_mlflow(folder, "study")
    assert shown.info.run_name == "one"
    assert shown.info.status == "FINISHED"
    assert shown.data.params["method"] == "fedfv"
    assert shown.data.params["fedfv.alpha"] == "0.1"
    assert curve(folder, shown.info.run_id, MEAN) == sorted(means(folder).items())
    last = table(folder / "clients.csv")[-1]
    by_client = f"test_accuracy_of_global_model_by_client/{last['client']}"
    assert shown.data.metrics[by_client] == float(last["test_accuracy_of_global_model"])
    with warnings.catch_warnings(action="ignore"):
        client = mlflow_client(folder)
        attached = {each.path for each in client.list_artifacts(shown.info.run_id)}
    assert attached == {"config.toml", "env.json", "scores.json", "rounds.csv", "clients.csv"}
    assert list((tmp_path / "study" / "runs" / "mlflow" / "artifacts").rglob("clients.csv"))


def test_what_a_users_app_reports_is_shown(tmp_path: Path) -> None:
    folder, arrays = RunFolder(tmp_path / "run", score="eval_acc", track="tensorboard"), ArrayRecord()
    arrays["w"] = Array(np.zeros(3, np.float32))
    folder.start(
        FedAvg(),
        InProcessGrid(app, {}, 2),
        arrays,
        3,
        evaluate_fn=lambda number, _: MetricRecord({"accuracy": number / 10, "by_class": [1.0, 2.0]}),
    )
    found = events(tmp_path / "run")
    assert [round(each.value, 3) for each in found.Scalars("server/accuracy")] == [0.1, 0.2, 0.3]
    assert [each.value for each in found.Scalars("server/by_class[1]")] == [2.0, 2.0, 2.0]
    assert len(found.Scalars("train/train_loss")) == 3


@pytest.mark.slow
def test_an_interrupted_run_goes_on_in_the_same_run_of_mlflow(tmp_path: Path) -> None:
    whole, folder = run(tmp_path / "plain" / "one"), tmp_path / "tracked" / "one"
    with checkpoints_every(2), pytest.raises(StoppedError):
        simulate(small(folder, track="mlflow"), stop_after(3))
    (shown,) = runs_at_mlflow(folder, "tracked")
    assert shown.info.status == "KILLED"
    run(folder, track="mlflow", num_rounds=8)
    (shown,) = runs_at_mlflow(folder, "tracked")
    assert shown.info.status == "FINISHED"
    assert curve(folder, shown.info.run_id, MEAN) == sorted(means(folder).items())
    assert len(means(folder)) == 8
    tags = {tag: value for tag, value in shown.data.tags.items() if not tag.startswith("mlflow.")}
    assert tags == {"num-rounds": "8", "run-folder": str(folder), "state": "finished"}
    assert shown.data.params["num-rounds"] == "6"  # MLflow keeps the parameters that a run began with
    run(tmp_path / "plain" / "one", num_rounds=8)
    assert bits(folder) == bits(whole)


def test_a_list_of_very_many_clients_is_no_reason_not_to_show_a_run(tmp_path: Path) -> None:
    many = ",".join(f"client-{number}" for number in range(5)) + "," * 10_000
    folder = run(tmp_path / "tracked" / "one", track="mlflow", num_rounds=2, training_clients=many)
    (shown,) = runs_at_mlflow(folder, "tracked")
    assert shown.info.status == "FINISHED"


def test_rounds_that_are_run_again_are_there_once(tmp_path: Path) -> None:
    """The process is lost between a round's report and its checkpoint: the round is reported a second time."""
    folder = tmp_path / "tracked" / "one"
    lose_rounds(small(folder, track="mlflow"))
    assert means(folder) == {}
    run(folder, track="mlflow")
    (shown,) = runs_at_mlflow(folder, "tracked")
    assert curve(folder, shown.info.run_id, MEAN) == sorted(means(folder).items())


@pytest.mark.slow
def test_a_run_that_is_taken_back_is_another_run_of_mlflow(tmp_path: Path) -> None:
    folder = tmp_path / "tracked" / "one"
    with checkpoints_every(1):
        run(folder, track="mlflow")
        run(folder, track="mlflow", from_round=4, training_clients="client-0,client-1")
    later, earlier = runs_at_mlflow(folder, "tracked")
    assert [step for step, _ in curve(folder, earlier.info.run_id, MEAN)] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in curve(folder, later.info.run_id, MEAN)] == [5, 6]
    assert TakeBack(4).is_new(folder)


def test_a_store_of_the_users_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'theirs.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "hospitals")
    monkeypatch.chdir(tmp_path)  # its attached files lie where MLflow puts them
    folder = run(tmp_path / "study" / "one", track="mlflow", num_rounds=2)
    assert not (folder.parent / "mlflow").exists()
    with warnings.catch_warnings(action="ignore"):
        from mlflow import MlflowClient

        client = MlflowClient()
        found = client.get_experiment_by_name("hospitals")
        assert len(client.search_runs([found.experiment_id])) == 1


# TensorBoard --------------------------------------------------------------------------------------------------------


def events(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(TENSORBOARD.path_in(folder)), size_guidance={"scalars": 0}).Reload()


def test_tensorboard_reads_the_curves_of_a_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", track="tensorboard")
    found = events(folder)
    assert [(each.step, each.value) for each in found.Scalars(MEAN)] == [
        (number, pytest.approx(mean)) for number, mean in sorted(means(folder).items())
    ]
    assert "_hparams_/session_start_info" in found.PluginTagToContent("hparams")


def test_tensorboard_shows_no_round_twice_when_a_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    lose_rounds(small(folder, track="tensorboard"))
    run(folder, track="tensorboard")
    assert [each.step for each in events(folder).Scalars("round/seconds")] == [1, 2, 3, 4, 5, 6]


# Weights & Biases ---------------------------------------------------------------------------------------------------


def offline_records(folder: Path) -> list[list[Any]]:
    """Return what lies in the offline files of a run, the oldest file first."""
    with warnings.catch_warnings(action="ignore"):
        from wandb.proto.wandb_internal_pb2 import Record
    paths = sorted(WANDB.path_in(folder).glob("offline-run-*/*.wandb"), key=lambda each: each.stat().st_mtime)
    return [[Record.FromString(content) for content in logged(path.read_bytes())] for path in paths]


def logged(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, in which Weights & Biases keeps an offline run."""
    assert content[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:  # the rest of a block that has no room for a record is empty
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def history(records: list[Any]) -> dict[int, float]:
    """Return the mean accuracy by round, as it was written."""
    items = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    rows = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row} for row in items]
    return {row["_step"]: row[MEAN] for row in rows}


@pytest.mark.slow
def test_weights_and_biases_keeps_a_run_in_files_where_nobody_is_logged_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "study" / "one"
    with pytest.raises(StoppedError):
        simulate(small(folder, track="wandb"), stop_after(3))
    run(folder, track="wandb")
    first, second = offline_records(folder)
    begun = [record.run for part in (first, second) for record in part if record.WhichOneof("record_type") == "run"]
    assert {each.run_id for each in begun} == {TRACKING.read(folder)["wandb"]["id"]}
    assert {each.project for each in begun} == {"study"}
    assert {each.display_name for each in begun} == {"one"}
    assert "fedfv.alpha" in {each.key for each in begun[0].config.update}
    shown = history(first) | history(second)
    assert shown == means(folder)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_weights_and_biases_that_is_away_is_no_reason_to_wait_or_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("fairbloom.server.tracking.wandb.WAIT_SECONDS", 2.0)
    folder = run(tmp_path / "study" / "one", track="wandb", num_rounds=2)
    assert "kept in files for wandb sync" in caplog.text
    (records,) = offline_records(folder)
    assert sorted(history(records)) == [1, 2]


def test_online_without_a_key_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    folder = run(tmp_path / "one", track="wandb", num_rounds=2)
    assert len(offline_records(folder)) == 1


# All of them --------------------------------------------------------------------------------------------------------


class Broken:
    """A tracker whose every call fails."""

    def log(self, *arguments: object) -> None:
        raise OSError("no space\nleft")

    def end(self, *arguments: object, finished: bool) -> None:
        raise OSError("no space\nleft")


@pytest.mark.parametrize("when", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_one_warning_and_ends_no_run(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(track: str, run: TrackedRun) -> Any:
        if when == "begin":
            raise OSError("no space\nleft")
        if when == "end":
            monkeypatch.setattr(Broken, "log", lambda *arguments: None)
        return Broken()

    monkeypatch.setattr(tracked, "_begin", begin)
    caplog.set_level(logging.WARNING)
    folder = run(tmp_path / "one", track="mlflow")
    assert MODEL.exists_in(folder)
    (warning,) = [record.getMessage() for record in caplog.records if "mlflow" in record.getMessage()]
    assert "no space left" in warning
    assert "the run goes on without it" in warning


def test_a_tracker_changes_no_bit_and_no_name_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {simulate(small("", track=track)).name for track in ("", "tensorboard")}
    assert len(names) == 1
    plain, shown = run(tmp_path / "a" / "plain"), run(tmp_path / "a" / "shown", track="tensorboard")
    assert bits(plain) == bits(shown)
    assert means(plain) == means(shown)


@pytest.mark.parametrize("track", ["mlflow", "tensorboard", "wandb"])
def test_what_is_not_installed_is_an_error_before_anything_is_written(
    track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked, "find_spec", lambda name: None)
    with pytest.raises(TrackingError, match=rf"track = '{track}' .*pip install 'fairbloom\[{track}\]'"):
        run(tmp_path / "one", track=track)
    assert not (tmp_path / "one").exists()


def test_a_tracker_that_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"track = 'comet'.*mlflow"):
        small("", track="comet")
    with pytest.raises(SettingsError, match=r"track = 'comet'.*mlflow"):
        RunFolder("run", track="comet")


@pytest.mark.slow
def test_nothing_of_the_trackers_is_imported_by_a_run_that_has_none(tmp_path: Path) -> None:
    code = (
        "import sys; from fairbloom.cli import app; import fairbloom; "
        f"fairbloom.run(clients=3, rounds=1, out={str(tmp_path / 'one')!r}, progress=False); "
        "assert not {'mlflow', 'tensorboard', 'wandb', 'sqlalchemy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_many_clients_have_no_curves_of_their_own() -> None:
    many = {f"c{number:03}": {"num-examples": 2, "accuracy": 0.5} for number in range(FEW_CLIENTS + 1)}
    shown = metrics_of(
        RecordedRound.of(a_round(1, evaluations=many), {"seconds": 1.0, "bytes_sent": 3}, ACCURACY), ACCURACY
    )
    assert shown == {"round/seconds": 1.0, "round/bytes_sent": 3.0, "round/refused": 0.0, "round/missing": 0.0} | {
        "coefficient/a": 1.0
    }


def test_a_number_that_is_none_is_not_shown() -> None:
    row = {"round": 3, "test_accuracy_of_global_model_gini": float("nan"), "refused": "", "clipped": None}
    shown = metrics_of(RecordedRound.of(a_round(3, evaluations={}, coefficients={}), row, ACCURACY), ACCURACY)
    assert shown == {"round/refused": 0.0, "round/missing": 0.0}


def test_a_user_defined_server_app_is_tracked_too(tmp_path: Path) -> None:
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    folder = RunFolder(tmp_path / "run", score="eval_acc", wait=False, track="tensorboard")
    folder.start(FedAvg(), InProcessGrid(app, {}, 4), arrays, 2)
    assert [each.step for each in events(tmp_path / "run").Scalars("round/seconds")] == [1, 2]


def test_the_server_of_deployed_clients_tracks_its_run(tmp_path: Path) -> None:
    rows = deployed(tmp_path / "run", {0: 4}, track="tensorboard", **{"num-rounds": 2})
    shown = [each.value for each in events(tmp_path / "run").Scalars(MEAN)]
    assert shown == [pytest.approx(float(row["test_accuracy_of_global_model_mean"])) for row in rows]
