"""A federation of hospitals with CSV files of their own: what each device keeps after the run, and predicts with it."""

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.kept import About, KeptRun, find_kept, list_kept
from fairbloom.server.run_folder.files import CLIENTS, MODEL, read_delivered
from fairbloom.server.settings import Settings
from fairbloom.tasks import load_task
from tests.deploy.federation import Deployment, federation, wait_for_rounds
from tests.deploy.flower import wait_until
from tests.prediction.hospitals import write_hospitals

pytestmark = pytest.mark.federation

HOSPITALS = ("h0", "h1", "h2", "h3")
SCHEMA = """
target = "target"

[fields.age]
type = "number"

[fields.bp]
type = "number"

[fields.sex]
type = "string"
categories = ["f", "m"]

[fields.target]
type = "string"
categories = ["sick", "well"]
"""
SETTINGS: dict[str, Any] = {
    "task": "csv",
    "schema": SCHEMA,
    "method": "ditto",
    "num-rounds": 3,
    "fraction": 1.0,
    "min-clients": 3,
    "patience": 5.0,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with a node for each of four hospitals, which has a folder with its own file alone."""
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll(*HOSPITALS)
        files = write_hospitals(runtime.home / "all")
        for name in HOSPITALS:
            data_of(runtime, name).mkdir()
            shutil.copy(files / f"{name}.csv", data_of(runtime, name))
            with (runtime.bundle(name) / "client.toml").open("a") as settings:
                settings.write('[limits]\nschema = "any"\n')
            start(runtime, name)
        runtime.wait_for_clients(*HOSPITALS)
        yield runtime


@pytest.fixture(scope="module")
def finished(there: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is over, of which all four keep the model."""
    out = tmp_path_factory.mktemp("runs") / "first"
    there.submit({**SETTINGS, "clients": 4, "out": str(out)})
    return out


def start(there: Deployment, name: str) -> None:
    there.start_client(name, "--data-dir", str(data_of(there, name)))


def data_of(there: Deployment, name: str) -> Path:
    return there.home / f"data-{name}"


def kept_by(there: Deployment, name: str, run: Path) -> KeptRun:
    """Return what the device of a hospital keeps of a run."""
    (found,) = (each for each in list_kept(there.home / f"state-{name}") if each.about and each.about.run == run.name)
    return found


def test_each_device_keeps_the_final_model_and_its_personal_one(there: Deployment, finished: Path) -> None:
    for name in HOSPITALS:
        kept = kept_by(there, name, finished)
        assert kept.about == About(finished.name, 3, MODEL.read_checksum(finished))
        assert kept.personal_rounds[-1] == 3
        assert {path.stat().st_mode & 0o077 for path in (kept.folder, *kept.folder.iterdir())} == {0}
    assert read_delivered(finished).keeping == HOSPITALS


@pytest.mark.parametrize("model", ["last", "personal"])
def test_the_predictions_on_a_device_are_those_that_the_run_measured_to_the_row(
    there: Deployment, finished: Path, tmp_path: Path, model: str
) -> None:
    column = f"test_accuracy_of_{'global' if model == 'last' else 'personal'}_model"
    measured = {row["client"]: float(row[column]) for row in CLIENTS.read(finished) if row["round"] == "3"}
    for name in HOSPITALS:
        out, file = tmp_path / f"{name}.csv", data_of(there, name) / f"{name}.csv"
        words = ("predict", str(there.home / f"state-{name}"), str(file), "--out", str(out), "--model", model)
        command = [sys.executable, "-m", "fairbloom.deploy", "client", *words, "--run", finished.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        with out.open(newline="") as opened:
            rows = list(csv.DictReader(opened))
        config = {**Settings.of(SETTINGS).run_config(), "data-dir": str(file)}
        tested = load_task(config).splits(name).test.rows
        assert tested is not None
        right = [rows[row]["predicted_target"] == rows[row]["target"] for row in tested.tolist()]
        assert 100.0 * sum(right) / len(right) == pytest.approx(measured[name])


def test_the_operator_sees_who_keeps_the_model_of_which_run(there: Deployment, finished: Path) -> None:
    run = next(each for each in there.status()["runs"] if each["folder"] == str(finished))
    assert run["kept-by"] == list(HOSPITALS)
    assert finished.name in there.fairbloom("deploy", "status").stdout


def test_who_was_offline_is_given_the_model_at_the_next_submission(there: Deployment, finished: Path) -> None:
    before = kept_by(there, "h3", finished).about
    there.stop(there.clients["h3"])
    longer = {**SETTINGS, "clients": 4, "num-rounds": 4, "out": str(finished)}
    there.submit(longer)
    assert "these were not there to be given the final model: h3" in there.log(there.submitted)
    assert read_delivered(finished).keeping == HOSPITALS[:3]
    assert kept_by(there, "h3", finished).about == before  # until it is replaced
    start(there, "h3")
    there.wait_for_clients("h3")
    there.submit(longer)
    log = there.log(there.submitted)
    assert "is finished; nothing to run" in log
    assert "sending the final model to h3\n" in log
    assert read_delivered(finished).keeping == HOSPITALS
    assert kept_by(there, "h3", finished).about == About(finished.name, 4, MODEL.read_checksum(finished))


def test_a_delivery_whose_server_is_killed_goes_on(there: Deployment, tmp_path: Path) -> None:
    """One hospital stands still, so that the server waits for it with the others' answers in its hands.

    Where it was too quick for that, the run is made longer, and it is tried again.
    """
    out = tmp_path / "killed"
    node = there.clients["h3"].pid
    for number in range(2, 8):
        submitted = there.submitting({**SETTINGS, "clients": 4, "seed": 4, "num-rounds": number, "out": str(out)})
        wait_for_rounds(out, number)
        os.kill(node, signal.SIGSTOP)
        try:
            wait_until(MODEL.path_in(out).exists)
            too_late = bool(read_delivered(out).clients)
            there.kill_run()
        finally:
            os.kill(node, signal.SIGCONT)
        there.wait_for_end(submitted)
        if not too_late:
            break
    assert not too_late
    assert read_delivered(out).keeping == HOSPITALS
    for name in HOSPITALS:
        about = find_kept(kept_by(there, name, out).folder)
        assert about is not None
        assert about.checksum == MODEL.read_checksum(out)
