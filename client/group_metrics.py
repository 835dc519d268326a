"""Counts and scores of the groups of a client's examples that are large enough to be reported."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.scores import COUNT, GroupScore, name_in_group
from fairbloom.tasks import Task

from .guard.audit_log import hold_back


def measure_groups(
    task: Task,
    measured: Mapping[GroupScore, Tensor | float],
    groups: Tensor,
    smallest: int,
) -> dict[str, int | float]:
    """Return counts and scores of the groups that may be reported, by their names on the wire.

    Parameters
    ----------
    measured
        The values of each of the task's `group_scores` for a client's examples, shape (n,).
    groups
        The index of each example's group in each grouping, shape (n, number of groupings).
    smallest
        Fewest examples of a group that may be reported.
    """
    values = {score: torch.as_tensor(numbers).cpu().double() for score, numbers in measured.items()}
    for score, numbers in values.items():
        if numbers.shape != (len(groups),):
            raise ReportableError(
                f"the score {score.name} cannot be measured in groups: it must give a number of"
                f" each of {len(groups)} examples, got shape {tuple(numbers.shape)}: give the task"
                " group_scores that do"
            )
    report: dict[str, int | float] = {}
    for (grouping, names), places in zip(
        task.groupings.items(), groups.cpu().unbind(1), strict=True
    ):
        counts = torch.bincount(places, minlength=len(names)).tolist()
        large = reportable([counts], smallest)
        if len(large) < sum(count > 0 for count in counts):
            hold_back(f"groups by {grouping}, because one has fewer than {smallest} examples")
        for place in large:
            report[name_in_group(COUNT, grouping, names[place])] = counts[place]
        for score, numbers in values.items():
            shown = large
            sizes = counts
            members = places
            if score.over != COUNT:  # only examples with a number count
                has_number = ~numbers.isnan()
                numbers = numbers[has_number]
                members = places[has_number]
                sizes = torch.bincount(members, minlength=len(names)).tolist()
                parts = [sizes]
                if smallest > 1:
                    parts.append([n - size for n, size in zip(counts, sizes, strict=True)])
                shown = reportable(parts, smallest, large)
                for place in shown:
                    report[name_in_group(score.over, grouping, names[place])] = sizes[place]
            sums = torch.bincount(members, weights=numbers, minlength=len(names)).tolist()
            for place in shown:
                mean = sums[place] / sizes[place]
                if math.isfinite(mean):
                    report[name_in_group(score.name, grouping, names[place])] = mean
    return report


def reportable(
    parts: Sequence[Sequence[int]], smallest: int, among: Collection[int] | None = None
) -> list[int]:
    """Return the indices of the groups that may be reported, so that no small count can be derived.

    The totals over all groups are known, so a single missing count could be found by subtraction,
    and a reader who knows this rule can infer why a group is missing. So if one group is too small,
    all groups below twice the minimum are held back with it. If that is only one group, or if these
    groups together are too small, all groups are held back. Empty groups are neither reported nor
    do they hide another.

    Parameters
    ----------
    parts
        The number of examples of each group, or of its subsets (positives, negatives); each must
        reach the minimum.
    smallest
        The minimum.
    among
        The indices of groups that other counts allow to be reported; None: all.
    """
    groups = list(zip(*parts, strict=True))
    nonempty = [place for place, group in enumerate(groups) if sum(group)]
    shown = [place for place in nonempty if among is None or place in among]
    if len(shown) == len(nonempty) and all(min(groups[place]) >= smallest for place in nonempty):
        return shown
    shown = [place for place in shown if min(groups[place]) >= 2 * smallest]
    held_back = [groups[place] for place in nonempty if place not in shown]
    if len(held_back) < 2 or any(sum(part) < smallest for part in zip(*held_back, strict=True)):
        return []
    return shown
