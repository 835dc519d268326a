"""The tasks that are known by name.

Nothing here imports PyTorch, since names are wanted without it.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbloom.protocol.parameters import Choices, Parameter, Range

from .task_info import DataFile, PictureSet, TaskInfo


def _read_info(name: str, tables: Mapping[str, Mapping[str, Any]]) -> TaskInfo:
    """Return what catalogue.toml says of a task, with what it says of the tables that this one is like."""
    about = {**tables.get(tables[name].get("like", ""), {}), **tables[name]}
    about.pop("like", None)
    settings = []
    for key, table in about.pop("settings", {}).items():
        default = table["default"]
        choices = table.get("choices", ())
        allowed = (
            Range(table["range"]) if "range" in table else Choices(*choices) if choices else None
        )
        settings.append(Parameter(key, type(default), default, table["description"], allowed))
    files = tuple(DataFile(*each) for each in about.pop("files", ()))
    fields = {key: _as_tuple(value) for key, value in about.items()}
    return (PictureSet if "labels" in about else TaskInfo)(
        name=name, settings=tuple(settings), files=files, **fields
    )


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

TASKS = {name: _read_info(name, TABLES) for name in TABLES if name != "pictures"}
"""Every task by its name on the command line, in the order in which they are listed."""
