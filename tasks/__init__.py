"""What is learned: data split into clients, a model and a loss. One file a data set."""

import difflib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.imports import is_import_string
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import Value, spread

from .task import Examples, Setup, Splits, Task, TaskInfo, TaskSetting

__all__ = [
    "TASKS",
    "Examples",
    "Score",
    "Setup",
    "Splits",
    "Task",
    "TaskInfo",
    "TaskSetting",
    "check_data",
    "find_task",
    "load_task",
]

TASKS = {
    info.name: info
    for info in (
        TaskInfo(
            "digits",
            summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
            source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
            loader="fairbloom.tasks.digits:load",
            models=("logistic", "mlp", "cnn"),
            partitions=("shards", "dirichlet", "iid"),
            classes=10,
            settings=(
                TaskSetting("rotated-clients", 0, "Number of clients whose images are turned by 90 degrees", lowest=0),
            ),
        ),
    )
}
"""Every task by its name on the command line."""


def find_task(name: str) -> TaskInfo:
    """Return what is known of a task: one of ours by its name, or a user's by its import string.

    Raises
    ------
    FairbloomError
        When there is no such task.
    """
    if is_import_string(name):
        return _own(name)
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise FairbloomError(
            f"task = {name!r} is not known here: {hint}there are {', '.join(TASKS)}, and your own as my_module:task"
        )
    return TASKS[name]


def load_task(config: Mapping[str, Any]) -> Task:
    """Return the task of a run config; the same one again for the same settings.

    Parameters
    ----------
    config
        A run config, of which this reads the task's name, what `Setup` has, and the settings of the task's own.

    Raises
    ------
    FairbloomError
        When there is no such task, a setting of its own is impossible, a folder is named that it does not read, or
        the data cannot be split as asked; the message names the setting and what would do.
    """
    config = spread(config)
    info = find_task(config["task"])
    setup = info.setup(config)
    info.check(setup)
    return _loaded(info, setup, tuple(info.own(config).items()))


def check_data(config: Mapping[str, Any]) -> None:
    """Raise FairbloomError when clients in this process would lack the folder that their task reads."""
    info = find_task(config["task"])
    info.check_readable(info.setup(config).data_dir)


@cache
def _own(name: str) -> TaskInfo:
    return TaskInfo.of(name)


@lru_cache(maxsize=4)
def _loaded(info: TaskInfo, setup: Setup, own: tuple[tuple[str, Value], ...]) -> Task:
    return info.load(setup, dict(own))
