"""What is learned: data split into clients, a model and a loss. One file a data set."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value

from .task import Examples, Setup, Splits, Task, TaskInfo, TaskSetting

__all__ = ["TASKS", "Examples", "Setup", "Splits", "Task", "TaskInfo", "TaskSetting", "check_data", "load_task"]

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
    name = config["task"]
    if name not in TASKS:
        raise FairbloomError(f"task = {name!r} is not installed here: there are {', '.join(TASKS)}")
    info, setup = TASKS[name], Setup.of(config)
    info.check(setup)
    return _loaded(info, setup, tuple(info.own(config).items()))


def check_data(config: Mapping[str, Any]) -> None:
    """Raise FairbloomError when clients in this process would lack the folder that their task reads."""
    TASKS[config["task"]].check_readable(Setup.of(config).data_dir)


@lru_cache(maxsize=4)
def _loaded(info: TaskInfo, setup: Setup, own: tuple[tuple[str, Value], ...]) -> Task:
    return info.load(setup, dict(own))
