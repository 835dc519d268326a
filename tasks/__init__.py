"""What is learned: data split into clients, a model and a loss. One file a data set."""

from collections.abc import Mapping

from .task import Examples, Task, TaskInfo

__all__ = ["TASKS", "Examples", "Task", "TaskInfo", "load_task"]

TASKS = {
    "digits": TaskInfo(
        name="digits",
        summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
        source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
        models=("logistic", "mlp", "cnn"),
        partitions=("shards", "dirichlet", "iid"),
        classes=10,
    ),
}
"""Every task by its name on the command line."""


def load_task(config: Mapping[str, object]) -> Task:
    """Return the task of a run config; the same one again for the same settings.

    Parameters
    ----------
    config
        The run config's keys `task`, `model`, `seed`, `clients`, `partition` and what belongs to the partition.

    Raises
    ------
    ValueError
        When the data cannot be split as asked; the message names the setting and what would do.
    """
    from . import digits

    return digits.load(digits.Split.of(config))
