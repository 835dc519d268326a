"""The rows of one client: which are used, what is told of them, and what is learned from them."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..partition import FEWEST, Parts, split, splits_of
from ..task import Setup, Splits
from .agreement import MOST_CATEGORIES, MOST_NUMBERED_CLASSES, Aim, Moments
from .columns import CATEGORIES, EMPTY, NUMBERS, OTHER, Agreed, Input, differs
from .identities import look_like_dates, look_like_identifiers, nearly_all_differ
from .numbers import MISSING_WORDS, number
from .reading import LARGEST, Column, Reading, Rows, Table, looks_like_data, no_names
from .reasons import DataError, Heading
from .targets import as_targets, in_order, named

log = logging.getLogger("flwr").getChild("fairbloom")

TARGETS = ("target", "label", "y")
"""One of these columns is the target where none is named, in any case of letters."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of the task's own, with the words of lists apart."""

    target: str
    client: str
    kind: str
    classes: tuple[str, ...]
    categories: tuple[str, ...]
    ignore: tuple[str, ...]
    missing: str
    together: bool
    smallest_category: int

    @property
    def reading(self) -> Reading:
        """What is known of columns before they are read."""
        named = (*([self.target] if self.target else TARGETS), self.client, *self.categories)
        return Reading(frozenset(each.lower() for each in named if each), frozenset(map(str.lower, self.ignore)))


