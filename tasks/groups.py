"""How a setting such as csv.group names groups: by the values of a column, or by a number that divides it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import split_names

OTHER = "other"
"""The group of examples that have no value, or one that is not among the groups that the clients agreed on."""

MOST_GROUPINGS, MOST_GROUPS = 10, 50
"""Bounds of the groupings of a run, and of the groups of each."""

COMPARED = re.compile(r"(?P<column>[^<>=]*)(?P<sign>>=|<=|<|>|=+)(?P<number>.*)")
OPPOSITE: Mapping[str, str] = {">=": "<", ">": "<=", "<=": ">", "<": ">="}


@dataclass(frozen=True)
class GroupBy:
    """One way to group examples.

    Attributes
    ----------
    column
        The column.
    sign, number
        How its numbers are compared, and with which one; "" and 0 where each of its values makes a group.
    """

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
    """Return the groupings that a setting names, as "sex,age>=60" does.

    Raises
    ------
    ReportableError
        When one makes no sense; the message names the setting, the value and what would do.
    """
    found = tuple(_parse_grouping(key, word) for word in split_names(text))
    if len(found) > MOST_GROUPINGS:
        raise ReportableError(f"{key} = {text!r} names {len(found)} groupings, and {MOST_GROUPINGS} are the most")
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
    example = f"{column or 'age'}{sign if sign in OPPOSITE else '>='}60"
    if sign not in OPPOSITE:
        raise ReportableError(
            f"{key} = {word!r}: compare a column with a number by >=, >, <= or <, as in {example}; a column's name "
            "alone makes a group of each of its values"
        )
    if not column:
        raise ReportableError(f"{key} = {word!r} names no column: write it before {sign}, as in {example}")
    try:
        bound = float(number)
    except ValueError:
        bound = np.nan
    if not np.isfinite(bound):
        raise ReportableError(f"{key} = {word!r}: {number!r} is no number: write one behind {sign}, as in {example}")
    return GroupBy(column, sign, bound)
