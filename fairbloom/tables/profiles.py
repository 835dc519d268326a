"""Profiles: the columns of a site's tables, described above a floor of rows.

Nothing in a profile depends on fewer rows than its floor: every count is rounded down to a multiple
of it, no cell appears that fewer rows hold, and a quantile is the mean of as many numbers, with as
many beyond it on both sides. Where rows belong to persons, each person has one row. On one machine,
for one's own eyes, the floor is 1.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .cells import format_number
from .encoding import ColumnValues, is_missing
from .far_values import find_beyond, find_codes_of_scale
from .schema import MAX_TEXT, Field
from .survey import Column
from .two_units import find_two_units

# The shares of the numbers that are below each quantile of a profile.
PROBABILITIES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])

# A column with more distinct numbers has quantiles, and no counts: with both, the exact number of
# rows would undo the rounding.
MAX_NUMBERS = 20

# Values and patterns that a profile above a floor of 1 lists.
MAX_LISTED = 100

# Rows that show that a column has many distinct numbers.
SAMPLE = 1_000

# Signs of a pattern.
MAX_PATTERN = 12

# Numbers that often stand for a missing value: 9, 99, -9, -1, 88 and so on.
SENTINELS = np.array(
    [sign * (10**k - 1) for k in range(1, 6) for sign in (1, -1)] + [-1, 88, 888, 8888, -88, -888]
)

# Zero may stand for a missing value only among as many distinct numbers.
FEWEST_KINDS = 5

# Share of the rows that two columns fill between them, and that each of them fills at least, if one
# seems to go on where the other ends.
FILLED = 0.9
FILLED_BY_EACH = 0.1


@dataclass(frozen=True)
class Found:
    """What only the rows of a site show of a column.

    Attributes
    ----------
    kind
        "far", "scale", "negative" or "zero" for a number that may stand for a missing value,
        "above" or "below" for several far ones, at a floor of 1, "two-units", or "exclusive" for a
        column that is never filled where another one is.
    rows
        The rows that show it: of two units, those in the rarer one.
    number
        The number; of several, the nearest to the others.
    column
        The other column.
    units
        The two units, a known conversion's. The ratio that was found is two patients' values.
    """

    kind: str
    rows: int
    number: float = 0.0
    column: str = ""
    units: str = ""


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a site.

    Attributes
    ----------
    rows
        The number of rows.
    missing
        The number of rows without a value, by the word that says so.
    values
        The number of rows of each value, most frequent first: of texts, and of numbers if there are
        at most MAX_NUMBERS.
    others
        The rows of values that are not listed.
    quantiles
        Of other numbers, at PROBABILITIES; None where too few are beyond. Numbers that seem to
        stand for a missing value do not count.
    floor
        The fewest rows on which a number of the profile depends.
    patterns
        The number of rows of each pattern of texts: letters are a, digits are 9.
    identifier
        Whether the column is taken to name persons, rows or dates; then nothing else is said of it.
    found
        What only rows show.
    """

    rows: int
    missing: Mapping[str, int]
    values: Mapping[str, int] = field(default_factory=dict)
    others: int = 0
    quantiles: tuple[float | None, ...] = ()
    floor: int = 1
    patterns: Mapping[str, int] = field(default_factory=dict)
    identifier: bool = False
    found: tuple[Found, ...] = ()

    @property
    def empty(self) -> int:
        """The rows without a value."""
        return sum(self.missing.values())

    @property
    def present(self) -> int:
        """The rows that have a value."""
        return max(0, self.rows - self.empty)


@dataclass(frozen=True, eq=False)
class Cells:
    """The rows of a site in a column: numbers, NaN for none; texts by their index, -1 for none."""

    numbers: NDArray[np.float64]
    codes: NDArray[np.int64]
    texts: Sequence[str]
    missing: Mapping[str, int]

    @classmethod
    def of(cls, about: Field, values: ColumnValues) -> "Cells":
        """Return the cells of a column that is encoded by a schema; faulty ones count for none."""
        missing = {"": int(is_missing(values).sum())}
        # What is the same in all rows takes no memory.
        if about.categories:
            return cls(
                np.broadcast_to(np.nan, len(values)),
                np.maximum(values, -1),
                about.categories,
                missing,
            )
        is_number = np.isfinite(values)
        numbers = values if is_number.all() else np.where(is_number, values, np.nan)
        return cls(numbers, np.broadcast_to(-1, len(values)), (), missing)

    @classmethod
    def of_column(cls, column: Column, rows: slice) -> "Cells":
        """Return the cells of some rows of a column as the files have it."""
        codes = column.codes[rows]
        texts = [*dict.fromkeys(column.texts.values())]
        index = {text: place for place, text in enumerate(texts)}
        places = np.full(len(column.numbers), -1)
        for entry, text in column.texts.items():
            if np.isnan(column.numbers[entry]):
                places[entry] = index[text]
        missing: Counter[str] = Counter()
        entries, counts = np.unique(codes[column.is_missing[codes]], return_counts=True)
        for entry, count in zip(entries.tolist(), counts.tolist(), strict=True):
            missing[column.words.get(entry, "")] += count
        return cls(column.numbers[codes], places[codes], texts, missing)

    @cached_property
    def known(self) -> NDArray[np.float64]:
        """The numbers of the rows that have one."""
        has_none = np.isnan(self.numbers)
        return self.numbers[~has_none] if has_none.any() else self.numbers

    @property
    def is_filled(self) -> NDArray[np.bool_]:
        """Which rows have a number or a text."""
        return (self.codes >= 0) | ~np.isnan(self.numbers)