class Part:
    """The rows of one client.

    Raises
    ------
    DataError
        When they cannot be used: the message names file, line, column and value, and what to do.
    """

    def __init__(self, client: str, table: Table, rows: Rows, setup: Setup, options: Options) -> None:
        self._table, self._options, self._deployed = table, options, setup.deployed
        if setup.deployed and table.doubtful is not None:
            raise _doubtful(table, table.doubtful)
        self.target = _target(table, options.target)
        for name in options.categories:
            column_called(table, name, "csv.categories")
        self.inputs = [
            column
            for column in table.columns.values()
            if column is not self.target and column.name.lower() != options.client.lower()
        ]
        self._whose = f"{table.path}: client {client}" if options.client else str(table.path)
        if not self.inputs:
            raise DataError(
                f"{table.path} has no columns but the target {self.target.name!r}: nothing to learn from", "no-inputs"
            )
        self.rows = self._usable(rows)
        self.parts = split(self.rows, setup, client)

    # Which rows are used

    def _usable(self, rows: Rows) -> Rows:
        """Return the rows that are learned from, as csv.missing says."""
        columns = [self.target, *self.inputs]
        if self._options.missing == "error":
            self._check_missing(rows, columns)
        needed = columns if self._options.missing == "drop" else [self.target]
        kept: Rows = rows[~np.any([column.missing[rows] > 0 for column in needed], axis=0)]
        if len(kept) < FEWEST:
            dropped = f", {len(kept)} of them without a missing value (csv.missing=fill keeps the others)"
            raise DataError(
                f"{self._whose} has {len(rows)} rows{dropped if len(kept) < len(rows) else ''}: at least {FEWEST} are "
                "needed, four fifths for training and one for testing: add rows, or leave this client out",
                "few-rows",
                rows=len(rows),
                kept=len(kept),
                fewest=FEWEST,
            )
        return kept

    def _check_missing(self, rows: Rows, columns: list[Column]) -> None:
        gone = {column.name: column for column in columns if column.missing[rows].any()}
        if not gone:
            return
        row, name = min((int(rows[np.argmax(column.missing[rows] > 0)]), name) for name, column in gone.items())
        cells = sum(int((column.missing[rows] > 0).sum()) for column in gone.values())
        sign = gone[name].blanks[gone[name].missing[row] - 1]
        worst = sorted(gone, key=lambda each: -int((gone[each].missing[rows] > 0).sum()))
        raise DataError(
            f"{self._table.place(row, name)} has no value ({sign or 'empty'!r}), the first of {cells} such cells "
            f"({MISSING_WORDS}): csv.missing=drop leaves such rows out, csv.missing=fill takes a column's mean or no "
            f"category in their place, csv.ignore={','.join(worst[:3])} leaves columns out",
            "missing",
            line=self._table.line(row),
            column=gone[name].label,
            cells=cells,
        )

    # What is told of them

    def about(self) -> dict[str, Any]:
        """Return what this client tells of its training rows, and of the classes of all its rows."""
        of_texts = [column for column in self.inputs if kind_of(column) == CATEGORIES]
        for column in of_texts:
            self._check_categories(column)
        kept = {column.name: self._frequent(column) for column in of_texts}
        fewer = [each.name for each in of_texts if len(kept[each.name]) < len(each.texts_in(self.parts.train))]
        numbers = [column for column in self.inputs if kind_of(column) == NUMBERS]
        of_numbers = {c.name: moments(c.numbers, self.parts.train) for c in numbers if self._options.together}
        return {
            "examples": len(self.parts.train),
            "columns": [column.name for column in self.inputs],
            "kinds": [kind_of(column) for column in self.inputs],
            "categories": {name: sorted({*texts, *[OTHER] * (name in fewer)}) for name, texts in kept.items()},
            "others": fewer,
            "moments": {name: told for name, told in of_numbers.items() if told is not None},
            "together": self._options.together,
            "target": self.aim().told(),
        }

    def in_short(self) -> Mapping[str, str | int]:
        """Return what is shown of the client."""
        aim = self.aim()
        counts = np.bincount(self.target.codes[self.rows], minlength=len(self.target.texts))
        of_classes = dict(zip(self.target.texts, counts.tolist(), strict=True))
        numbers = self.quantity()[self.rows] if aim.kind == "quantity" else np.zeros(0)
        classes = named([f"{name}: {of_classes.get(name, 0)}" for name in aim.classes])
        return {
            "train": len(self.parts.train),
            "test": len(self.parts.test),
            "target": f"{numbers.min():g} to {numbers.max():g}" if len(numbers) else classes,
        }

    def in_words(self) -> str:
        """Return in a sentence how many rows there are, and which columns are of what kind."""
        by_kind = {kind: [c.name for c in self.inputs if kind_of(c) == kind] for kind in (NUMBERS, CATEGORIES, EMPTY)}
        inputs = "; ".join(f"{kind}: {named(names)}" for kind, names in by_kind.items() if names)
        rows = f"{len(self.parts.train)} rows to train on, {len(self.parts.test)} to test on"
        return f"{self._whose}: {rows}; {inputs}; target: {self.target.name}"

    def _frequent(self, column: Column) -> list[str]:
        """Return those categories of training rows that may be told: on a device, those of enough rows."""
        least = self._options.smallest_category if self._deployed else 1
        codes = column.codes[self.parts.train]
        counts = np.bincount(codes[codes >= 0], minlength=len(column.texts))
        return [text for text, count in zip(column.texts, counts, strict=True) if count >= least]

    def _check_categories(self, column: Column) -> None:
        """Raise DataError when a column's texts are too many, or may say who a row is about and are not allowed."""
        texts = column.texts_in(self.rows)
        different, present = len(texts), int((column.codes[self.rows] >= 0).sum())
        where, ignore = f"{self._whose}, column {column.name!r} holds", f"csv.ignore={column.name}"
        if different > MOST_CATEGORIES:
            raise DataError(
                f"{where} {different:,} different texts, as {texts[0]!r}, and {MOST_CATEGORIES:,} categories are the "
                f"most: leave it out by {ignore}",
                "many-categories",
                column=column.label,
                different=different,
                most=MOST_CATEGORIES,
            )
        if column.name.lower() in map(str.lower, self._options.categories):
            return
        remedy = (
            "each would be a category that all clients are told of: leave the column out by "
            f"{ignore}, or allow it by csv.categories={column.name}"
        )
        if look_like_dates(texts):
            raise DataError(f"{where} dates, as {texts[0]!r}: {remedy}", "dates", column=column.label)
        if look_like_identifiers(texts):
            said = f"{where} texts that look like numbers of persons or cases, or like addresses, as {texts[0]!r}"
            raise DataError(f"{said}: {remedy}", "identifiers", column=column.label)
        if nearly_all_differ(different, present):
            raise DataError(
                f"{where} {different} different texts in {present} rows, as {texts[0]!r}, which may say who a row is "
                f"about: {remedy}",
                "all-different",
                column=column.label,
                different=different,
                rows=present,
            )

    def aim(self) -> Aim:
        """Return what this client tells of the target."""
        options, found = self._options, self.target.texts_in(self.rows)
        values = [number(text) for text in found]
        if options.kind == "regression" or (
            options.kind == "auto"
            and not options.classes
            and None not in values
            and (len(found) > MOST_NUMBERED_CLASSES or any(value != round(value or 0.0) for value in values))
        ):
            return Aim("quantity", moments=moments(self.quantity(), self.parts.train))
        if options.classes:
            self.places(options.classes)
            return Aim("classes", options.classes)
        self._check_classes(found)
        either = options.kind == "auto" and None not in values
        return Aim("either" if either else "classes", tuple(in_order(found)))

    def _check_classes(self, found: list[str]) -> None:
        """Raise DataError when the target's different values are no classes that may be told."""
        label, remedy = self.target.label, "name the right column by csv.target, or mend it"
        if len(found) > MOST_NUMBERED_CLASSES:
            raise DataError(
                f"{self._where()} has {len(found):,} different values, as {found[0]!r}, and {MOST_NUMBERED_CLASSES} "
                f"classes are the most that are found out: {remedy}, or state them by csv.classes",
                "many-classes",
                column=label,
                different=len(found),
                most=MOST_NUMBERED_CLASSES,
            )
        if len(found) == 1:
            raise DataError(
                f"{self._where()} is {found[0]!r} in each row of {self._whose}: a client with one class needs all "
                "classes stated, as in csv.classes=0,1; or leave it out",
                "one-class",
            )
        texts = {text for text in found if number(text) is None}
        if texts and nearly_all_differ(len(found), len(self.rows)):
            raise DataError(
                f"{self._where()} has {len(found)} different values in {len(self.rows)} rows, as {min(texts)!r}: "
                f"{remedy}, or state all classes by csv.classes",
                "different-targets",
                different=len(found),
                rows=len(self.rows),
            )
        strange = np.isin(self.target.codes[self.rows], [self.target.texts.index(text) for text in texts])
        if self._options.kind == "auto" and 0 < 2 * strange.sum() < len(self.rows):
            row = int(self.rows[np.argmax(strange)])
            raise DataError(
                f"{self._table.place(row, self.target.name)} holds {self.target.texts[self.target.codes[row]]!r}, "
                "which is no number, and most of the target is numbers: mend it, or say csv.kind=classification if "
                "it is a class",
                "mixed-target",
                line=self._table.line(row),
                column=label,
            )

    def _where(self) -> str:
        return f"the target, column {self.target.name!r} of {self._table.path},"

    # What is learned from

    def splits(self, agreed: Agreed) -> Splits:
        """Return inputs and targets as the clients have agreed.

        Raises
        ------
        DataError
            When this client's data are of another kind, because they were not there when the clients agreed.
        """
        columns = {column.name: column for column in self.inputs}
        names = frozenset(each.name for each in agreed.inputs)
        if names != frozenset(columns):
            raise DataError(
                f"{self._table.path}: {differs(frozenset(columns), names)}",
                "other-columns",
                lacking=Heading(named(sorted(names - columns.keys())) or "none"),
                added=Heading(named(sorted(columns.keys() - names)) or "none"),
            )
        inputs = np.zeros((len(self.rows), agreed.width), np.float32)
        start = 0
        for each in agreed.inputs:
            self._fill(inputs[:, start : start + each.width], columns[each.name], each)
            start += each.width
        target = agreed.target
        values: NDArray[Any] = self.places(target.classes) if target.classes else self.quantity()[self.rows]
        targets = as_targets(values, target)
        places = np.zeros(len(self._table), np.int64)
        places[self.rows] = np.arange(len(self.rows))
        return splits_of(torch.from_numpy(inputs), targets, Parts(*(places[rows] for rows in self.parts)))

    def _fill(self, inputs: NDArray[np.float32], column: Column, agreed: Input) -> None:
        """Write the numbers of one column into the inputs."""
        kind = kind_of(column)
        if kind == EMPTY:
            return
        if (kind == CATEGORIES) != (agreed.categories is not None):
            raise DataError(
                f"{self._table.path}: column {column.name!r} holds {kind}, and "
                f"{NUMBERS if kind == CATEGORIES else CATEGORIES} with the others: mend it, or take it as categories "
                f"everywhere by csv.categories={column.name}",
                "other-kind",
                column=column.label,
            )
        if agreed.categories is not None:
            order = {text: place for place, text in enumerate(agreed.categories)}
            rest = order[OTHER] if agreed.other else -1
            of_codes = np.array([order.get(text, rest) for text in column.texts] + [-1])  # the last one is of code -1
            places = of_codes[column.codes[self.rows]]
            known = np.flatnonzero(places >= 0)
            inputs[known, places[known]] = 1.0
            return
        assert column.numbers is not None  # noqa: S101 (what a column of numbers is)
        center, scale = agreed.moments or moments(column.numbers, self.parts.train) or (0.0, 0.0)
        if scale > 0.0:  # what is constant in training says nothing, whatever it is in testing
            inputs[:, 0] = np.nan_to_num((column.numbers[self.rows] - center) / scale, nan=0.0)

    def places(self, classes: tuple[str, ...]) -> NDArray[np.int64]:
        """Return which of the classes each row has; raise DataError where it has another one."""
        order = {text: place for place, text in enumerate(classes)}
        of_codes = np.array([order.get(text, -1) for text in self.target.texts] + [-1], np.int64)
        places = of_codes[self.target.codes[self.rows]]
        if len(strange := np.flatnonzero(places < 0)):
            row = int(self.rows[strange[0]])
            raise DataError(
                f"{self._table.place(row, self.target.name)} holds {self.target.texts[self.target.codes[row]]!r}, "
                f"which is none of the classes {named(classes)}: mend it, or state all classes by csv.classes",
                "strange-class",
                line=self._table.line(row),
                column=self.target.label,
            )
        return places

    def quantity(self) -> NDArray[np.float64]:
        """Return the target of all rows of the file as numbers; raise DataError where it is a text."""
        values = [number(text) for text in self.target.texts]
        for text, value in zip(self.target.texts, values, strict=True):
            if value is None or not abs(value) <= LARGEST:
                row = int(np.argmax(self.target.codes == self.target.texts.index(text)))
                raise DataError(
                    f"{self._table.place(row, self.target.name)} holds {text!r}, which is no number to be told: mend "
                    "it, name another column by csv.target, or take it as classes by csv.kind=classification",
                    "no-quantity",
                    line=self._table.line(row),
                    column=self.target.label,
                )
        return np.array([*values, np.nan], np.float64)[self.target.codes]


