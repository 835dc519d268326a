"""The built-in tasks by name.

Nothing here imports PyTorch, because the command line lists tasks without it.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbloom.protocol.parameters import Choices, Parameter, Range

from .task_info import DataFile, PictureSet, TaskInfo


def _read_info(name: str, tables: Mapping[str, Mapping[str, Any]]) -> TaskInfo:
    """Return a task's entry in catalogue.toml; keys that it lacks come from the table `like`."""
    entry = {**tables.get(tables[name].get("like", ""), {}), **tables[name]}
    entry.pop("like", None)
    settings = [_read_setting(key, table) for key, table in entry.pop("settings", {}).items()]
    files = tuple(DataFile(*each) for each in entry.pop("files", ()))
    fields = {key: _as_tuple(value) for key, value in entry.items()}
    kind = PictureSet if "labels" in entry else TaskInfo
    return kind(name=name, settings=tuple(settings), files=files, **fields)


def _read_setting(key: str, table: Mapping[str, Any]) -> Parameter:
    default = table["default"]
    allowed: Range | Choices | None = None
    if "range" in table:
        allowed = Range(table["range"])
    elif "choices" in table:
        allowed = Choices(*table["choices"])
    return Parameter(key, type(default), default, table["description"], allowed)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

#: The tasks by their names on the command line, in the order of lists.
TASKS = {name: _read_info(name, TABLES) for name in TABLES if name != "pictures"}
