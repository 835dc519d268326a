"""The rows of one client: which are used, how they are summarised for the server, and what is learned from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean

from ..groups import MAX_GROUPS, OTHER, GroupBy
from ..leaving import check_classes, check_rows, score_floor
from ..partition import MIN_EXAMPLES, split, splits_of
from ..preprocessing import Preprocessing
from ..row_digests import Digest, Digests, RowsBehind, digest_table
from ..task import Setup, Splits
from .agreement import MAX_CATEGORIES, MAX_NUMBERED_CLASSES, Moments, TargetSummary, unit_of
from .columns import AgreedColumns, Input, describe_difference
from .reading.cells import MAX_NUMBER, to_cells
from .reading.identities import look_like_dates, look_like_identifiers, nearly_all_differ
from .reading.numbers import MISSING_WORDS, Decimal, parse_number
from .reading.reader import looks_like_data, no_header_error, read_raw
from .reading.table import CATEGORIES, EMPTY, NUMBERS, Column, ColumnHints, Rows, Table
from .reasons import DataError, Heading, collect_faults, raise_faults
from .shared_rows import digest_rows
from .targets import MAX_COLUMNS_NAMED, as_targets, join_names, sort_classes

TARGETS = ("target", "label", "y")
"""One of these columns is the target where none is named, in any case of letters."""


@dataclass(frozen=True, kw_only=True)
class CsvSettings:
    """The settings of the task csv, with lists split into their names."""

    target: str
    client: str
    kind: str
    classes: tuple[str, ...]
    categories: tuple[str, ...]
    ignore: tuple[str, ...]
    missing: str
    together: bool
    smallest_category: int
    groupings: tuple[GroupBy, ...] = ()
    decimal: Decimal = "."
    commas: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def decimal_of(self, path: Path) -> Decimal:
        """Return the decimal mark of a file."""
        return "," if path.stem in self.commas else self.decimal

    def hints_of(self, path: Path) -> ColumnHints:
        """Return what they say about a file's columns before it is read."""
        targets = frozenset([self.target.lower()] if self.target else TARGETS)
        as_texts = frozenset(each.lower() for each in (self.client, *self.categories) if each)
        grouped = frozenset(each.column.lower() for each in self.groupings)
        return ColumnHints(
            as_texts=targets | as_texts,
            ignored=self.ignored - grouped,
            grouped=grouped,
            targets=targets - as_texts,
            decimal=self.decimal_of(path),
            encoding=self.encoding,
        )

    @property
    def known(self) -> tuple[str, ...]:
        """The columns that a file may have although they are no inputs."""
        return (*self.ignore, *([self.client] if self.client else []))

    def note_form(self, preprocessing: Preprocessing) -> Preprocessing:
        """Return the same preprocessing, which says how the run's files are written."""
        return replace(preprocessing, decimal=self.decimal, encoding=self.encoding)

    @property
    def ignored(self) -> frozenset[str]:
        """The columns that are no inputs, in small letters."""
        return frozenset(map(str.lower, self.ignore))


