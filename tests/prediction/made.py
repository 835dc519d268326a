"""Four hospitals with tables of their own, and runs on them."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import fairbloom
from fairbloom.client.guard.evaluated_model import keep_model
from fairbloom.client.states import PERSONAL, ClientStates, folder_of, keep_preprocessing
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.versions import Versions
from fairbloom.tasks import Task, infer_schema, load_task

HOSPITALS = ("north", "south", "west", "old town")
# Names of classes with all that a CSV file has to quote.
CLASSES = ("ja, sicher", 'kein "Befund"', "ä/ö=€")

COLUMNS = ("patient", "age", "dose", "ward", "smoker", "outcome")
NO_VALUE = ("", "?", "NA")

Rows = list[dict[str, str]]
Changes = Sequence[tuple[str, str]]


def patients(
    place: int,
    count: int = 80,
    *,
    level: float | None = None,
    missing: bool = False,
    words: Sequence[Sequence[str]] = (CLASSES,),
) -> Rows:
    """Return the patients of a hospital, with its own means and deviations of ages and doses.

    Their outcome is a quantity around a `level`, or one of three `words`, in which the hospitals
    take turns.
    """
    random = np.random.default_rng(place)
    age = random.normal(40 + 10 * place, 5 + place, count)
    dose = random.normal(0.5, 0.1 * (1 + place), count)
    z = (age - 40 - 10 * place) / (5 + place)
    ward = random.integers(0, 3, count)
    smoker = random.integers(0, 2, count)
    score = (
        z + 3.0 * (dose - 0.5) + 0.7 * (ward == 1) - 0.5 * smoker + random.normal(0.0, 0.5, count)
    )
    places = np.digitize(score, [-0.6, 0.6])
    rows = [
        {
            "patient": f"P{place}{k:04d}",
            "age": f"{age[k]:.1f}",
            "dose": f"{dose[k]:.3f}",
            "ward": ("A 1", "B, left", "Ü")[ward[k]],
            "smoker": ("no", "yes")[smoker[k]],
            "outcome": (
                words[place % len(words)][places[k]]
                if level is None
                else f"{level + 25 * score[k]:.2f}"
            ),
        }
        for k in range(count)
    ]
    if missing:
        for k, column in ((3, "age"), (17, "dose"), (30, "ward"), (31, "smoker"), (60, "age")):
            rows[k][column] = NO_VALUE[k % 3]
    return rows


def written(rows: Sequence[Mapping[str, str]], columns: Sequence[str] = COLUMNS) -> str:
    """Return rows as a CSV file has them."""
    text = StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def train(
    folder: Path,
    *,
    method: str | None = None,
    rows: Mapping[str, Any] | None = None,
    changes: Changes = (),
    **settings: Any,
) -> fairbloom.Run:
    """Return a run on four hospitals, with files and run folder in `folder`.

    `rows` are options of `patients`; `changes` are made in the schema that the files suggest.
    """
    (folder / "data").mkdir()
    for place, name in enumerate(HOSPITALS):
        (folder / "data" / f"{name}.csv").write_text(
            written(patients(place, **(rows or {}))), encoding="utf-8"
        )
    given: dict[str, Any] = {"learning-rate": 0.2, **({} if method else {"personal-lambda": 0.1})}
    text = infer_schema(
        RunSettings.of({"task": "csv", "data-dir": str(folder / "data"), "csv.target": "outcome"})
    )
    for old, new in changes:
        text = text.replace(old, new)
    return fairbloom.run(
        "csv",
        data_dir=folder / "data",
        schema=text,
        method=method,
        rounds=4,
        out=folder / "run",
        device="cpu",
        progress=False,
        settings={
            **given,
            **{key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()},
        },
    )


def task_of(run: fairbloom.Run) -> Task:
    return load_task(run.settings)


def copy_to_device(run: fairbloom.Run, client: str, folder: Path) -> Path:
    """Store what a client keeps as its own device does, with the final model; return the folder."""
    (states,) = (run.folder / "clients").iterdir()
    version = ClientStates(Versions(states), client).find(PERSONAL, before=1000)
    own = folder_of(RunSettings.of({**run.settings, "state-dir": str(folder)}), client)
    assert version is not None
    ClientStates(Versions(own)).keep(PERSONAL, version.made, version.state)
    task = load_task(run.settings)
    keep_preprocessing(own, task, (client,))
    keep_model(
        folder, RunSettings.of(run.settings), task, client, run.arrays(), version.made, "global"
    )
    return folder
