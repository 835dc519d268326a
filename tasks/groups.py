"""How a schema, or a setting such as adult.group, names groups: by a column's values, or a number that divides it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import split_names

if TYPE_CHECKING:
    from .task import Task

OTHER = "other"
"""The group of examples that have no value, or one that is not among the groups that the clients agreed on."""

MAX_GROUPINGS, MAX_GROUPS = 10, 50
"""Bounds of the groupings of a run, and of the groups of each."""

NAMING = 'by groups in the schema, as groups = ["sex"], by adult.group or heart-disease.group; or give a task groupings'
"""How a task that has no groups gets some, in words."""

COMPARED = re.compile(r"(?P<column>[^<>=]*)(?P<sign>>=|<=|<|>|=+)(?P<number>.*)")
OPPOSITE: Mapping[str, str] = {">=": "<", ">": "<=", "<=": ">", "<": ">="}


@dataclass(frozen=True)
class GroupBy:
    """One way to group examples: by comparing a column with a number or, where `sign` is "", by each of its values."""

    column: str
    sign: str = ""
    number: float = 0.0

    @property
    def name(self) -> str:
        """What the grouping is called: "sex", or "age>=60"."""
        return f"{self.column}{self.sign}{self.number:.15g}" if self.sign else self.column

    @property
    def halves(self) -> tuple[str, ...]:
        """The groups that a number makes of a column, those above and below it; () where values make the groups."""
        return (f"{self.sign}{self.number:.15g}", f"{OPPOSITE[self.sign]}{self.number:.15g}") if self.sign else ()

    def halve(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the place of each number's group among `halves`, and that of OTHER behind them where it is NaN."""
        within = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}[self.sign]
        places = np.where(within(numbers, self.number), 0, 1)
        return np.where(np.isnan(numbers), len(self.halves), places).astype(np.int64)


def parse_groups(key: str, text: str) -> tuple[GroupBy, ...]:
    """Return the groupings that a setting names, as "sex,age>=60" does."""
    found = tuple(_parse_grouping(key, word) for word in split_names(text))
    if len(found) > MAX_GROUPINGS:
        raise ReportableError(f"{key} = {text!r} names {len(found)} groupings, and {MAX_GROUPINGS} are the most")
    columns = [each.column.lower() for each in found]
    for each in found:
        if columns.count(each.column.lower()) > 1:
            raise ReportableError(
                f"{key} = {text!r} names the column {each.column!r} twice: two groupings of one column overlap, and "
                "the difference of their counts would show groups that are too small to be reported: name it once"
            )
    return found


def _parse_grouping(key: str, word: str) -> GroupBy:
    compared = COMPARED.fullmatch(word)
    if compared is None:
        return GroupBy(word)
    column, sign, number = (part.strip() for part in compared.groups())
    try:
        bound = float(number)
    except ValueError:
        bound = np.nan
    if not column or sign not in OPPOSITE or not np.isfinite(bound):
        example = f"{column or 'age'}{sign if sign in OPPOSITE else '>='}60"
        raise ReportableError(
            f"{key} = {word!r}: compare a column with a number by >=, >, <= or <, as in {example}; a column's name "
            "alone makes a group of each of its values"
        )
    return GroupBy(column, sign, bound)


def find_two_groups(task: Task) -> tuple[int, int]:
    """Return the two groups between which a model is to be fair, of the task's first grouping; `OTHER` is neither."""
    if not task.groupings:
        raise ReportableError(
            "fairness between groups needs groups of examples, which the task lacks: name a column of two "
            f"values {NAMING}"
        )
    (grouping, names), *_ = task.groupings.items()
    two = [place for place, name in enumerate(names) if name != OTHER]
    if len(two) != 2:
        there = ", ".join(names[place] for place in two) or "none"
        raise ReportableError(
            f"there are {len(two)} groups by {grouping!r} ({there}), and fairness between groups is between two: name "
            "a column of two values first, or divide the numbers of one, as in age>=60; people of Adult also "
            "by one category, as in adult.group=race=White"
        )
    if task.classes not in (None, 2):
        raise ReportableError(
            "fairness between groups is about one of two classes, and the task predicts "
            f"{f'one of {task.classes}' if task.classes else 'a quantity'}: choose a method that does not compare "
            "groups, or a task of two classes"
        )
    first, second = two
    return first, second
