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
    """What seeds have in common.

    Attributes
    ----------
    dealt
        Whether a seed decides which examples a client has, so that a client's name means others with each seed.
    fixed
        Whether all seeds test on the same examples of the same clients.
    test_share
        Number of test examples by number of training examples where the seeds split the examples of the same clients;
        else 0.
    assumed
        Whether that is not known but assumed, as of a user-defined task.
    """

    dealt: bool = False
    fixed: bool = False
    test_share: float = 0.0
    assumed: bool = False

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "SharedData":
        """Return what the seeds of these runs, one a seed, have in common.

        Of a user-defined task nothing is known: its seeds are taken for splits of the same clients' examples, by
        `test-share`, with which the intervals of differences are the widest.
        """
        settings = runs[0].settings
        task = runs[0].task
        if task is None:
            return cls(test_share=TaskInfo("", "", "", "").test_by_train(settings), assumed=True)
        tests = task.tests_by_seed(settings)
        if tests == "fresh" or _deals_clients(task, runs):
            return cls(dealt=True)
        return cls(fixed=True) if tests == "fixed" else cls(test_share=task.test_by_train(settings))


def _deals_clients(task: TaskInfo, runs: Sequence[Run]) -> bool:
    """Return whether clients are dealt a data set, or drawn from many that come with the data."""
    settings = runs[0].settings
    if task.has_clients:
        return False
    if (settings.get("partition") or next(iter(task.partitions), "")) not in task.natural:
        return True
    clients = {frozenset(run.test_examples()) for run in runs}
    return bool(settings.get("clients")) and len(clients) > 1
