"""Devices of hospitals with CSV files keep the final model and predict with it."""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation
from fairbloom.client.guard.evaluated_model import find_model
from fairbloom.client.guard.questions import FILE
from fairbloom.experiments.api import compare
from fairbloom.server.run_folder.files import CLIENTS, MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task
from tests.prediction.hospitals import write_hospitals
from tests.simulation.helpers import assert_same_model, table

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
    "smallest-batch": 5,
    "task": "csv",
    "schema": SCHEMA,
    "method": "ditto",
    "num-rounds": 3,
    "fraction": 1.0,
    "min-clients": 3,
    "wait-for-clients": 5.0,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with a client for each of four hospitals; each has only its own file."""
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll(*HOSPITALS)
        files = write_hospitals(runtime.home / "all")
        for name in HOSPITALS:
            data_of(runtime, name).mkdir()
            shutil.copy(files / f"{name}.csv", data_of(runtime, name))
            (runtime.bundle(name) / "owner.toml").write_text(
                '[limits]\nschema = "any"\norder = "run"\n'
            )
            start(runtime, name)
        runtime.wait_for_clients(*HOSPITALS)
        yield runtime


@pytest.fixture(scope="module")
def finished(there: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; all four clients keep its model."""
    out = tmp_path_factory.mktemp("runs") / "first"
    there.submit({**SETTINGS, "clients": 4, "out": str(out)})
    return out


def start(there: Deployment, name: str) -> None:
    there.start_client(name, "--data-dir", str(data_of(there, name)))


def data_of(there: Deployment, name: str) -> Path:
    return there.home / f"data-{name}"


@pytest.mark.parametrize("name", HOSPITALS)
def test_each_device_keeps_the_final_model(there: Deployment, finished: Path, name: Any) -> None:
    final = MODEL.read(finished)
    folder = there.home / f"state-{name}" / "model"
    assert {key: each.tobytes() for key, each in MODEL.read(folder).items()} == {
        key: each.tobytes() for key, each in final.items()
    }
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


@pytest.mark.parametrize("model", ["last", "personal"])
def test_predictions_on_a_device_are_those_measured_in_the_run(
    there: Deployment, finished: Path, tmp_path: Path, model: str
) -> None:
    column = f"test_accuracy_of_{'global' if model == 'last' else 'personal'}_model"
    measured = {
        row["client"]: float(row[column]) for row in CLIENTS.read(finished) if row["round"] == "3"
    }
    for name in HOSPITALS:
        out = tmp_path / f"{name}.csv"
        file = data_of(there, name) / f"{name}.csv"
        there.fairbloom(
            "predict",
            str(there.home / f"state-{name}"),
            str(file),
            "--out",
            str(out),
            "--model",
            model,
        )
        rows = table(out)
        config = {**Settings.of(SETTINGS).run_config(), "data-dir": str(file)}
        tested = load_task(config).splits(name).test.rows
        right = [rows[row]["predicted_target"] == rows[row]["target"] for row in tested.tolist()]
        assert 100.0 * sum(right) / len(right) == pytest.approx(measured[name])


def test_a_refit_shows_all_rows_where_an_owner_allows_it(
    there: Deployment, finished: Path, tmp_path: Path
) -> None:
    """It is the run in process; it counts as a run of its own, and devices take its model."""
    compare(runs=[finished], out=tmp_path / "cmp")
    out = tmp_path / "refit"
    words = ("deploy", "submit", "--refit", str(tmp_path / "cmp"), "--method", "ditto", "--set")
    said = there.fairbloom(*words, f"out={out}", "--release").stderr
    assert "Ditto: num-rounds = 3, the median of" in said
    asked = {**SETTINGS, "test-share": 0.0, "data-dir": str(there.home / "all")}
    del asked["min-clients"], asked["wait-for-clients"]
    here = simulate(Settings.of({**asked, "out": str(tmp_path / "here")}))
    assert_same_model(out, here)
    final = MODEL.read(out)
    for name in HOSPITALS:
        with closing(sqlite3.connect(there.home / f"state-{name}" / FILE)) as database:
            counts = database.execute("SELECT count(*) FROM asked GROUP BY run").fetchall()
        assert sorted(counts) == [(3,), (6,)]  # three rounds; and each evaluated
        kept = MODEL.read(find_model(there.home / f"state-{name}"))
        assert {key: each.tobytes() for key, each in kept.items()} == {
            key: each.tobytes() for key, each in final.items()
        }
    owner = there.bundle("h3") / "owner.toml"
    before = owner.read_text()
    owner.write_text(f"{before}settings = {{test-share = 0.2}}\n")
    there.stop(there.clients["h3"])
    start(there, "h3")
    there.wait_for_clients("h3")
    there.fairbloom(*words, f"out={tmp_path / 'limited'}", "--set", "seed=4")
    owner.write_text(before)
    refused = table(tmp_path / "limited" / "rounds.csv")[0]["refused"]
    assert re.search(r"^h3: .*test-share = 0\.0, and this device allows 0\.2", refused)
