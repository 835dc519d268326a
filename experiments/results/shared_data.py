"""What the seeds of a comparison have in common: the clients, and the examples that these are tested on.

Seeds that split the examples of the same clients are not independent: their training sets overlap, and so do their test
sets. Seeds that deal a data set to clients once more differ in the clients, which decides most of a difference between
methods: benchmarks/coverage.py measures both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fairbloom.tasks import TaskInfo

from .run import Run


@dataclass(frozen=True)
class SharedData:
    """What seeds have in common."""

    clients_differ: bool = False  # a seed decides which examples a client has, so names mean other clients
    same_test_examples: bool = False  # all seeds test on the same examples of the same clients
    test_share: float = 0.0  # test by training examples, where seeds split the same clients' data
    unknown: bool = False  # not known, as of a user-defined task

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "SharedData":
        """Return what the seeds of these runs, one each, have in common.

        The seeds of a user-defined task are assumed to re-split the same clients' data, which gives the widest
        intervals.
        """
        settings = runs[0].settings
        task = runs[0].task
        if task is None:
            return cls(test_share=TaskInfo("", "", "", "").test_by_train(settings), unknown=True)
        tests = task.tests_by_seed(settings)
        if tests == "fresh" or _deals_clients(task, runs):
            return cls(clients_differ=True)
        return cls(same_test_examples=True) if tests == "fixed" else cls(test_share=task.test_by_train(settings))


def _deals_clients(task: TaskInfo, runs: Sequence[Run]) -> bool:
    """Return whether clients are dealt a data set, or drawn from many that come with the data."""
    settings = runs[0].settings
    if task.reads:
        return False
    if (settings.get("partition") or next(iter(task.partitions), "")) not in task.natural:
        return True
    clients = {frozenset(run.test_examples()) for run in runs}
    return bool(settings.get("clients")) and len(clients) > 1
