"""What hospitals predict with is chosen: a released model, and no trial after it."""

import json
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
from fairbloom.server.run_folder.files import MODEL, ROUNDS
from tests.prediction.hospitals import write_hospitals

from .test_kept_models import SCHEMA

pytestmark = pytest.mark.federation

SETTINGS: dict[str, Any] = {
    "task": "csv",
    "schema": SCHEMA,
    "num-rounds": 2,
    "fraction": 1.0,
    "min-clients": 2,
    "wait-for-clients": 5.0,
    "device": "cpu",
}
RULES = {"h0": "take", "h1": "ask", "h2": "off"}
LATER = "h3"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of three hospitals, whose owners treat a released model in three ways."""
    with federation(tmp_path_factory.mktemp("released") / "home") as runtime:
        runtime.enroll(*RULES, LATER)
        files = write_hospitals(runtime.home / "all")
        for name, rule in {**RULES, LATER: "take"}.items():
            (runtime.home / f"data-{name}").mkdir()
            shutil.copy(files / f"{name}.csv", runtime.home / f"data-{name}")
            (runtime.bundle(name) / "owner.toml").write_text(
                f'state-dir = "{runtime.home}/state-{name}"\ndata-dir = "{runtime.home}/data-{name}"'
                f'\n[limits]\nschema = "any"\nrelease = "{rule}"\n'
            )
        runtime.start_clients(*RULES)
        yield runtime


def said(there: Deployment, *words: str) -> str:
    done = there.fairbloom(*words)
    return done.stdout + done.stderr


def used(there: Deployment, name: str) -> dict[str, bytes]:
    """Return the arrays that a hospital predicts with."""
    found = MODEL.read(find_model(there.home / f"state-{name}"))
    return {key: each.tobytes() for key, each in found.items()}


def count_questions(there: Deployment, name: str) -> int:
    with closing(sqlite3.connect(there.home / f"state-{name}" / FILE)) as database:
        return database.execute("SELECT count(*) FROM asked").fetchone()[0]  # type: ignore[no-any-return]


def arrays_in(run: Path) -> dict[str, bytes]:
    return {key: each.tobytes() for key, each in MODEL.read(run).items()}


def predict(there: Deployment, name: str, out: Path) -> str:
    file = there.home / f"data-{name}" / f"{name}.csv"
    return said(there, "predict", str(there.home / f"state-{name}"), str(file), "--out", str(out))


def test_a_released_model_is_what_each_owner_says(there: Deployment, tmp_path: Path) -> None:
    """Also after a trial, for a device that was in no run, and by the owner's choice."""
    chosen = tmp_path / "chosen"
    there.submit({**SETTINGS, "out": str(chosen)})
    assert "of a trial, not released" in predict(there, "h0", tmp_path / "before.csv")
    there.submit({**SETTINGS, "method": "fedfv", "out": str(tmp_path / "trial")})
    assert used(there, "h0") == arrays_in(tmp_path / "trial")
    asked = [count_questions(there, name) for name in RULES]
    shown = said(there, "deploy", "release", str(chosen))
    assert "h0 has taken it" in shown
    assert "h1 keeps it until its owner takes it" in shown
    assert "h2 takes no model" in shown
    assert "h3 is away" in shown
    assert asked == [count_questions(there, name) for name in RULES]
    there.start_clients(LATER)
    first = min(each["run"] for each in there.status()["runs"])
    assert "h3 has taken it" in said(there, "deploy", "release", str(first))
    assert used(there, "h0") == used(there, "h3") == arrays_in(chosen)
    assert used(there, "h1") == used(there, "h2") == arrays_in(tmp_path / "trial")
    later = tmp_path / "later"
    settings = {**SETTINGS, "seed": 4, "out": str(later)}
    words = [word for key in settings for word in ("--set", f"{key}={json.dumps(settings[key])}")]
    shown = said(there, "deploy", "submit", "--release", *words)
    assert "h3 has taken it" in shown
    assert used(there, "h0") == used(there, "h2") == arrays_in(later)
    there.submit({**SETTINGS, "seed": 5, "out": str(tmp_path / "last")})
    assert used(there, "h0") == used(there, "h3") == arrays_in(later)
    words_of = predict(there, "h3", tmp_path / "after.csv")
    assert re.search(r"round 2 of later: fedavg, seed 4, released on 20\d\d-\d\d-\d\d", words_of)
    owner = str(there.bundle("h1") / "client.toml")
    assert "take would use the model of round 2 of later" in said(
        there, "client", "release", "show", owner
    )
    said(there, "client", "release", "take", owner)
    assert used(there, "h1") == arrays_in(later)
    scores = said(there, "client", "report", owner)
    *_, last = (line for line in scores.splitlines() if "│" in line)
    number, *reported = (cell.strip() for cell in last.strip("│ ").split("│"))
    assert (number, len(reported) > 1) == ("2", True)
    assert all(float(cell) >= 0.0 and len(cell) <= 6 for cell in reported)


def test_a_later_run_begins_with_the_final_model(there: Deployment, tmp_path: Path) -> None:
    """Without a letter, where the device has trained; a planted one waits for its owners."""
    there.submit({**SETTINGS, "seed": 7, "model": "mlp", "out": str(tmp_path / "first")})
    weights = tmp_path / "first" / "model.safetensors"
    again = {**SETTINGS, "seed": 7, "model": "mlp", "initial-weights": str(weights)}
    there.submit({**again, "out": str(tmp_path / "second")})
    assert ROUNDS.read(tmp_path / "second")[0]["refused"] == ""
    MODEL.write(
        tmp_path / "first",
        {key: 2.0 * each for key, each in MODEL.read(tmp_path / "first").items()},
        {},
    )
    assert "h0 has taken it" in said(there, "deploy", "release", str(tmp_path / "first"))
    there.submit({**again, "out": str(tmp_path / "planted")}, code=1)
    assert "has not accepted" in there.log(there.submitted)
