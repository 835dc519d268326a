"""Counts and scores of the groups of a client's examples that are large enough to be reported."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.scores import COUNT, GroupScore, name_in_group
from fairbloom.tasks.measures import clients_of
from fairbloom.tasks.task import AnyExamples, Task

from .gate import hold_back


def group_examples(task: Task, examples: AnyExamples) -> Tensor:
    """Return each example's index in each of the task's reported groupings, one at least.

    Its shape is (n, number of groupings). Raise ReportableError if classes are a grouping, and an
    example's target is not one of them.
    """
    places = examples.group_places()
    columns = [] if places is None else [places.cpu()]
    if task.class_grouping is not None:
        targets = examples.all_targets.cpu().reshape(len(examples), -1)
        known = torch.arange(len(task.reported_groupings[task.class_grouping]))
        if targets.shape[1] != 1 or not bool(torch.isin(targets, known).all()):
            raise ReportableError(
                f"scores = 'recall': each example needs one of {len(known)} classes, counted from"
                " 0, as its target: leave it out, or give the task all its classes"
            )
        columns.append(targets.long())
    return torch.cat(columns, dim=1)


def measure_groups(
    task: Task,
    measured: Mapping[GroupScore, Tensor | float],
    groups: Tensor,
    counts: Sequence[int],
    smallest: int,
    units: NDArray[np.int64] | None = None,
) -> list[dict[str, int | float]]:
    """Return counts and scores of each client's groups that may be reported, by names on the wire.

    Parameters
    ----------
    measured
        The values of each of the task's `group_scores` for the examples of consecutive clients,
        shape (n,).
    groups
        What `group_examples` returns.
    counts
        The number of examples of each client; their sum is n.
    smallest
        Fewest examples of a group that may be reported, or fewest units if there are any.
    units
        The unit of each example, as an index.
    """
    values: dict[GroupScore, NDArray[Any]] = {}
    for score, of_score in measured.items():
        here = torch.as_tensor(of_score).cpu()
        values[score] = here.double().numpy()
    for score, numbers in values.items():
        if numbers.shape != (len(groups),):
            raise ReportableError(
                f"the score {score.name} cannot be measured in groups: it must give a number of"
                f" each of {len(groups)} examples, got shape {numbers.shape}: give the task"
                " group_scores that do"
            )
    reports: list[dict[str, int | float]] = [{} for _ in counts]
    clients = clients_of(counts)
    for (grouping, names), places in zip(
        task.reported_groupings.items(), groups.cpu().numpy().T, strict=True
    ):
        bins = clients * len(names) + places
        shape = (len(counts), len(names))
        sizes = _count(bins, shape)
        everyone = np.full(len(bins), True)
        large = [
            reportable([each], smallest) for each in _count_units(bins, everyone, units, shape)
        ]
        for report, each, shown in zip(reports, sizes, large, strict=True):
            if len(shown) < sum(size > 0 for size in each):
                hold_back(f"groups by {grouping}, because one has fewer than {smallest} examples")
            report |= {name_in_group(COUNT, grouping, names[place]): each[place] for place in shown}
        for score, numbers in values.items():
            if (score.by is None) == (grouping == task.class_grouping):
                continue
            scored = everyone
            subsets = list[list[list[Any]]]()
            if score.over != COUNT:  # only examples with a number count
                scored = ~np.isnan(numbers)
                subsets.append(_count_units(bins, scored, units, shape))
                if smallest > 1:
                    subsets.append(_count_units(bins, ~scored, units, shape))
            parts = _count(bins[scored], shape)
            sums = _count(bins[scored], shape, numbers[scored])
            for client, report in enumerate(reports):
                shown = large[client]
                if subsets:
                    shown = reportable([subset[client] for subset in subsets], smallest, shown)
                    report |= {
                        name_in_group(score.over, grouping, names[place]): parts[client][place]
                        for place in shown
                    }
                for place in shown:
                    mean = sums[client][place] / parts[client][place]
                    if math.isfinite(mean):
                        report[name_in_group(score.name, grouping, names[place])] = mean
    return reports


def _count(
    bins: NDArray[np.int64], shape: tuple[int, int], weights: NDArray[np.float64] | None = None
) -> list[list[Any]]:
    """Return the number of examples in each bin, or the sum of their weights, as rows."""
    counted = np.bincount(bins, weights, minlength=math.prod(shape))
    return counted.reshape(shape).tolist()


def _count_units(
    bins: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    units: NDArray[np.int64] | None,
    shape: tuple[int, int],
) -> list[list[Any]]:
    """Return the number of different units of the chosen examples in each bin, as rows."""
    if units is None:
        return _count(bins[chosen], shape)
    return _count(np.unique(np.stack([bins[chosen], units[chosen]]), axis=1)[0], shape)


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
    shown = nonempty if among is None else [place for place in nonempty if place in among]
    if len(shown) == len(nonempty) and all(min(groups[place]) >= smallest for place in nonempty):
        return shown
    shown = [place for place in shown if min(groups[place]) >= 2 * smallest]
    held_back = [groups[place] for place in nonempty if place not in shown]
    if len(held_back) < 2 or any(sum(part) < smallest for part in zip(*held_back, strict=True)):
        return []
    return shown
