"""Which score fairness goes by: the one that a run names, or the one that fits the data."""

from collections.abc import Mapping
from typing import Any

from fairbloom.errors import did_you_mean
from fairbloom.protocol.scores import FURTHER, LOSS_SCORE, Score
from fairbloom.protocol.settings import RunSettings, SettingsError

from .extra_scores import find_misfit
from .loading import find_task
from .measures import BALANCED_ACCURACY
from .task import AnyExamples, Task


def decide_score(
    settings: RunSettings | Mapping[str, Any],
    task: Task,
    recorded: str = "",
    *,
    deployed: bool = False,
) -> Score:
    """Return the score that fairness is measured in: the setting's, or that which a continued run has `recorded`.

    Otherwise the task's first, but balanced accuracy where the task reports it and clients that
    come with the data have two unbalanced classes: a client with test examples of both has more
    than two thirds of them in one.
    """
    settings = RunSettings.of(settings)
    there = {score.name: score for score in (*task.scores, LOSS_SCORE)}
    name = settings.score or recorded
    if not name:
        if (
            deployed
            or not has_natural_clients(settings)
            or BALANCED_ACCURACY not in task.scores
            or not has_two_classes(task)
        ):
            return task.score
        found = [count_classes(task.splits(client).test) for client in task.clients]
        unbalanced = any(each and each[0] and each[1] > 2 / 3 * sum(each) for each in found)
        return BALANCED_ACCURACY if unbalanced else task.score
    if name not in there:
        known = [
            *there,
            *(each for each, further in FURTHER.items() if not find_misfit(task, further)),
        ]
        hint = did_you_mean(name, known)
        raise SettingsError(
            f"score = {name!r}: {hint}task {settings.task} has {', '.join(dict.fromkeys(known))}"
        )
    return there[name]


def has_natural_clients(settings: RunSettings | Mapping[str, Any]) -> bool:
    """Return whether the clients come with the data, as hospitals do, where a task of ours has such."""
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    return bool(info.reads) or info.setup(settings).partition in info.natural


def has_two_classes(task: Task) -> bool:
    """Return whether one of two classes is predicted."""
    return 2 in (task.classes, len(task.class_names))


def count_classes(examples: AnyExamples) -> tuple[int, int] | None:
    """Return how many examples are of the smaller and of the larger of two classes.

    None without such targets.
    """
    targets = examples.all_targets
    if not len(targets) or targets.dim() != 1 or targets.is_floating_point():
        return None
    smaller, larger = sorted(targets.bincount(minlength=2).tolist())
    return smaller, larger
