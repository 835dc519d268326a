"""Choose the score that fairness is measured in: by the run's setting, or by the data."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from fairbloom.errors import did_you_mean
from fairbloom.logs import log_once
from fairbloom.protocol.private import SIMULATED
from fairbloom.protocol.scores import INTERVALS, LOSS_SCORE, Score
from fairbloom.protocol.settings import RunSettings, SettingsError
from fairbloom.text import plural, text_if

from .extra_scores import find_fitting
from .loading import find_task
from .measures import BALANCED_ACCURACY
from .task import AnyExamples, Splits, Task


def decide_score(
    settings: RunSettings,
    task: Task,
    recorded: str = "",
    *,
    deployed: bool = False,
) -> Score:
    """Return the score that fairness is measured in: the setting, or the `recorded` one.

    Without both it is the task's first. It is balanced accuracy if the task has this score and the
    clients come with the data and have two unbalanced classes: a client with examples of both has
    more than two thirds of them in one. All of its examples count, so that the seed of the split
    does not choose the score.
    """
    scores = {score.name: score for score in (*task.scores, LOSS_SCORE)}
    name = settings.score or recorded
    if not name:
        if (
            not deployed
            and settings.privacy__mode != SIMULATED  # accounts report no other score
            and has_natural_clients(settings)
            and BALANCED_ACCURACY in task.scores
            and has_two_classes(task)
            and any(_is_unbalanced(task.splits(client)) for client in task.clients)
        ):
            return BALANCED_ACCURACY
        return task.score
    if name not in scores:
        known = [*scores, *find_fitting(task)]
        raise SettingsError(
            f"score = {name!r}: {did_you_mean(name, known)}task {settings.task} has"
            f" {', '.join(dict.fromkeys(known))}"
        )
    return scores[name]


def check_measured(settings: RunSettings, needs: Iterable[str], task: Task) -> None:
    """Raise SettingsError if the method `needs` a score of clients that the task does not have."""
    for metric in sorted(needs):
        name, _, _ = metric.rpartition("-")
        if name not in INTERVALS or any(score.name == name for score in task.scores):
            continue
        remedy = "choose another method"
        if name in find_fitting(task):
            remedy = f"set scores = {name!r}"
        raise SettingsError(
            f"method = {settings.method!r}: it weighs clients by {metric}, and task {settings.task}"
            f" has no {name} here, but {', '.join(score.name for score in task.scores)}: {remedy}"
        )


def has_natural_clients(settings: RunSettings) -> bool:
    """Return whether the clients come with the data, as hospitals do."""
    info = find_task(settings.task)
    return bool(info.reads) or info.setup(settings).partition in info.natural


def has_two_classes(task: Task) -> bool:
    """Return whether the task predicts one of two classes."""
    return 2 in (task.classes, len(task.class_names))


def count_classes(*parts: AnyExamples) -> tuple[int, int] | None:
    """Return the sizes of the smaller and the larger of two classes; None if not of classes."""
    counts = [0, 0]
    for examples in parts:
        targets = examples.all_targets
        if not len(targets) or targets.dim() != 1 or targets.is_floating_point():
            return None
        first, second = targets.bincount(minlength=2).tolist()
        counts = [counts[0] + first, counts[1] + second]
    return min(counts), max(counts)


def _is_unbalanced(splits: Splits) -> bool:
    """Return whether a client has examples of both classes, more than two thirds in one."""
    parts = (splits.train, splits.test, splits.validation)
    counts = count_classes(*(part for part in parts if part is not None))
    return counts is not None and counts[0] > 0 and counts[1] > 2 / 3 * sum(counts)


def log_positive(task: Task, asking: Iterable[str] = (), schema: str = "") -> None:
    """Log once which class is the positive one: a warning if the user's `schema` does not state it.

    If the task does not either, the line names the scores that are of it, and `asking`: other names
    of what depends on it, such as a method.
    """
    names = (
        *dict.fromkeys(
            replace(score, of="").words for score in (*task.scores, *task.group_scores) if score.of
        ),
        *asking,
    )
    if task.positive is None and names:
        place = "Task(…, positive=0), or 1,"
        if task.schema:
            place = "positive in the schema"
        log_once(
            "%s %s of class %r, the second one, because no positive class is stated: say it by %s",
            ", ".join(names),
            plural(len(names), "is", "are"),
            task.positive_name,
            place,
        )
    elif has_two_classes(task):
        is_chosen = bool(task.schema) and not schema
        log_once(
            "the positive class is %r%s",
            task.positive_name,
            text_if(is_chosen, ", as the data suggest: another one is positive in a schema"),
            level=logging.WARNING if is_chosen else logging.INFO,
        )
