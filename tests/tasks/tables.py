"""Folders of CSV files, and what becomes of them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairbloom.server.settings import Settings
from fairbloom.tasks import Task, find_task, load_task

Folder = Callable[..., Path]


def csv_of(rows: int, seed: int = 0, columns: str = "age,dose,ward,target", shift: float = 0.0) -> str:
    """Return a small table: two columns of numbers, one of texts, and two classes."""
    random = np.random.default_rng(seed)
    values = {
        "age": [f"{age:.1f}" for age in random.normal(50 + shift, 10, rows)],
        "dose": [f"{dose:.3f}" for dose in random.normal(0.2, 0.1, rows)],
        "ward": [("north", "south", "west")[k % 3] for k in range(rows)],
        "target": [str(k % 2) for k in range(rows)],
    }
    names = columns.split(",")
    return "\n".join([columns, *(",".join(values[name][k] for name in names) for k in range(rows))]) + "\n"


def config(folder: Path | str, **settings: Any) -> dict[str, Any]:
    """Return the run config of a folder's task; `settings` are those of the task's own, with underscores."""
    own = {f"csv.{key.replace('_', '-')}": value for key, value in settings.items() if key not in ("seed", "model")}
    given = {key: value for key, value in settings.items() if key in ("seed", "model")}
    return Settings.of({"task": "csv", "data-dir": str(folder), **own, **given}).run_config()


def told_by(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each client tells of its data, as it arrives."""
    task = load_task(config)
    assert task.about is not None
    return {client: json.loads(json.dumps(task.about(client))) for client in task.clients}


def agreed(config: Mapping[str, Any]) -> tuple[Task, dict[str, Any]]:
    """Return the task after its clients have agreed, and on what."""
    text, reasons = find_task(config["task"]).agreement(told_by(config))
    assert reasons == {}
    return load_task({**config, "agreed": text}), json.loads(text)