def kind_of(column: Column) -> str:
    """Return whether a column is of numbers, of categories, or empty."""
    if (column.missing > 0).all():
        return EMPTY
    return CATEGORIES if column.numbers is None else NUMBERS


def moments(numbers: NDArray[np.float64] | None, rows: Rows) -> Moments | None:
    """Return mean and standard deviation of what is there in these rows, the deviation 0 where it is constant."""
    there = np.zeros(0) if numbers is None else numbers[rows][~np.isnan(numbers[rows])]
    if not len(there):
        return None
    if there.min() == there.max():  # whose deviation would be a rounding error
        return float(there[0]), 0.0
    return float(there.mean()), float(there.std())


def _target(table: Table, name: str) -> Column:
    """Return the column that is to be told."""
    if name:
        return column_called(table, name, "csv.target")
    found = [column for column in table.columns.values() if column.name.lower() in TARGETS]
    if len(found) > 1:
        raise DataError(
            f"{table.path} has the columns {named([column.name for column in found])}: say which one is the target by "
            "csv.target, and leave the others out by csv.ignore",
            "two-targets",
        )
    if not found:
        _check_header(table)
        raise DataError(
            f"{table.path} has no column called target, label or y: name the target by csv.target; the columns are "
            f"{named([*table.columns])}",
            "no-target",
        )
    return found[0]


def column_called(table: Table, name: str, setting: str) -> Column:
    """Return the column of this name, in any case of letters; raise DataError where there is none."""
    by_name = {column.lower(): column for column in table.columns}
    if name.lower() in by_name:
        return table.columns[by_name[name.lower()]]
    _check_header(table)
    close = difflib.get_close_matches(name.lower(), by_name, n=1)
    hint = f"did you mean {by_name[close[0]]}? " if close else ""
    raise DataError(
        f"{setting} = {name!r}: {table.path} has no such column; {hint}the columns are {named([*table.columns])}",
        "no-column",
        column=Heading(name),
        setting=Heading(setting),
    )


def _doubtful(table: Table, place: int) -> DataError:
    """Return the error of a file whose first line may hold values; their owner is shown the first one."""
    return DataError(
        f"{table.path}, line 1: the name of column {place} looks like a value, so the line may be a row, whose values "
        "would be told as names: the first line must name the columns, and no name may be a number, a date, an e-mail "
        "address, or a value of its own column: rename it, or add a line of names",
        "doubtful-header",
        column=place,
    )


def _check_header(table: Table) -> None:
    if looks_like_data([*table.columns]):
        raise no_names(table.path, [*table.columns])
