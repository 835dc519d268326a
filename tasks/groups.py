"""How a schema, or a setting such as adult.group, names groups: by a column's values, a number, or a category."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import split_names

OTHER = "other"
"""The group of examples that have no value, or one that is not among the groups that the clients
agreed on."""

MAX_GROUPINGS = 10
MAX_GROUPS = 50
"""Bounds of the groupings of a run, and of the groups of each."""

NAMING = (
    'by groups in the schema, as groups = ["sex"], by adult.group or heart-disease.group; or give a'
    " task groupings"
)
"""How a task that has no groups gets some, in words."""

COMPARED = re.compile(r"(?P<column>[^<>=]*)(?P<sign>>=|<=|<|>|=+)(?P<number>.*)")
OPPOSITE: Mapping[str, str] = {">=": "<", ">": "<=", "<=": ">", "<": ">="}


@dataclass(frozen=True)
class GroupBy:
    """One way to group examples: by a column's comparison with a number or a category, or by each of its values.

    `sign` is "" for the last, "=" for a category, and `to` is then the category.
    """

    column: str
    sign: str = ""
    to: float | str = ""

    @property
    def name(self) -> str:
        """What the grouping is called: "sex", "age>=60", or "race=White"."""
        return f"{self.column}{self.sign}{self._number}"

    @property
    def _number(self) -> str:
        return self.to if isinstance(self.to, str) else f"{self.to:.15g}"

    def groups(self, categories: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the groups of a column with these categories.

        Of numbers those within the bound and beyond it.
        """
        if not self.sign:
            return tuple(categories)
        if self.sign == "=":
            return (f"not {self._number}", self._number)
        return (f"{self.sign}{self._number}", f"{OPPOSITE[self.sign]}{self._number}")

    def places(self, values: NDArray[Any], categories: Sequence[str] = ()) -> NDArray[np.int64]:
        """Return the place of each value's group, that of OTHER behind the others where there is no value.

        `values` are numbers, NaN for a missing one, or the places of categories, -1 for none.
        """
        if isinstance(self.to, float):
            within = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}[
                self.sign
            ]
            missing = np.isnan(values)
            found = np.where(within(values, self.to), 0, 1)
        else:
            missing = values < 0
            found = values == categories.index(self.to) if self.sign else values
        return np.where(missing, len(self.groups(categories)), found).astype(np.int64)


def parse_groups(key: str, text: str) -> tuple[GroupBy, ...]:
    """Return the groupings that a setting names, as "sex,age>=60" does."""
    found = []
    for word in split_names(text):
        compared = COMPARED.fullmatch(word)
        if compared is None:
            found.append(GroupBy(word))
            continue
        column, sign, number = (part.strip() for part in compared.groups())
        if column and sign == "=" and number:
            found.append(GroupBy(column, sign, number))
            continue
        try:
            bound = float(number)
        except ValueError:
            bound = np.nan
        if not column or sign not in OPPOSITE or not np.isfinite(bound):
            example = f"{column or 'age'}{sign if sign in OPPOSITE else '>='}60"
            raise ReportableError(
                f"{key} = {word!r}: compare a column with a number by >=, >, <= or <, as in"
                f" {example}, or with a category as in race=White; a column's name alone makes a"
                " group of each of its values"
            )
        found.append(GroupBy(column, sign, bound))
    if len(found) > MAX_GROUPINGS:
        raise ReportableError(
            f"{key} = {text!r} names {len(found)} groupings, and {MAX_GROUPINGS} are the most"
        )
    columns = [each.column.lower() for each in found]
    for each in found:
        if columns.count(each.column.lower()) > 1:
            raise ReportableError(
                f"{key} = {text!r} names the column {each.column!r} twice: two groupings of one"
                " column overlap, and the difference of their counts would show groups that are"
                " too small to be reported: name it once"
            )
    return tuple(found)


def find_two_groups(groupings: Mapping[str, Sequence[str]], classes: int | None) -> tuple[int, int]:
    """Return the two groups between which a model is to be fair, of a task's first grouping.

    `OTHER` is neither.

    Groupings and the number of classes are those of `Task`.
    """
    if not groupings:
        raise ReportableError(
            "fairness between groups needs groups of examples, which the task lacks: name a column"
            f" of two values {NAMING}"
        )
    (grouping, names), *_ = groupings.items()
    two = [place for place, name in enumerate(names) if name != OTHER]
    if len(two) != 2:
        there = ", ".join(names[place] for place in two) or "none"
        raise ReportableError(
            f"there are {len(two)} groups by {grouping!r} ({there}), and fairness between groups is"
            " between two: name a column of two values first, or divide the numbers of one, as in"
            " age>=60, or take one category, as in race=White"
        )
    if classes not in (None, 2):
        raise ReportableError(
            "fairness between groups is about one of two classes, and the task predicts"
            f" {f'one of {classes}' if classes else 'a quantity'}: choose a method that does not"
            " compare groups, or a task of two classes"
        )
    first, second = two
    return first, second
