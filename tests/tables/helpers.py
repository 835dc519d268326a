"""Folders of CSV files, and their schemas."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.tasks import Task, infer_schema, load_task

Folder = Callable[..., Path]


@contextmanager
def refused_with(*words: str) -> Iterator[pytest.ExceptionInfo[FairbloomError]]:
    """Expect a FairbloomError that says all of these words."""
    with pytest.raises(FairbloomError) as refusal:
        yield refusal
    assert [word for word in words if word not in str(refusal.value)] == [], refusal.value


def csv_of(
    rows: int, seed: int = 0, columns: str = "age,dose,ward,target", shift: float = 0.0
) -> str:
    """Return a small table: two columns of numbers, one of texts, and two classes."""
    random = np.random.default_rng(seed)
    values = {
        "age": [f"{age:.1f}" for age in random.normal(50 + shift, 10, rows)],
        "dose": [f"{dose:.3f}" for dose in random.normal(0.2, 0.1, rows)],
        "ward": [("north", "south", "west")[k % 3] for k in range(rows)],
        "target": [str(k % 2) for k in range(rows)],
    }
    names = columns.split(",")
    return (
        "\n".join([columns, *(",".join(values[name][k] for name in names) for k in range(rows))])
        + "\n"
    )


# The schema of `csv_of`.
SCHEMA = """
target = "target"

[fields.age]
type = "number"

[fields.dose]
type = "number"

[fields.ward]
type = "string"
categories = ["north", "south", "west"]

[fields.target]
type = "integer"
categories = [0, 1]
"""


def schema_with(*changes: tuple[str, str], text: str = SCHEMA) -> str:
    """Return a schema with (old, new) pairs of texts exchanged, each of which must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def config(folder: Path | str, schema: str = "", **settings: Any) -> dict[str, Any]:
    """Return the run config of a folder's task; `settings` are target, client and kind, or seed and
    model."""
    own = {f"csv.{key}": value for key, value in settings.items() if key not in ("seed", "model")}
    given = {key: value for key, value in settings.items() if key in ("seed", "model")}
    return Settings.of(
        {"task": "csv", "data-dir": str(folder), "schema": schema, **own, **given}
    ).run_config()


def load(folder: Path | str, schema: str = "", **settings: Any) -> Task:
    """Return the task of a folder."""
    return load_task(config(folder, schema, **settings))


def inferred(folder: Path | str, **settings: Any) -> str:
    """Return the schema that a folder's files suggest."""
    return infer_schema(RunSettings.of(config(folder, **settings)))


def grouped(folder: Path | str, *groups: str, **settings: Any) -> str:
    """Return the schema that a folder's files suggest, with groups."""
    return f"groups = {json.dumps(groups)}\n{inferred(folder, **settings)}"