def profile(columns: Mapping[str, Cells], floor: int = 1) -> dict[str, ColumnProfile]:
    """Return the profile of each column of a site's rows.

    Parameters
    ----------
    columns
        The cells of each column: all rows at a floor of 1, else one row of each person.
    floor
        The fewest rows on which a number of the profile may depend.
    """
    exclusive: dict[str, list[Found]] = {name: [] for name in columns}
    for name, other, rows in _find_exclusive(columns):
        exclusive[name].append(Found("exclusive", rows, column=other))
    categories = [cells.codes for cells in columns.values() if len(cells.texts)]
    profiles: dict[str, ColumnProfile] = {}
    for name, cells in columns.items():
        codes = _round(_find_codes(cells.known, floor), floor)
        found = [*_round(exclusive[name], floor), *codes]
        if two := find_two_units(cells.numbers, categories):
            found += _round([Found("two-units", two.rows, units=two.units)], floor)
        column = _profile_column(cells, floor, codes)
        profiles[name] = replace(column, found=tuple(found))
    return profiles


def _round(found: Iterable[Found], floor: int) -> list[Found]:
    """Return what the floor's rows show, with their number rounded down."""
    return [replace(each, rows=each.rows // floor * floor) for each in found if each.rows >= floor]


def _profile_column(cells: Cells, floor: int, codes: Sequence[Found]) -> ColumnProfile:
    """Return the profile of a column; `codes` are numbers that may stand for a missing value."""
    numbers = cells.known
    counts: dict[str, int] = {}
    if len(cells.texts):
        texts = np.bincount(cells.codes[cells.codes >= 0], minlength=len(cells.texts)).tolist()
        counts = {text: count for text, count in zip(cells.texts, texts, strict=True) if count}
    rows = len(cells.codes) // floor * floor
    missing = _list(cells.missing, floor)
    if _has_many(numbers):
        patterns: Counter[str] = Counter()
        for text, count in counts.items():
            patterns[pattern_of(text)] += count
        return ColumnProfile(
            rows,
            missing,
            quantiles=measure_quantiles(numbers[~_are_codes(numbers, codes)], floor),
            floor=floor,
            patterns=_list(patterns, floor),
        )
    different, found = np.unique(numbers, return_counts=True)
    counts |= zip(map(format_number, different.tolist()), found.tolist(), strict=True)
    listed = _list(counts, floor)
    others = sum(count for text, count in counts.items() if text not in listed)
    return ColumnProfile(rows, missing, listed, others // floor * floor, floor=floor)


def _are_codes(numbers: NDArray[np.float64], codes: Sequence[Found]) -> NDArray[np.bool_]:
    """Return which numbers may stand for a missing value, or lie apart."""
    are_codes = np.isin(numbers, [each.number for each in codes])
    for each in codes:
        if each.kind == "above":
            are_codes |= numbers >= each.number
        elif each.kind == "below":
            are_codes |= numbers <= each.number
    return are_codes


def _has_many(numbers: NDArray[np.float64]) -> bool:
    """Return whether a column has too many distinct numbers for counts."""
    # a few rows show it of most columns
    return any(len(np.unique(some)) > MAX_NUMBERS for some in (numbers[:SAMPLE], numbers))


def _list(counts: Mapping[str, int], floor: int) -> dict[str, int]:
    """Return the counts above the floor, rounded down, the most frequent first."""
    listed = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if floor > 1:
        listed = [(text, count) for text, count in listed if len(text) <= MAX_TEXT][:MAX_LISTED]
    return {text: count // floor * floor for text, count in listed if count >= floor}


def measure_quantiles(numbers: NDArray[np.float64], floor: int) -> tuple[float | None, ...]:
    """Return the quantiles of numbers at PROBABILITIES, None where fewer than `floor` are beyond.

    Each is of the window of the `floor` numbers that are nearest to its rank: one that `floor` of
    all have, the nearest to the rank, or else their mean. The mean of four zeros and a patient's 36
    days would be that patient's. Above a floor of 1 it has three digits.
    """
    last = len(numbers) - 1
    ranks = PROBABILITIES * last
    is_given = np.minimum(np.floor(ranks), last - np.ceil(ranks)) >= floor
    firsts = np.round(ranks - (floor - 1) / 2.0).clip(0, max(0, last + 1 - floor))
    windows = firsts[is_given].astype(np.int64)[:, None] + np.arange(floor)
    nearest = np.partition(numbers, np.unique(windows))[windows]
    means = nearest.mean(axis=1).tolist()
    if floor > 1:
        different, counts = np.unique(numbers[np.isin(numbers, nearest)], return_counts=True)
        is_common = np.isin(nearest, different[counts >= floor])
        distances = np.where(is_common, np.abs(windows - ranks[is_given][:, None]), np.inf)
        for place in np.flatnonzero(is_common.any(axis=1)).tolist():
            means[place] = float(nearest[place, distances[place].argmin()])
        means = [float(f"{mean:.3g}") for mean in means]
    found = iter(means)
    return tuple(next(found) if given else None for given in is_given.tolist())


def pattern_of(text: str) -> str:
    """Return the pattern of a text: 4.2 H is 9.9 a."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text[:MAX_PATTERN]))


def _find_codes(numbers: NDArray[np.float64], floor: int) -> Iterator[Found]:
    """Yield the numbers that may stand for a missing value."""
    if len(numbers) < 2:
        return
    codes = []
    for code in {float(numbers.min()), float(numbers.max())}.intersection(SENTINELS.tolist()):
        others = numbers[numbers != code]
        is_repeated = 0 < len(others) < len(numbers) - 1
        if is_repeated and np.abs(others - code).min() > max(2.0 * others.std(), 1.0):
            codes.append(code)
            yield Found("far", len(numbers) - len(others), code)
    for code, rows in find_codes_of_scale(numbers):
        if code not in codes:
            codes.append(code)
            yield Found("scale", rows, code)
    others = numbers[~np.isin(numbers, codes)] if codes else numbers
    beyond = find_beyond(others)
    if len(beyond) and (beyond[0] == beyond[-1] or floor > 1):
        for code, rows in zip(*np.unique(beyond, return_counts=True), strict=True):
            codes.append(float(code))
            yield Found("far", int(rows), float(code))
    elif len(beyond):
        is_above = bool(others.max() == beyond[-1])
        kind = "above" if is_above else "below"
        yield Found(kind, len(beyond), float(beyond[0 if is_above else -1]))
    others = numbers[~np.isin(numbers, codes)] if codes else numbers
    below, counts = np.unique(others[others < 0.0], return_counts=True)
    are_codes = 1 <= len(below) <= 2 and counts.min() > 1 and (below == np.round(below)).all()
    if are_codes and others.max() > 0.0:
        for code, count in zip(below.tolist(), counts.tolist(), strict=True):
            yield Found("negative", count, code)
    positive = others[others > 0.0]
    zeros = int((others == 0.0).sum())
    if zeros > 1 and len(positive) + zeros == len(others) and _are_far_from_zero(positive):
        yield Found("zero", zeros)


def _are_far_from_zero(positive: NDArray[np.float64]) -> bool:
    """Return whether numbers above 0 are far from it: a count goes on from 0 to 1, 2, 3."""
    kinds = np.unique(positive)
    if len(np.unique(positive[:SAMPLE])) < FEWEST_KINDS:
        return False
    return bool(kinds[0] > positive.std() and kinds[0] > np.median(np.diff(kinds)))


def _find_exclusive(columns: Mapping[str, Cells]) -> Iterator[tuple[str, str, int]]:
    """Yield pairs of columns that are never both filled, and fill nearly all rows between them."""
    filled = {}
    for name, cells in columns.items():
        is_filled = cells.is_filled
        share = is_filled.sum() / max(len(is_filled), 1)
        if FILLED_BY_EACH <= share <= 1.0 - FILLED_BY_EACH:
            filled[name] = is_filled
    for (name, first), (other, second) in combinations(filled.items(), 2):
        if not (first & second).any() and (first | second).sum() >= FILLED * len(first):
            yield name, other, int(first.sum())
