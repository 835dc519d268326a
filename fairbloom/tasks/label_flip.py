"""Hostile clients that train on wrong labels, as a task: class C − 1 − y instead of y."""

from dataclasses import replace
from functools import lru_cache

from fairbloom.errors import FairbloomError

from .task import Examples, Splits, Task


@lru_cache(maxsize=4)
def flip_labels(task: Task, hostile: tuple[str, ...]) -> Task:
    """Return a task in which these clients train on flipped labels; tests keep the true ones.

    Raises FairbloomError if targets are not classes.
    """
    if not task.classes:
        raise FairbloomError(
            "attack = 'label-flip' needs targets that are classes: choose another attack"
        )
    last = task.classes - 1

    def splits(client: str) -> Splits:
        found = task.splits(client)
        if client not in hostile:
            return found
        if not isinstance(found.train, Examples):
            raise FairbloomError(
                "attack = 'label-flip' needs examples that are tensors: choose another attack"
            )
        return replace(found, train=replace(found.train, targets=last - found.train.targets))

    return replace(task, splits=splits)
