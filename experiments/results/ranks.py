"""How methods rank over several comparisons, each of another task: Friedman's test and Nemenyi's critical difference.

Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006), section 3.2.2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError

from .differences import CONFIDENCE, LEVEL
from .measured import measure_title

if TYPE_CHECKING:
    from .comparison import Comparison

FEWEST_METHODS, FEWEST_TASKS = 3, 2
"""What Friedman's test needs."""

RELIABLE_TASKS = 10
"""With fewer tasks than this, Friedman's p-value is a rough one, as Demšar says."""


@dataclass(frozen=True)
class Ranks:
    """How methods rank over tasks; the best has rank 1, and methods that are equally good share their ranks' mean."""

    measure: str
    title: str
    by_task: Mapping[str, Mapping[str, float]]  # by task and method
    average: Mapping[str, float]  # the best first
    p_value: float  # of Friedman's test that all methods rank alike
    critical_difference: float  # of average ranks that differ significantly (Nemenyi, level 0.05)
    left_out: tuple[str, ...] = ()  # the methods that some tasks lack

    @property
    def clear(self) -> bool:
        """Whether some methods differ significantly."""
        return self.p_value < LEVEL

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of methods that do not differ significantly, as a critical-difference diagram joins them."""
        methods = list(self.average)
        found: list[tuple[str, ...]] = []
        for start, first in enumerate(methods):
            alike = [m for m in methods[start:] if self.average[m] - self.average[first] < self.critical_difference]
            if len(alike) > 1 and not (found and alike[-1] in found[-1]):
                found.append(tuple(alike))
        return found

    @property
    def sentences(self) -> list[str]:
        """What the ranks show, and whether the tasks are too few, in words."""
        tasks, methods = len(self.by_task), len(self.average)
        best, last = next(iter(self.average)), list(self.average)[-1]
        found = []
        if self.left_out:
            found.append(f"Left out, because some tasks lack them: {', '.join(self.left_out)}.")
        needed = fewest_tasks(methods)
        if tasks < needed:
            found.append(
                f"{tasks} tasks are too few to distinguish any two of {methods} methods by their ranks: at least "
                f"{needed} are needed, with the same order in each."
            )
        elif not self.clear:
            found.append(
                f"Over {tasks} tasks the ranks do not differ significantly (Friedman's p = {self.p_value:.2g})."
            )
        else:
            behind = [m for m, rank in self.average.items() if rank - self.average[best] >= self.critical_difference]
            apart = (
                f"{best} ranks better than {', '.join(behind)}"
                if behind
                else f"no method differs significantly from {best}"
            )
            if not behind and self.average[last] - self.average[best] < self.critical_difference:
                apart = "no two methods differ significantly by Nemenyi's test, which is stricter"
            found.append(f"The ranks differ (Friedman's p = {self.p_value:.2g}): {apart}.")
        if needed <= tasks < RELIABLE_TASKS:
            found.append(f"With fewer than {RELIABLE_TASKS} tasks the p-value is approximate.")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a method: its average rank, and its rank by task."""
        return [
            {"method": method, "average_rank": rank, **{task: ranks[method] for task, ranks in self.by_task.items()}}
            for method, rank in self.average.items()
        ]

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        return {**asdict(self), "groups": self.groups, "sentences": self.sentences}


def ranks_of(comparisons: Mapping[str, "Comparison"], measure: str = "worst_10") -> Ranks:
    """Return how methods rank in several comparisons, given by task, by the mean over the seeds of a measure."""
    if len(comparisons) < FEWEST_TASKS:
        raise FairbloomError(f"ranks need {FEWEST_TASKS} comparisons or more, got {len(comparisons)}")
    every = list(dict.fromkeys(method for each in comparisons.values() for method in each.methods))
    methods = [method for method in every if all(method in each.methods for each in comparisons.values())]
    if len(methods) < FEWEST_METHODS:
        raise FairbloomError(
            f"ranks need {FEWEST_METHODS} methods or more that all comparisons have, got "
            f"{', '.join(methods) or 'none'}: compare the same methods in each"
        )
    from scipy.stats import friedmanchisquare, rankdata

    by_task = {}
    for task, comparison in comparisons.items():
        values = [comparison.goodness(method, measure) for method in methods]
        by_task[task] = dict(zip(methods, map(float, rankdata([-value for value in values])), strict=True))
    columns = [[ranks[method] for ranks in by_task.values()] for method in methods]
    average = {method: sum(column) / len(column) for method, column in zip(methods, columns, strict=True)}
    same = all(len(set(ranks.values())) == 1 for ranks in by_task.values())  # then the statistic is 0 / 0
    return Ranks(
        measure,
        measure_title(measure, max(each.client_count for each in comparisons.values())),
        by_task,
        dict(sorted(average.items(), key=lambda each: each[1])),
        1.0 if same else float(friedmanchisquare(*columns).pvalue),
        critical_difference(len(methods), len(by_task)),
        tuple(method for method in every if method not in methods),
    )


def critical_difference(methods: int, tasks: int) -> float:
    """Return by how much average ranks must differ for two methods to differ significantly, by Nemenyi's test."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(CONFIDENCE, methods, math.inf)) / math.sqrt(2.0)
    return quantile * math.sqrt(methods * (methods + 1) / (6.0 * tasks))


def fewest_tasks(methods: int) -> int:
    """Return the number of tasks with which the best and the last of so many methods can differ significantly."""
    return math.ceil((critical_difference(methods, 1) / (methods - 1)) ** 2)


def name_tasks(comparisons: Sequence["Comparison"]) -> dict[str, "Comparison"]:
    """Return comparisons by the names of their folders, or by the folders where two have the same name."""
    names = [each.folder.name for each in comparisons]
    unique = len(set(names)) == len(names)
    return {each.folder.name if unique else str(each.folder): each for each in comparisons}
