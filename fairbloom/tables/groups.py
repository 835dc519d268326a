"""Groups of examples, by a column's values, or by comparing it with a number or a category.

They are named by a schema, or by a setting such as adult.group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError

# Groupings of a run.
MAX_GROUPINGS = 10

# The remedy in errors about a task without groups.
NAMING = (
    'by groups in the schema, as groups = ["sex"], by adult.group or heart-disease.group; or give a'
    " task groupings"
)

COMPARED = re.compile(r"(?P<column>[^<>=]*)(?P<sign>>=|<=|<|>|=+)(?P<number>.*)")
OPPOSITE: Mapping[str, str] = {">=": "<", ">": "<=", "<=": ">", "<": ">="}
COMPARE = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}


@dataclass(frozen=True)
class GroupBy:
    """A grouping of examples: by the values of a column, or by comparing it.

    `sign` is "" for a group of each value, "=" to compare with the category `to`, and else compares
    with the number `to`.
    """

    column: str
    sign: str = ""
    to: float | str = ""

    @property
    def name(self) -> str:
        """The grouping's name, such as "sex", "age>=60" or "race=White"."""
        return f"{self.column}{self.sign}{self._number}"

    @property
    def _number(self) -> str:
        return self.to if isinstance(self.to, str) else f"{self.to:.15g}"

    def groups(self, categories: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names of the groups, of a column with these categories."""
        if not self.sign:
            return tuple(categories)
        if self.sign == "=":
            return (f"not {self._number}", self._number)
        return (f"{self.sign}{self._number}", f"{OPPOSITE[self.sign]}{self._number}")

    def places(self, values: NDArray[Any], categories: Sequence[str] = ()) -> NDArray[np.int64]:
        """Return each value's group index; the last, None, is of missing values.

        `values` are numbers, NaN if missing, or indices of categories, -1 if missing.
        """
        if isinstance(self.to, float):
            missing = np.isnan(values)
            found = np.where(COMPARE[self.sign](values, self.to), 0, 1)
        else:
            missing = values < 0
            found = values == categories.index(self.to) if self.sign else values
        return np.where(missing, len(self.groups(categories)), found).astype(np.int64)


def read_groups(
    key: str, words: Sequence[str], columns: Collection[str] = ()
) -> tuple[GroupBy, ...]:
    """Return the groupings that a list names, such as ("sex", "race=White, other").

    A word that is one of `columns` is that column's name, whatever signs it has.
    """
    text = ",".join(words)
    found = []
    for word in words:
        compared = None if word in columns else COMPARED.fullmatch(word)
        if compared is None:
            found.append(GroupBy(word))
            continue
        column, sign, number = [part.strip() for part in compared.groups()]
        if column and sign == "=" and number:
            found.append(GroupBy(column, sign, number))
            continue
        try:
            bound = float(number)
        except ValueError:
            bound = np.nan
        if not column or sign not in OPPOSITE or not np.isfinite(bound):
            usable_sign = sign if sign in OPPOSITE else ">="
            raise ReportableError(
                f"{key} = {word!r}: compare a column with a number by >=, >, <= or <, as in"
                f" {column or 'age'}{usable_sign}60, or with a category as in race=White; a"
                " plain column name makes a group of each of its values"
            )
        found.append(GroupBy(column, sign, bound))
    if len(found) > MAX_GROUPINGS:
        raise ReportableError(
            f"{key} = {text!r} names {len(found)} groupings, and {MAX_GROUPINGS} are the most"
        )
    named = [term.column.lower() for term in found]
    for term in found:
        if named.count(term.column.lower()) > 1:
            raise ReportableError(
                f"{key} = {text!r} names the column {term.column!r} twice: two groupings of one"
                " column overlap, and the difference of their counts would show groups that are"
                " too small to be reported: name it once"
            )
    return tuple(found)


def find_two_groups(
    groupings: Mapping[str, Sequence[str | None]], classes: int | None
) -> tuple[int, int]:
    """Return the indices of the two groups of a task's first grouping, None left out.

    `groupings` and `classes` are attributes of `Task`. Raises ReportableError if fairness between
    two groups is not defined for them.
    """
    if not groupings:
        raise ReportableError(
            "fairness between groups needs groups of examples, which the task lacks: name a column"
            f" of two values {NAMING}"
        )
    (grouping, names), *_ = groupings.items()
    groups = {name: place for place, name in enumerate(names) if name is not None}
    if len(groups) != 2:
        listed = ", ".join(groups) or "none"
        raise ReportableError(
            f"there are {len(groups)} groups by {grouping!r} ({listed}), and fairness between"
            " groups is between two: name a column of two values first, or divide the numbers of"
            " one, as in age>=60, or take one category, as in race=White"
        )
    if classes not in (None, 2):
        predicted = f"one of {classes}" if classes else "a quantity"
        raise ReportableError(
            "fairness between groups is about one of two classes, and the task predicts"
            f" {predicted}: choose a method that does not compare groups, or a task of two classes"
        )
    first, second = groups.values()
    return first, second
