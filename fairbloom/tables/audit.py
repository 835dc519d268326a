"""What letters and a table of the same rows tell of a column together.

A column of the table may be read from several of a letter, if each of a site's files has one; and a
second letter has a column as it was read after it was mended.

All print counts of the same units, of which n is known exactly. Their sums may show that a count
below the floor, which none prints, is not 0.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cells import format_number
from .counts import Counts
from .encoding import ColumnValues, is_missing
from .profiles import ColumnProfile
from .releases import ALL
from .schema import Field
from .survey import Column

# The codes of cells that have none of the names.
OTHER = -1
NONE = -2


@dataclass(frozen=True, eq=False)
class Coded:
    """A column by units: each one's value as an index into `names`, OTHER, or NONE if missing."""

    codes: NDArray[np.int64]
    names: Sequence[str]

    @classmethod
    def of_letter(cls, column: Column, profile: ColumnProfile) -> "Coded":
        """Return a column by the values, and the words for a missing one, that a letter prints."""
        names = [*profile.values, *profile.missing]
        places = {name: place for place, name in enumerate(profile.values)}
        words = {name: len(places) + place for place, name in enumerate(profile.missing)}
        entries = np.where(column.is_missing, words.get("", NONE), OTHER)
        for entry, word in column.words.items():
            entries[entry] = words.get(word, NONE)
        listed = np.flatnonzero(~column.is_missing).tolist() if places else []
        for entry in listed:
            number = float(column.numbers[entry])
            text = column.texts.get(entry, "") if np.isnan(number) else format_number(number)
            entries[entry] = places.get(text, OTHER)
        return cls(entries[column.codes], names)

    @classmethod
    def of_table(cls, about: Field, values: ColumnValues, profile: ColumnProfile) -> "Coded":
        """Return a column as a schema reads it; OTHER is any number where quantiles are printed."""
        gone = is_missing(values)
        if about.categories:
            return cls(np.where(gone, NONE, values).astype(np.int64), about.categories)
        if profile.quantiles:
            return cls(np.where(gone, NONE, OTHER), [])
        numbers, places = np.unique(np.where(gone, 0.0, values), return_inverse=True)
        return cls(np.where(gone, NONE, places), [*map(format_number, numbers.tolist())])


