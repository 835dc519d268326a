"""What a client reports of groups of its examples: counts and scores, where enough examples stand behind each."""

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
        What each of the task's `group_scores` gives for a client's examples.
    groups
        The place of each example's group in each grouping, shape (n, number of groupings).
    smallest
        Fewest examples of a group that may be reported.
    """
    values = {score: torch.as_tensor(of_all).cpu().double() for score, of_all in measured.items()}
    for score, of_all in values.items():
        if of_all.shape != (len(groups),):
            raise ReportableError(
                f"the score {score.name} cannot be measured in groups: it must give a number of"
                f" each of {len(groups)} examples, got shape {tuple(of_all.shape)}: give the task"
                " group_scores that do"
            )
    found: dict[str, int | float] = {}
    for (grouping, names), places in zip(
        task.groupings.items(), groups.cpu().unbind(1), strict=True
    ):
        counts = torch.bincount(places, minlength=len(names)).tolist()
        reported = reportable([counts], smallest)
        if len(reported) < sum(count > 0 for count in counts):
            hold_back(f"groups by {grouping}, because one has fewer than {smallest} examples")
        found |= {name_in_group(COUNT, grouping, names[place]): counts[place] for place in reported}
        for score, of_each in values.items():
            over = counts
            shown = reported
            of = of_each
            within = places
            if score.over != COUNT:
                counted = ~of_each.isnan()
                of = of_each[counted]
                within = places[counted]
                over = torch.bincount(within, minlength=len(names)).tolist()
                rest = [count - part for count, part in zip(counts, over, strict=True)]
                shown = reportable([over, rest] if smallest > 1 else [over], smallest, reported)
                found |= {
                    name_in_group(score.over, grouping, names[place]): over[place]
                    for place in shown
                }
            sums = torch.bincount(within, weights=of, minlength=len(names)).tolist()
            means = {place: sums[place] / over[place] for place in shown}
            finite = {place: mean for place, mean in means.items() if math.isfinite(mean)}
            found |= {
                name_in_group(score.name, grouping, names[place]): mean
                for place, mean in finite.items()
            }
    return found


def reportable(
    parts: Sequence[Sequence[int]], smallest: int, among: Collection[int] | None = None
) -> list[int]:
    """Return the places of the groups that may be reported, so that no small count can be derived.

    The totals over all groups are known, so what is not reported can be found by subtraction, and a
    reader who knows this rule can tell why a group is not reported. So where one group is too
    small, all that are not twice as large as one must be are held back with it; and all groups are,
    where that is one group alone, or together they are too small. Groups without examples are
    neither reported nor hide another.

    `parts` has the number of examples of each group; or those of the parts into which a number
    divides each group, such as positive examples and the others, each of which must be large
    enough. `among` has the places of groups that may be reported as far as other counts go; None:
    all.
    """
    groups = list(zip(*parts, strict=True))
    there = [place for place, group in enumerate(groups) if sum(group)]
    shown = [place for place in there if among is None or place in among]
    if len(shown) == len(there) and all(min(groups[place]) >= smallest for place in there):
        return shown
    shown = [place for place in shown if min(groups[place]) >= 2 * smallest]
    held_back = [groups[place] for place in there if place not in shown]
    hidden = len(held_back) > 1 and all(
        sum(part) >= smallest for part in zip(*held_back, strict=True)
    )
    return shown if hidden else []
