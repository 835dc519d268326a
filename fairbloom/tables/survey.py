"""Survey the tables of all sites: each column's different cells, and the rows that hold them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import SAMPLE, FileColumn, canonical, parse_texts
from .encoding import UNKNOWN, ColumnValues
from .marks import Marks
from .reading import ReadTable
from .schema import MAX_CATEGORIES, Field, SchemaFile, normalise


@dataclass(frozen=True, eq=False)
class Sites:
    """The rows of all sites, one site after the other.

    `tables` are the files, and `rows` has the rows that are used of each, in this order. `ends` has
    the place at which each site ends. `owners` has the site of each file, as an index; that of a
    single file of several sites means nothing.
    """

    names: Sequence[str]
    tables: Sequence[ReadTable]
    rows: Sequence[NDArray[np.intp]]
    ends: NDArray[np.int64]
    owners: Sequence[int] = (0,)

    @classmethod
    def of_files(cls, tables: Sequence[ReadTable], clients: Sequence[str]) -> "Sites":
        """Return the sites of files; the files of a site follow each other."""
        rows = [np.arange(len(table)) for table in tables]
        names = [*dict.fromkeys(clients)]
        owners = [names.index(client) for client in clients]
        counts = np.bincount(owners, weights=[len(table) for table in tables])
        return cls(names, tables, rows, np.cumsum(counts.astype(np.int64)), owners)

    @classmethod
    def of_one_file(cls, table: ReadTable, rows: Mapping[str, NDArray[np.intp]]) -> "Sites":
        """Return the sites of a single file, by their rows."""
        ends = np.cumsum([len(rows_of_site) for rows_of_site in rows.values()])
        return cls([*rows], [table], [np.concatenate([*rows.values()])], ends)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.ends[-1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The place at which each site begins."""
        return np.concatenate([[0], self.ends[:-1]])

    @cached_property
    def of_row(self) -> NDArray[np.int64]:
        """The site of each row, as an index."""
        return np.repeat(np.arange(len(self.names)), self.ends - self.starts)

    def count(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many of these rows each site has."""
        return np.bincount(self.of_row[rows], minlength=len(self.names))

    def having(self, rows: NDArray[np.bool_]) -> list[str]:
        """Return the sites that have some of these rows."""
        return self.names_of(self.count(rows))

    def names_of(self, chosen: NDArray[Any]) -> list[str]:
        """Return the names of the sites that are chosen."""
        return [self.names[place] for place in np.flatnonzero(chosen).tolist()]

    def table_of(self, site: str) -> ReadTable:
        """Return the first table of a site."""
        is_one = len(self.tables) == 1
        return self.tables[0 if is_one else self.owners.index(self.names.index(site))]


@dataclass(frozen=True, eq=False)
class Column:
    """A column of all sites: its different cells, and each row's.

    Attributes
    ----------
    codes
        Each row's cell, as an index into the attributes below; the last for sites without the
        column.
    numbers
        The numbers in the cells, NaN for other texts.
    is_missing
        Which of the cells mean that a value is missing.
    texts
        The cells as names of categories; without numbers if there are more than MAX_CATEGORIES.
    words
        The cells that mean a missing value, by their index.
    marks
        How the file writes numbers that a cell is from, by its index.
    is_there
        Which sites have the column.
    """

    sites: Sites
    codes: NDArray[np.int64]
    numbers: NDArray[np.float64]
    is_missing: NDArray[np.bool_]
    texts: Mapping[int, str]
    words: Mapping[int, str]
    marks: Mapping[int, Marks]
    is_there: NDArray[np.bool_]

    @classmethod
    def of(cls, sites: Sites, columns: Sequence[FileColumn | None]) -> "Column":
        """Return a column by its parts in the files; None for files without it."""
        has_many = _count_numbers([each for each in columns if each is not None]) > MAX_CATEGORIES
        codes: list[NDArray[np.int64]] = []
        numbers: list[NDArray[np.float64]] = []
        is_missing: list[NDArray[np.bool_]] = []
        texts: dict[int, str] = {}
        words: dict[int, str] = {}
        marks: dict[int, Marks] = {}
        known: dict[tuple[str, Marks], int] = {}
        start = 0
        for table, rows, column in zip(sites.tables, sites.rows, columns, strict=True):
            if column is None:
                codes.append(np.full(len(rows), -1))
                continue
            how = Marks(table.decimal, table.file.groupChar)
            places = np.arange(start, start + len(column.numbers))
            for place in np.flatnonzero(
                column.is_wrong if has_many else ~column.is_missing
            ).tolist():
                text = canonical(normalise(column.texts[place]), table.decimal)
                entry = known.setdefault((text, how), start + place)
                places[place] = entry
                texts[entry] = text
                marks[entry] = how
            if len(column.texts):
                for place in np.flatnonzero(column.is_missing).tolist():
                    words[start + place] = normalise(column.texts[place])
            codes.append(places[column.codes[rows]])
            numbers.append(np.where(column.is_wrong | column.is_missing, np.nan, column.numbers))
            is_missing.append(column.is_missing)
            start += len(column.numbers)
        joined = np.concatenate(codes)
        joined[joined < 0] = start
        having = [
            owner for owner, each in zip(sites.owners, columns, strict=True) if each is not None
        ]
        is_there = np.isin(np.arange(len(sites.names)), having) | (len(sites.tables) == 1)
        return cls(
            sites=sites,
            codes=joined,
            numbers=np.concatenate([*numbers, [np.nan]]),
            is_missing=np.concatenate([*is_missing, [True]]),
            texts=texts,
            words=words,
            marks=marks,
            is_there=is_there,
        )

    @property
    def having(self) -> list[str]:
        """The sites that have the column."""
        return self.sites.names_of(self.is_there)

    @property
    def lacking(self) -> list[str]:
        """The sites that do not have the column."""
        return self.sites.names_of(~self.is_there)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows of each cell."""
        return np.bincount(self.codes, minlength=len(self.numbers))

    @cached_property
    def is_present(self) -> NDArray[np.bool_]:
        """Which rows have a value."""
        return ~self.is_missing[self.codes]

    @cached_property
    def text_counts(self) -> Counter[str]:
        """The number of rows of each text."""
        return self._count(self.texts)

    @cached_property
    def odd_counts(self) -> Counter[str]:
        """The number of rows of each text that is not a number."""
        return self._count([text for text in self.texts if np.isnan(self.numbers[text])])

    def _count(self, entries: Collection[int]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for entry in entries:
            if rows := int(self.counts[entry]):
                counts[self.texts[entry]] += rows
        return counts

    @cached_property
    def number_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The different numbers, ascending, and the number of rows of each."""
        used = np.flatnonzero(~np.isnan(self.numbers) & (self.counts > 0))
        numbers, places = np.unique(self.numbers[used], return_inverse=True)
        counts = np.bincount(places, weights=self.counts[used], minlength=len(numbers))
        return numbers, counts.astype(np.int64)

    def texts_of_sites(self) -> list[Counter[str]]:
        """Return the number of rows of each text at each site."""
        found: list[Counter[str]] = [Counter() for _ in self.sites.names]
        size = len(self.numbers)
        pairs, counts = np.unique(self.sites.of_row * size + self.codes, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            site, entry = divmod(pair, size)
            if entry in self.texts:
                found[site][self.texts[entry]] += count
        return found

    def rows_of(self, texts: Collection[str]) -> NDArray[np.bool_]:
        """Return which rows hold one of these texts."""
        chosen = np.zeros(len(self.numbers), np.bool_)
        chosen[[entry for entry, text in self.texts.items() if text in texts]] = True
        return chosen[self.codes]

    def encode(self, field: Field) -> ColumnValues:
        """Return the column as the field has it, as `read_column` does."""
        missing = {normalise(marker).casefold() for marker in field.missingValues}
        if field.categories:
            places = np.where(self.is_missing, -1, UNKNOWN).astype(np.int32)
            for entry, text in self.texts.items():
                if (place := field.place(text, missing)) is not None:
                    places[entry] = place
            return places[self.codes]
        numbers = np.where(self.is_missing | ~np.isnan(self.numbers), self.numbers, np.inf)
        odd = {entry for entry in self.texts if numbers[entry] == np.inf}
        for how in {self.marks[entry] for entry in odd}:
            entries = [entry for entry in odd if self.marks[entry] == how]
            found, is_wrong, _ = parse_texts(
                [self.texts[entry] for entry in entries],
                SchemaFile(decimalChar=how.decimal, groupChar=how.group),
                {field.unit, *field.flags} - {""},
                missing,
            )
            numbers[entries] = np.where(is_wrong, np.inf, found)
        return numbers[self.codes]


def _count_numbers(columns: Sequence[FileColumn]) -> int:
    if any(not len(column.texts) for column in columns):
        return SAMPLE
    usable = [column.numbers[~column.is_wrong & ~column.is_missing] for column in columns]
    return len(np.unique(np.concatenate(usable))) if usable else 0