class ClientRows:
    """The rows of one client."""

    def __init__(self, client: str, table: Table, rows: Rows, setup: Setup, settings: CsvSettings) -> None:
        self._client, self._table, self._settings, self._floor = client, table, settings, setup.floor
        if setup.deployed and table.doubtful is not None:
            raise _doubtful_header_error(table, table.doubtful)
        try:
            self._find_columns(table, settings)
        except DataError as error:
            raise_faults(table.faults or [error])  # a column that cannot be read is missing
        self._source = f"{table.path}: client {client}" if settings.client else table.source.where
        early = [*table.faults, *collect_faults([lambda: self._check_missing(rows)])]
        try:
            self.rows = self._find_usable(rows)
        except DataError as error:
            raise_faults([*early, error])
        self._parts = split(np.arange(len(self.rows)), setup, client)
        self._train = self.rows[self._parts.train]
        if early:
            raise_faults([*early, *self._find_faults()])

    def _find_columns(self, table: Table, settings: CsvSettings) -> None:
        self.target = _find_target(table, settings.target)
        for name in settings.categories:
            find_column(table, name, "csv.categories")
        self.inputs = [
            column
            for column in table.columns.values()
            if column is not self.target and column.name.lower() not in {settings.client.lower(), *settings.ignored}
        ]
        self._grouped = [(by, self._find_grouped(by)) for by in settings.groupings]
        if not self.inputs:
            raise DataError(
                f"{table.path} has no columns but the target {self.target.name!r}: nothing to learn from", "no-inputs"
            )

    def _find_faults(self) -> list[DataError]:
        of_texts = [column for column in self.inputs if column.kind == CATEGORIES]
        return collect_faults(
            [*(partial(self._check_categories, each) for each in of_texts), lambda: self.target_summary]
        )

    # Which rows are used

    def _find_usable(self, rows: Rows) -> Rows:
        """Return the rows that are learned from, as csv.missing says."""
        needed = [self.target, *(self.inputs if self._settings.missing == "drop" else [])]
        lacking = [column.missing[rows] > 0 for column in needed if column.blanks]
        kept: Rows = rows[~np.any(lacking, axis=0)] if lacking else rows
        if len(kept) < MIN_EXAMPLES:
            dropped = f", {len(kept)} of them without a missing value (csv.missing=fill keeps the others)"
            has = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
            raise DataError(
                f"{self._source} has {has}{dropped if len(kept) < len(rows) else ''}: at least {MIN_EXAMPLES} are "
                "needed, four fifths for training and one for testing: add rows, or leave this client out",
                "few-rows",
                rows=len(rows),
                kept=len(kept),
                fewest=MIN_EXAMPLES,
            )
        return kept

    def _check_missing(self, rows: Rows) -> None:
        gone = {column.name: column for column in (self.target, *self.inputs) if column.count_missing(rows)}
        if not gone or self._settings.missing != "error":
            return
        row, name = min((int(rows[np.argmax(column.missing[rows] > 0)]), name) for name, column in gone.items())
        cells = sum(column.count_missing(rows) for column in gone.values())
        sign = gone[name].blanks[gone[name].missing[row] - 1]
        worst = sorted(gone, key=lambda each: -gone[each].count_missing(rows))
        raise DataError(
            f"{self._table.place(row, name)} has no value ({sign or 'empty'!r}), the first of {cells} such cells "
            f"({MISSING_WORDS}): csv.missing=drop leaves such rows out, csv.missing=fill takes a column's mean or no "
            f"category in their place, csv.ignore={','.join(worst[:3])} leaves columns out",
            "missing",
            position=self._table.position(row),
            column=gone[name].label,
            cells=cells,
        )

    # How they are summarised

    def about(self) -> dict[str, Any]:
        """Return the summary of training rows, and of the classes of all rows, that the server gets of this client."""
        raise_faults(self._find_faults())
        of_texts = [column for column in self.inputs if column.kind == CATEGORIES]
        kept = {column.name: self._frequent(column) for column in of_texts}
        fewer = [each.name for each in of_texts if len(kept[each.name]) < len(each.texts_in(self._train))]
        numbers = [column for column in self.inputs if column.kind == NUMBERS]
        of_numbers = {c.name: self._summarise(c) for c in numbers if self._settings.together}
        return {
            "examples": len(self._train),
            "columns": [column.name for column in self.inputs],
            "kinds": [column.kind for column in self.inputs],
            "categories": {name: sorted({*texts, *[OTHER] * (name in fewer)}) for name, texts in kept.items()},
            "others": fewer,
            "moments": {name: found for name, found in of_numbers.items() if found is not None},
            "together": self._settings.together,
            "target": self.target_summary.to_json(),
            **({"groups": self._group_values()} if self._grouped else {}),
            **({"as-they-are": allowed} if (allowed := [each.name for each in of_texts if self._allows(each)]) else {}),
            **({"lacks": lacking} if (lacking := self._find_lacking()) else {}),
        }

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the client."""
        target = self.target_summary
        of_classes = dict(zip(self.target.texts, self.target.count_texts(self.rows).tolist(), strict=True))
        numbers = self._quantity() if target.kind == "quantity" else np.zeros(0)
        classes = join_names([f"{name}: {of_classes.get(name, 0)}" for name in target.classes])
        return {
            "train": len(self._train),
            "test": len(self._parts.test),
            "target": f"{numbers.min():g} to {numbers.max():g}" if len(numbers) else classes,
        }

    def digests(self) -> Digests:
        """Return a digest of each row's inputs and target."""
        return digest_rows([*self.inputs, self.target], self.rows)

    def summary(self) -> str:
        """Return a line for the log: how many rows there are, and which columns are of what kind."""
        by_kind = {kind: [c.name for c in self.inputs if c.kind == kind] for kind in (NUMBERS, CATEGORIES, EMPTY)}
        inputs = "; ".join(f"{kind}: {join_names(names)}" for kind, names in by_kind.items() if names)
        rows = f"{len(self._train)} rows to train on, {len(self._parts.test)} to test on"
        return f"{self._source}: {rows}; {inputs}; target: {self.target.name}"

    # How they are grouped

    def _find_grouped(self, by: GroupBy) -> Column:
        column = find_column(self._table, by.column, "csv.group")
        if column is self.target:
            raise DataError(
                f"csv.group = {by.name!r}: {column.name!r} is the target of {self._table.path}: name a column that is "
                "known before the target is; balanced accuracy says how well each class is predicted",
                "group-target",
                column=Heading(by.column),
            )
        if by.sign and column.kind == CATEGORIES:
            raise DataError(
                f"csv.group = {by.name!r}: column {column.name!r} of {self._table.path} holds texts, as "
                f"{column.texts[0]!r}, which cannot be compared with a number: name the column alone, as in "
                f"csv.group={by.column}, or correct it",
                "group-of-texts",
                column=Heading(by.column),
            )
        return column

    def _group_values(self) -> dict[str, list[str]]:
        """Return the groups of training rows that the server may know, of each grouping by values."""
        found = {}
        for by, column in self._grouped:
            if by.sign:
                continue
            if column.kind == CATEGORIES:
                self._check_categories(column)
            names, places = _values_in(column, self.rows)
            if len(names) > MAX_GROUPS:
                raise DataError(
                    f"csv.group = {by.name!r}: column {column.name!r} of {self._source} holds {len(names)} different "
                    f"values, and {MAX_GROUPS} groups are the most: divide its numbers, as in {by.column}>=60, or "
                    "name another column",
                    "many-groups",
                    column=Heading(by.column),
                    different=len(names),
                    most=MAX_GROUPS,
                )
            counts = np.bincount(places[self._parts.train] + 1, minlength=len(names) + 1)[1:]
            found[by.name] = sorted(name for name, count in zip(names, counts, strict=True) if count >= self._least)
        return found

    def _groups(self, agreed: AgreedColumns) -> NDArray[np.int64]:
        """Return the place of each row's group in each grouping, shape (rows, groupings)."""
        names = agreed.group_names(self._settings.groupings)
        return np.stack([self._places(by, column, names[by.name]) for by, column in self._grouped], axis=1)

    def _places(self, by: GroupBy, column: Column, groups: tuple[str, ...]) -> NDArray[np.int64]:
        if column.kind == EMPTY:
            return np.full(len(self.rows), len(groups) - 1)
        if by.sign and column.numbers is not None:
            return by.halve(column.numbers[self.rows])
        order = {name: place for place, name in enumerate(groups)}
        values, places = _values_in(column, self.rows)
        return np.array([*(order.get(value, len(groups) - 1) for value in values), len(groups) - 1])[places]

    def _find_lacking(self) -> list[str]:
        """Return the names in csv.ignore that the file has no column of, in any case of letters."""
        there = self._table.ignored.union(map(str.lower, self._table.columns))
        return [name for name in dict.fromkeys(self._settings.ignore) if name.lower() not in there]

    def _frequent(self, column: Column) -> list[str]:
        """Return those categories of training rows that the server may know: of a device, those of enough rows."""
        counts = column.count_texts(self._train)
        return [text for text, count in zip(column.texts, counts, strict=True) if count >= self._least]

    @property
    def _least(self) -> int:
        """The fewest training rows of a category, or a group, that the server may know."""
        return max(self._settings.smallest_category, self._floor) if self._floor else 1

    def _check_categories(self, column: Column) -> None:
        """Raise DataError when a column's texts are too many, or may say who a row is about and are not allowed."""
        texts = column.texts_in(self.rows)
        different, present = len(texts), len(self.rows) - column.count_missing(self.rows)
        where, ignore = f"{self._source}, column {column.name!r} holds", f"csv.ignore={column.name}"
        if different > MAX_CATEGORIES:
            raise DataError(
                f"{where} {different:,} different texts, as {texts[0]!r}, and {MAX_CATEGORIES:,} categories are the "
                f"most: leave it out by {ignore}",
                "many-categories",
                column=column.label,
                different=different,
                most=MAX_CATEGORIES,
            )
        if self._allows(column):
            return
        if pair := find_respelled(texts):
            raise DataError(
                f"{where} {pair[0]!r} and {pair[1]!r}, which would be two categories: write them in one way, or take "
                f"them as they are by csv.categories={column.name}",
                "respelled-categories",
                column=column.label,
            )
        remedy = (
            "all clients would get to know each as a category: leave the column out by "
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

    def _allows(self, column: Column) -> bool:
        """Return whether csv.categories names a column, so that its texts are categories as they are."""
        return column.name.lower() in map(str.lower, self._settings.categories)

    @cached_property
    def target_summary(self) -> TargetSummary:
        """What the server gets to know of this client's target."""
        settings, present = self._settings, np.flatnonzero(self.target.count_texts(self.rows))
        values = self.target.text_numbers[present]
        are_numbers = not np.isnan(values).any()
        if settings.kind == "regression" or (
            settings.kind == "auto"
            and not settings.classes
            and are_numbers
            and (len(present) > MAX_NUMBERED_CLASSES or (values != np.round(values)).any())
        ):
            check_rows("few-targets", len(self._train), self._floor)
            return TargetSummary("quantity", moments=measure_moments(self._quantity()[self._parts.train]))
        if settings.classes:
            self._class_indices(settings.classes)
            return TargetSummary("classes", settings.classes)
        found = [self.target.texts[code] for code in present]
        self._check_classes(found)
        if self.target.name.lower() not in TARGETS:  # the run has chosen it: its values are as those of any column
            counts = self.target.count_texts(self.rows)[present].tolist()
            fewest = score_floor(self._floor) if len(found) == 2 else self._floor
            check_classes(dict(zip(found, counts, strict=True)), fewest)
        either = settings.kind == "auto" and are_numbers
        return TargetSummary("either" if either else "classes", tuple(sort_classes(found)))

    def _check_classes(self, found: list[str]) -> None:
        """Raise DataError when the target's different values are no classes, or may say who a row is about."""
        label, remedy = self.target.label, "name the right column by csv.target, or correct it"
        if len(found) > MAX_NUMBERED_CLASSES:
            raise DataError(
                f"{self._target_place()} has {len(found):,} different values, as {found[0]!r}, and "
                f"{MAX_NUMBERED_CLASSES} classes are the most unless they are stated: {remedy}, or state them by "
                "csv.classes",
                "many-classes",
                column=label,
                different=len(found),
                most=MAX_NUMBERED_CLASSES,
            )
        if len(found) == 1:
            raise DataError(
                f"{self._target_place()} is {found[0]!r} in each row of {self._source}: a client with one class needs "
                "all classes stated, as in csv.classes=0,1; or leave it out",
                "one-class",
            )
        if pair := find_respelled(found):
            raise DataError(
                f"{self._target_place()} holds {pair[0]!r} and {pair[1]!r}, which would be two classes: write them in "
                "one way, or state all classes by csv.classes",
                "respelled-classes",
                column=label,
            )
        texts = {text for text in found if parse_number(text) is None}
        if texts and nearly_all_differ(len(found), len(self.rows)):
            raise DataError(
                f"{self._target_place()} has {len(found)} different values in {len(self.rows)} rows, as "
                f"{min(texts)!r}: {remedy}, or state all classes by csv.classes",
                "different-targets",
                different=len(found),
                rows=len(self.rows),
            )
        strange = np.isin(self.target.codes[self.rows], [self.target.texts.index(text) for text in texts])
        if self._settings.kind == "auto" and 0 < 2 * strange.sum() < len(self.rows):
            row = int(self.rows[np.argmax(strange)])
            raise DataError(
                f"{self._table.place(row, self.target.name)} holds {self.target.texts[self.target.codes[row]]!r}, "
                "which is no number, and most of the target is numbers: correct it, or say csv.kind=classification if "
                "it is a class",
                "mixed-target",
                position=self._table.position(row),
                column=label,
            )

    def _target_place(self) -> str:
        return f"the target, column {self.target.name!r} of {self._table.path},"

    # What is learned from

    def splits(self, agreed: AgreedColumns) -> Splits:
        """Return inputs and targets as the clients have agreed."""
        inputs = self.preprocessing(agreed).inputs(self._table, self.rows)
        target = agreed.target
        values: NDArray[Any] = self._class_indices(target.classes) if target.classes else self._quantity()
        groups = torch.from_numpy(self._groups(agreed)) if self._grouped else None
        return splits_of(inputs, as_targets(values, target), self._parts, groups)

    def preprocessing(self, agreed: AgreedColumns) -> Preprocessing:
        """Return how this client's rows become inputs; raise DataError where they do not fit what was agreed on."""
        columns = self._check_columns(agreed)
        found = agreed.preprocessing(
            self.target.name,
            self._settings.known,
            fill=self._settings.missing == "fill",
            client=self._client,
            measure=lambda name: self._measure(columns[name]),
        )
        return replace(self._settings.note_form(found), decimal=self._settings.decimal_of(self._table.path))

    def _check_columns(self, agreed: AgreedColumns) -> Mapping[str, Column]:
        """Return the columns of inputs by name; raise DataError unless they are those that clients have agreed on."""
        columns = {column.name: column for column in self.inputs}
        names = frozenset(each.name for each in agreed.inputs)
        if names != frozenset(columns):
            raise DataError(
                f"{self._table.path}: {describe_difference(frozenset(columns), names)}",
                "other-columns",
                lacking=Heading(join_names(sorted(names - columns.keys())) or "none"),
                added=Heading(join_names(sorted(columns.keys() - names)) or "none"),
            )
        for each in agreed.inputs:
            self._check_kind(columns[each.name], each)
        return columns

    def _check_kind(self, column: Column, agreed: Input) -> None:
        kind = column.kind
        if kind != EMPTY and (kind == CATEGORIES) != (agreed.categories is not None):
            raise DataError(
                f"{self._table.path}: column {column.name!r} holds {kind}, and "
                f"{NUMBERS if kind == CATEGORIES else CATEGORIES} with the others: correct it, or take it as "
                f"categories everywhere by csv.categories={column.name}",
                "other-kind",
                column=column.label,
            )

    def _measure(self, column: Column) -> Moments | None:
        """Return mean and standard deviation of a column in training rows; None where it has no number in them."""
        return None if column.numbers is None else measure_moments(column.numbers[self._train])

    def _summarise(self, column: Column) -> Moments | None:
        """Return `_measure` for the server; raise DataError where it is of too few rows to leave the device."""
        found = self._measure(column)
        if found is not None:
            rows = len(self._train) - column.count_missing(self._train)
            check_rows("few-behind", rows, self._floor, column=column.label)
        return found

    def behind(self) -> RowsBehind:
        """Return what tells the client's rows apart, and which of them are behind the means of its summary."""
        numbers = [column for column in self.inputs if column.kind == NUMBERS and self._settings.together]
        train = self._parts.train
        summary = {
            column.name: train[column.missing[self._train] == 0] if column.blanks else train for column in numbers
        }
        if self.target_summary.moments is not None:
            summary[self.target.name] = train
        return RowsBehind(self._identify, {f"the mean of column {name}": rows for name, rows in summary.items()})

    def _identify(self, digest: Digest) -> Digests:
        """Return a digest of each of the client's rows as the file has it, columns that the run ignores included.

        Columns of lists or bytes, which every run has to ignore, do not count.
        """
        hints = ColumnHints(
            ignored=self._settings.ignored,
            encoding=self._settings.encoding,
            reads_ignored=True,
        )
        raw = read_raw(self._table.path, hints)
        cells = {name: to_cells(each) for name, each in zip(raw.header, raw.columns, strict=True) if len(each)}
        return digest_table({name: (of.different, of.places) for name, of in cells.items()}, digest)[self.rows]

    def _class_indices(self, classes: tuple[str, ...]) -> NDArray[np.int64]:
        order = {text: place for place, text in enumerate(classes)}
        of_codes = np.array([order.get(text, -1) for text in self.target.texts] + [-1], np.int64)
        indices = of_codes[self.target.codes[self.rows]]
        if len(strange := np.flatnonzero(indices < 0)):
            row = int(self.rows[strange[0]])
            found = self.target.texts[self.target.codes[row]]
            raise DataError(
                f"{self._table.place(row, self.target.name)} holds {found!r}, which is none of the classes "
                f"{join_names(classes)}: {did_you_mean(found, classes)}correct it, or state all classes by csv.classes",
                "strange-class",
                column=self.target.label,
            )
        return indices

    def _quantity(self) -> NDArray[np.float64]:
        values = self.target.text_numbers
        if len(wrong := np.flatnonzero(~(np.abs(values) <= MAX_NUMBER))):
            row = int(np.argmax(self.target.codes == wrong[0]))
            raise DataError(
                f"{self._table.place(row, self.target.name)} holds {self.target.texts[wrong[0]]!r}, which is not a "
                "number to predict: correct it, name another column by csv.target, or predict classes by "
                "csv.kind=classification",
                "no-quantity",
                position=self._table.position(row),
                column=self.target.label,
            )
        return values[self.target.codes[self.rows]]


def find_respelled(texts: Sequence[str]) -> tuple[str, str] | None:
    """Return two texts that differ in upper and lower case alone; None where there are none."""
    seen: dict[str, str] = {}
    return next(
        ((seen[text.casefold()], text) for text in texts if seen.setdefault(text.casefold(), text) != text), None
    )


def measure_moments(numbers: NDArray[np.float64]) -> Moments | None:
    """Return mean and standard deviation of the numbers that are not missing, the deviation 0 where it is constant."""
    if not len(numbers):
        return None
    low = numbers.min()
    if np.isnan(low):
        return measure_moments(numbers[~np.isnan(numbers)])
    if low == numbers.max():  # the deviation would be a rounding error
        return float(numbers[0]), 0.0
    unit = unit_of(np.abs(numbers).max())
    return float(numbers.mean()), float(unit * (numbers / unit).std())


def _values_in(column: Column, rows: Rows) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different values of a column in these rows as texts, and which of them each row has, -1 for none."""
    if column.numbers is None:
        codes = column.codes[rows].astype(np.int64)
        different, places = np.unique(codes, return_inverse=True)
        names = [column.texts[code] for code in different if code >= 0]
    else:
        different, places = np.unique(column.numbers[rows], return_inverse=True)  # a NaN comes last
        names = [f"{number:.15g}" for number in different if not np.isnan(number)]
        return names, np.where(places < len(names), places, -1).astype(np.int64)
    return names, places.astype(np.int64) - (len(different) - len(names))


def _find_target(table: Table, name: str) -> Column:
    if name:
        return find_column(table, name, "csv.target")
    found = [column for column in table.columns.values() if column.name.lower() in TARGETS]
    if len(found) > 1:
        raise DataError(
            f"{table.path} has the columns {join_names([column.name for column in found])}: name the target "
            "by csv.target, and leave the others out by csv.ignore",
            "two-targets",
        )
    if not found:
        _check_header(table)
        raise DataError(
            f"{table.path} has no column called target, label or y: name the target by csv.target; the columns are "
            f"{join_names([*table.columns], MAX_COLUMNS_NAMED)}{_describe_doubt(table)}",
            "no-target",
        )
    return found[0]


def find_column(table: Table, name: str, setting: str) -> Column:
    """Return the column of this name, in any case of letters; raise DataError where there is none."""
    by_name = {column.lower(): column for column in table.columns}
    if name.lower() in by_name:
        return table.columns[by_name[name.lower()]]
    _check_header(table)
    raise DataError(
        f"{setting} = {name!r}: {table.path} has no such column; {did_you_mean(name, table.columns)}the columns are "
        f"{join_names([*table.columns], MAX_COLUMNS_NAMED)}{_describe_doubt(table)}",
        "no-column",
        column=Heading(name),
        setting=Heading(setting),
    )


def _doubtful_header_error(table: Table, place: int) -> DataError:
    """Return the error of a file whose first line may hold values; their owner is shown the first one."""
    return DataError(
        f"{table.source.names_at}: the name of column {place} looks like a value, so the line may be a row, whose "
        "values would be sent as names: the first line must name the columns, and no name may be a number, a date, an "
        "e-mail address, or a value of its own column: rename it, or add a line of names",
        "doubtful-header",
        column=place,
    )


def _check_header(table: Table) -> None:
    if looks_like_data([*table.columns]):
        raise no_header_error(table.source, [*table.columns])


def _describe_doubt(table: Table) -> str:
    """Return, for the end of an error, that the first line may hold values; "" where all names look like names."""
    if table.doubtful is None:
        return ""
    return f"; the name of column {table.doubtful} looks like a value: the first line must name the columns"
