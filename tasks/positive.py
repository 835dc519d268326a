"""The positive one of two classes, which sensitivity, F1 and the rates of groups are of."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from fairbloom.logs import log
from fairbloom.protocol.scores import Score
from fairbloom.text import plural

from .schema import fold
from .task import Task

# Names of classes that mean what is looked for, in lower case, and in some other languages.
WORDS = frozenset(
    (
        *("yes", "y", "true", "t", "positive", "pos", "+", "present", "1"),
        *("ill", "sick", "disease", "diseased", "case", "patient", "affected", "infected"),
        *("abnormal", "malignant", "cancer", "tumor", "tumour", "event", "failure", "default"),
        *("dead", "died", "death", "deceased", "expired", "relapse", "relapsed", "recurrence"),
        *("recurred", "progression", "progressed", "readmitted", "complication", "fraud", "churn"),
        *("ja", "wahr", "positiv", "krank", "tot", "verstorben", "oui", "vrai", "positif"),
        *("malade", "mort", "décédé", "si", "sí", "positivo", "enfermo", "muerto", "sim", "malato"),
    )
)

# The class that a 1 is opposed to, where it means yes; of 1 and 2, either may.
OPPOSITES = ("0", "-1")


def choose_positive(classes: Sequence[str], counts: Sequence[int]) -> tuple[str, str]:
    """Return the class of two that is probably the positive one, and why.

    It is the one whose name says so, or else the rarer one, or else the second. `counts` are the
    numbers of rows of each.
    """
    named = [
        name
        for name, other in zip(classes, reversed(classes), strict=True)
        if fold(name) in WORDS and (name != "1" or other in OPPOSITES)
    ]
    if len(named) == 1:
        return named[0], "by its name"
    if counts[0] == counts[1]:
        return classes[1], "the second one"
    return classes[int(counts[1] < counts[0])], "the rarer one"


def ask_about_positive(reason: str) -> str:
    """Return the comment behind the positive class that a draft of a schema has chosen."""
    return f"# {reason}: is it the class to find? Sensitivity, F1 and rates are of it"


def warn_of_unstated(task: Task, asking: Iterable[str] = ()) -> None:
    """Log once which scores are of a positive class that the task does not state.

    `asking` are other names of what depends on it, such as a method.
    """
    scores: Iterable[Score] = (*task.scores, *task.group_scores)
    named = [replace(score, of="").words for score in scores if score.of]
    names = (*dict.fromkeys(named), *asking)
    if task.positive is None and names:
        place = "positive in the schema" if task.schema else "Task(…, positive=0), or 1,"
        _warn(", ".join(names), task.positive_name, place, len(names) > 1)


@lru_cache(maxsize=64)  # the runs of a study share the warning
def _warn(names: str, positive: str, place: str, several: bool) -> None:
    log.warning(
        "%s %s of class %r, the second one, because no positive class is stated: say it by %s",
        names,
        plural(1 + several, "is", "are"),
        positive,
        place,
    )