@dataclass(frozen=True, eq=False)
class Printed:
    """What is printed of a column of a snapshot.

    Attributes
    ----------
    floor
        The floor of all counts.
    letters
        The columns of letters that are read from the same ones of the files as the table's, and
        each as its letter reads it.
    table
        The column in the table, of all units and by class, and as the table reads it; None if it
        has not left.
    classes
        Each unit's class, "" for none.
    """

    floor: int
    letters: Sequence[tuple[ColumnProfile, Coded]]
    table: tuple[Mapping[str, ColumnProfile], Coded] | None
    classes: NDArray[np.str_]

    @property
    def tells(self) -> bool:
        """Whether a count below the floor is known not to be 0, or the rounding can be undone."""
        if self._has_quantiles_and_counts:
            return True
        counts = Counts(self.floor, len(self.classes))
        counts.know("n", len(self.classes))
        for source, (profile, coded) in enumerate(self.letters):
            self._add_letter(counts, source, profile, coded)
        if self.table is not None:
            self._add_table(counts, *self.table)
        elif len(self.letters) > 1:  # as a table of one value that all units have
            counts.know(("all", 0), len(self.classes))
            zeros = np.zeros(len(self.classes), np.int64)
            self._link(counts, [0], Coded(zeros, [""]))
        return bool(counts.find_known())

    @property
    def _has_quantiles_and_counts(self) -> bool:
        """Whether one prints quantiles, and another counts: with both, an exact n shows counts."""
        columns = [column for column, _ in self.letters]
        if self.table is not None:
            columns.append(self.table[0][ALL])
        has_quantiles = any(each is not None for column in columns for each in column.quantiles)
        return has_quantiles and any(column.values for column in columns)

    def _add_letter(
        self, counts: Counts, source: int, profile: ColumnProfile, coded: Coded
    ) -> None:
        printed = {**profile.values, **profile.missing}
        totals = np.bincount(coded.codes + 2, minlength=len(coded.names) + 2).tolist()
        parts = [("letter", source, place) for place in range(NONE, len(coded.names))]
        for key, total in zip(parts, totals, strict=True):
            place = key[-1]
            if place >= 0:
                counts.show(key, total, printed[coded.names[place]])
            elif place == OTHER and profile.values:
                counts.show(key, total, profile.others)
            else:
                counts.leave_open(key, total)
        counts.add_sum("n", parts)

    def _add_table(
        self, counts: Counts, printed: Mapping[str, ColumnProfile], coded: Coded
    ) -> None:
        places = [*range(NONE, len(coded.names))]
        if coded.names:  # all values have a name
            places.remove(OTHER)
        for place in places:
            count = int((coded.codes == place).sum())
            self._show(counts, ("all", place), count, printed[ALL], coded)
        if ((coded.codes == NONE) == (self.classes == "")).all():  # the target
            counts.know(("all", NONE), int((self.classes == "").sum()))
        self._link(counts, places, coded)
        counts.add_sum("n", [("all", place) for place in places])
        classes = [name for name in printed if name != ALL]
        if classes:
            self._add_classes(counts, printed, coded, places)

    def _add_classes(
        self,
        counts: Counts,
        printed: Mapping[str, ColumnProfile],
        coded: Coded,
        places: Sequence[int],
    ) -> None:
        """Add the counts of each class, and of the units that are in none, of which n is known."""
        classes = [name for name in printed if name != ALL]
        groups = {name: self.classes == name for name in classes}
        groups[ALL] = ~np.isin(self.classes, classes)
        for name, units in groups.items():
            size = int(units.sum())
            if name == ALL:
                counts.know(("size", name), size)
            else:
                counts.show(("size", name), size, size // self.floor * self.floor)
            for place in places:
                count = int((units & (coded.codes == place)).sum())
                if name == ALL:
                    counts.leave_open((name, place), count)
                else:
                    self._show(counts, (name, place), count, printed[name], coded)
            counts.add_sum(("size", name), [(name, place) for place in places])
        for place in places:
            counts.add_sum(("all", place), [(name, place) for name in groups])
        counts.add_sum("n", [("size", name) for name in groups])

    def _show(
        self,
        counts: Counts,
        key: tuple[str, int],
        count: int,
        profile: ColumnProfile,
        coded: Coded,
    ) -> None:
        """Add a count as a column of a table prints it."""
        place = key[1]
        if place == OTHER:
            counts.leave_open(key, count)
        elif place == NONE:
            counts.show(key, count, profile.empty)
        else:
            counts.show(key, count, profile.values.get(coded.names[place], 0))

    def _link(self, counts: Counts, places: Sequence[int], coded: Coded) -> None:
        """Add of which of the letters' values each value of the table consists.

        A cell is of units with a value in each column of the letter, and one in the table.
        Everybody may know which of them are read as which: other cells are empty.
        """
        if not self.letters:
            return
        own = np.stack([each.codes for _, each in self.letters])
        found, sizes = np.unique(np.vstack([own, coded.codes]), axis=1, return_counts=True)
        codes_of = map(tuple, found.T.tolist())
        cells = dict(zip(codes_of, sizes.tolist(), strict=True))
        for source, (profile, _) in enumerate(self.letters):  # but values that it does not name
            is_value = (own[source] >= OTHER) & (own[source] < len(profile.values))
            given = own[:, is_value]
            given[source] = OTHER
            for codes in np.unique(given, axis=1).T.tolist():
                cells = dict.fromkeys([(*codes, place) for place in places], 0) | cells
        parts: dict[Hashable, list[Hashable]] = {("all", place): [] for place in places}
        for source, (_, each) in enumerate(self.letters):
            names = range(NONE, len(each.names))
            parts |= {("letter", source, name): [] for name in names}
        for codes, size in cells.items():
            counts.leave_open(("both", codes), size)
            parts["all", codes[-1]].append(("both", codes))
            for source, name in enumerate(codes[:-1]):
                parts["letter", source, name].append(("both", codes))
        for key, of_key in parts.items():
            counts.add_sum(key, of_key)
