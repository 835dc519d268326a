"""What seeds have in common: the examples that clients are tested on, and the clients themselves."""

from fairbloom.errors import FairbloomError
from fairbloom.imports import is_import_string
from fairbloom.server.run_folder.files import SPLIT
from fairbloom.tasks import TaskInfo, find_task

from .run import Run

SPLIT_WORD, FIXED, FRESH = "split", "fixed", "fresh"
"""What a seed decides of the examples that clients are tested on, as `TaskInfo.tests` has it."""


def tests_by_seed(run: Run) -> str:
    """Return what a seed decides of the examples that the clients of a run are tested on."""
    task = _task_of(run)
    return SPLIT_WORD if task is None else task.tests_by_seed(run.settings)


def test_share_of(run: Run) -> float:
    """Return the number of test examples by that of training examples where seeds split one data set, else 0.

    They are counted where the run folder has the split of the data; else the settings say how many were asked for.
    """
    if tests_by_seed(run) != SPLIT_WORD:
        return 0.0
    if SPLIT.exists_in(run.folder):
        part = run.split().part
        trained, tested = int((part == 0).sum()), int((part == 1).sum())
        return tested / trained
    task = _task_of(run) or TaskInfo("", "", "", "")
    return task.test_by_train(run.settings)


def deals_clients(run: Run) -> bool:
    """Return whether a seed decides which examples a client has, so that its name means others with each seed."""
    task = _task_of(run)
    if task is None:
        return SPLIT.exists_in(run.folder)
    partition = run.settings.get("partition") or next(iter(task.partitions), "")
    natural = task.has_clients or partition in task.natural
    return task.tests_by_seed(run.settings) == FRESH or not natural


def _task_of(run: Run) -> TaskInfo | None:
    """Return what is known of the task of a run; None of one that is user-defined, or not known here any more."""
    name = str(run.settings.get("task", ""))
    if is_import_string(name):
        return None
    try:
        return find_task(name)
    except FairbloomError:
        return None
