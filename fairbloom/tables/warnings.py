"""Remarks on columns: peculiarities that are not faults, but that a person should look at."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import join_first

from .encoding import ColumnValues
from .schema import Field

# Numbers that often stand for a missing value: 9, 99, -9, -1, 88 and so on.
SENTINELS = np.array(
    [sign * (10**k - 1) for k in range(1, 6) for sign in (1, -1)] + [-1, 88, 888, 8888, -88, -888]
)

# If a site's median is 4 times the other sites' medians, or a quarter, it may be in another unit.
OTHER_UNIT = 4.0

# Report 0 as a possible code only if at least this many distinct values exist, all above one
# standard deviation.
FEWEST_KINDS = 5

# Names of sites that a remark lists.
SHOWN = 3

# Rows of a class, or of a value, that show that a column determines the target.
FEWEST_ROWS = 5

# Share of rows in which a column's value determines the target.
DETERMINED = 0.95

# Rows that show whether a column may determine the target.
SAMPLE = 5_000

# Ratios of two units of a quantity: lb and kg, cm and inch, cm and foot, foot and m, km and mile,
# µmol/l and mg/dl of creatinine, mg/dl and mmol/l of glucose and cholesterol, µmol/l and mg/dl of
# bilirubin, mmHg and kPa, kJ and kcal, minutes, hours, days, months and years.
UNIT_RATIOS = np.log(
    [
        *(2.2046, 2.54, 30.48, 3.2808, 1.6093, 88.42, 18.016, 38.67, 17.1, 7.5006, 4.184),
        *(60, 24, 7, 12, 365.25, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
    ]
)

# Rows in each of two units, and the largest relative difference of a ratio of medians.
FEWEST_OF_UNIT = 10
ALIKE = 0.05

# The chance that a site lacks a category by accident, below which it gets a remark.
UNLIKELY = 0.001

# Share of the sites that may lack a category by its meaning.
MOST = 2 / 3

# Correlation with a quantity above which a column determines it.
CORRELATED = 0.999


def present_values(values: ColumnValues) -> ColumnValues:
    """Return the values of a column that are neither missing nor faulty."""
    return values[_is_usable(values)]


def _is_usable(values: ColumnValues) -> NDArray[np.bool_]:
    return np.isfinite(values) if values.dtype.kind == "f" else values >= 0


class SiteValues(NamedTuple):
    """The present values of sites, one after the other, and the site of each as an index."""

    names: list[str]
    values: ColumnValues
    sites: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Mapping[str, ColumnValues]) -> "SiteValues":
        """Return the values of sites that are neither missing nor faulty."""
        together = np.concatenate([*columns.values()]) if columns else np.array([])
        sites = np.repeat(np.arange(len(columns)), [len(column) for column in columns.values()])
        return cls([*columns], together, sites).without(~_is_usable(together))

    def without(self, rows: NDArray[np.bool_]) -> "SiteValues":
        """Return the values without some rows."""
        if not rows.any():  # copies of most columns would take a fifth of the time
            return self
        return SiteValues(self.names, self.values[~rows], self.sites[~rows])


def find_remarks(
    name: str, field: Field, columns: Mapping[str, ColumnValues]
) -> Iterator[tuple[str, str]]:
    """Yield (sites, remark) pairs on a column; "" stands for all sites.

    `columns` has the column's values of each site, encoded by the schema.
    """
    present = SiteValues.of(columns)
    if not len(present.values):
        yield "", "it has no value"
    elif (lowest := present.values.min()) == present.values.max():
        held = repr(field.categories[lowest]) if field.categories else f"{lowest:g}"
        yield "", f"it is {held} in every row, so that it says nothing"
    elif field.categories:
        yield from _compare_categories(name, field, present)
    else:
        codes = np.zeros(len(present.values), np.bool_)
        for code, rows, problem in _find_codes(present):
            sites = [present.names[place] for place in np.unique(present.sites[rows])]
            yield (
                join_first(sites, SHOWN),
                f"{code:g} in {int(rows.sum())} rows, {problem}: if it means a missing value, add"
                f' "{code:g}" to missingValues of fields.{name}',
            )
            codes |= rows
        yield from _compare_units(name, present.without(codes))


def _find_codes(present: SiteValues) -> Iterator[tuple[float, NDArray[np.bool_], str]]:
    """Yield numbers that may stand for a missing value, their rows, and what is odd."""
    found: dict[float, NDArray[np.bool_]] = {}
    for site in np.unique(present.sites[np.isin(present.values, SENTINELS)]).tolist():
        of_site = slice(*np.searchsorted(present.sites, (site, site + 1)))
        values = present.values[of_site]
        for code in {float(values.min()), float(values.max())}.intersection(SENTINELS.tolist()):
            others = values[values != code]
            is_repeated = 0 < len(others) < len(values) - 1
            if is_repeated and np.abs(others - code).min() > max(2.0 * others.std(), 1.0):
                rows = found.setdefault(code, np.zeros(len(present.values), np.bool_))
                rows[of_site] = values == code
    values = present.values
    others = values[~np.isin(values, [*found])] if found else values
    if not len(others):
        return
    yield from (
        (code, rows, "far from the others")
        for code, rows in found.items()
        if not others.min() < code < others.max()  # else it is an honest number elsewhere
    )
    yield from _find_negatives(values, others)
    positive = others[others > 0.0] if (others == 0.0).sum() > 1 else others[:0]
    if (
        len(positive)
        and others.min() >= 0.0
        and positive.min() > positive.std()
        and len(np.unique(positive)) >= FEWEST_KINDS
    ):
        yield 0.0, values == 0.0, f"and no other number is below {positive.min():g}"


def _find_negatives(
    values: NDArray[np.float64], others: NDArray[np.float64]
) -> Iterator[tuple[float, NDArray[np.bool_], str]]:
    """Yield one or two negative numbers that are repeated, if all `others` are positive or 0."""
    below = others[others < 0.0]
    if not len(below) or others.max() <= 0.0 or (below != np.round(below)).any():
        return
    codes, counts = np.unique(below, return_counts=True)
    if len(codes) <= 2 and counts.min() > 1:
        for code in codes.tolist():
            yield code, values == code, "and no other number is negative"


def _compare_units(name: str, present: SiteValues) -> Iterator[tuple[str, str]]:
    """Yield the sites with a median far from the others', if no number is negative.

    Zeros count for nothing, as they often stand for missing values.
    """
    if (values := present.values).min(initial=0.0) < 0.0:
        return
    present = present.without(values == 0.0)
    having, starts = np.unique(present.sites, return_index=True)
    if len(having) < 2:
        return
    medians = np.array([_median(values) for values in np.split(present.values, starts[1:])])
    usual = np.median(medians)
    # If there are others within a factor of sqrt(apart), the median of all is among them.
    far = (
        np.flatnonzero(np.maximum(medians / usual, usual / medians) >= np.sqrt(OTHER_UNIT))
        if len(medians) > 2
        else np.arange(len(medians))
    )
    for place in far.tolist():
        others = np.delete(medians, place)
        usual = np.median(others)
        apart = max(medians[place], usual) / min(medians[place], usual)
        if apart >= OTHER_UNIT and others.max() / others.min() < np.sqrt(apart):
            yield (
                present.names[having[place]],
                f"median {medians[place]:.4g}, and {usual:.4g} elsewhere: if it is in another unit,"
                f" say so by fields.{name} = {{unit, factor}} under the file",
            )


def find_mixed_units(numbers: NDArray[np.float64], others: Sequence[ColumnValues]) -> float | None:
    """Return the ratio of two units that a site's numbers seem to be in; None if they are in one.

    They have two clusters, which a known ratio makes alike. `others` are the site's categories and
    target: if one of them tells the clusters apart, they may be honest.
    """
    if len(numbers) < 3 * FEWEST_OF_UNIT:
        return None
    positive = np.flatnonzero(np.isfinite(numbers) & (numbers > 0.0))
    if len(positive) < 2 * FEWEST_OF_UNIT:
        return None
    logs = np.log(numbers[positive])
    ordered = np.sort(logs)
    gaps = np.diff(ordered)
    last = int(gaps.argmax())
    clusters = (ordered[: last + 1], ordered[last + 1 :])
    if min(len(np.unique(cluster)) for cluster in clusters) < FEWEST_OF_UNIT:
        return None
    spreads = [cluster.std() for cluster in clusters]
    apart = np.median(clusters[1]) - np.median(clusters[0])
    if np.abs(UNIT_RATIOS - apart).min() > ALIKE or not max(spreads) < min(
        gaps[last], 2.0 * min(spreads)
    ):
        return None
    is_high = (logs > ordered[last]).astype(np.int64)
    if any(determines(other[positive], is_high) for other in others):
        return None
    return float(np.exp(apart))


def _median(values: NDArray[np.float64]) -> float:
    """Return the median; np.median does the same with many more calls."""
    places = [(len(values) - 1) // 2, len(values) // 2]
    return float(np.partition(values, places)[places].sum()) / 2.0


def _compare_categories(name: str, field: Field, present: SiteValues) -> Iterator[tuple[str, str]]:
    """Yield the sites that share no category with any other site, or that lack a frequent one."""
    counts = np.zeros((len(present.names), len(field.categories)), np.int64)
    np.add.at(counts, (present.sites, present.values), 1)
    is_held = counts > 0
    is_shared = is_held.sum(axis=0) > 1
    is_apart = is_held.any(axis=1) & ~(is_held & is_shared).any(axis=1)
    if is_held.any(axis=1).sum() < 2:
        return
    remedy = "at no other site: if others mean the same, map them in spellings"
    places = np.flatnonzero(is_apart).tolist()
    if len(places) > SHOWN:
        yield (
            join_first([present.names[place] for place in places], SHOWN),
            f"the categories of each are {remedy}",
        )
        return
    for place in places:
        own = join_first(
            [field.categories[number] for number in np.flatnonzero(is_held[place])], SHOWN
        )
        yield present.names[place], f"its categories, {own}, are {remedy}"
    rows = counts.sum(axis=1, keepdims=True)
    elsewhere = (counts.sum(axis=0) - counts) / np.maximum(rows.sum() - rows, 1)
    unlikely = UNLIKELY / max(1, len(field.categories) - 1)  # one of many is lacked more easily
    is_lacking = ~is_held & ((1.0 - elsewhere) ** rows < unlikely) & ~is_apart[:, None]
    is_lacking &= is_held[~is_apart].any(axis=0)  # others are remarked above
    sites = np.flatnonzero(is_lacking.any(axis=1))
    # If most of several sites lack some, the column differs by site, as a kind of school does.
    if not len(sites) or len(sites) > max(3.0, MOST * (rows > 0).sum()):
        return
    lacking = [field.categories[each] for each in np.flatnonzero(is_lacking.any(axis=0))]
    yield (
        join_first([present.names[place] for place in sites], SHOWN),
        f"lacks {join_first(lacking, SHOWN)}, which up to {elsewhere[is_lacking].max():.0%} of the"
        f" other rows have: if a word means something else here, say so by fields.{name}.spellings"
        " under the file",
    )


# The target ---------------------------------------------------------------------------------------


def determines(values: ColumnValues, target: ColumnValues) -> bool:
    """Return whether a column determines the target; both have the rows of all sites."""
    usable = _is_usable(values) & _is_usable(target)
    values = values[usable]
    target = target[usable]
    if (
        len(values) < 4 * FEWEST_ROWS
        or values.min() == values.max()
        or target.min() == target.max()
    ):
        return False
    if target.dtype.kind == "f":
        return values.dtype.kind == "f" and abs(np.corrcoef(values, target)[0, 1]) > CORRELATED
    # A few rows show at once that most columns do not.
    some = slice(None, None, 1 + len(values) // SAMPLE)
    if values.dtype.kind == "f" and _are_intervals(values[some], target[some]):
        counts = np.bincount(target)
        if counts[counts > 0].min() >= FEWEST_ROWS and _are_intervals(values, target):
            return True
    if _share_of_one_class(values[some], target[some]) < 0.0:
        return False
    # All rows of a few values, chosen by their bits, show that most columns of floats do not.
    bits = values.astype(np.float64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    few = bits >> np.uint64(58) == 0
    if few.sum() > SAMPLE and _share_of_one_class(values[few], target[few]) < DETERMINED / 2:
        return False
    return _share_of_one_class(values, target) >= DETERMINED


def _share_of_one_class(values: ColumnValues, target: ColumnValues) -> float:
    """Return the share of rows with a frequent value that has one class.

    Return -1 if a frequent value has several classes.
    """
    kinds, codes = np.unique(values, return_inverse=True)
    table = np.zeros((len(kinds), int(target.max()) + 1), np.int64)
    np.add.at(table, (codes, target), 1)
    rows = table.sum(axis=1)
    is_frequent = rows >= FEWEST_ROWS
    if (table.max(axis=1) < rows)[is_frequent].any():
        return -1.0
    return float(rows[is_frequent].sum() / len(values))


def _are_intervals(values: NDArray[np.float64], target: ColumnValues) -> bool:
    """Return whether each class is one interval of the numbers."""
    parts = [values[target == value] for value in np.unique(target)]
    ends = sorted((part.min(), part.max()) for part in parts)
    return all(end < start for (_, end), (start, _) in pairwise(ends))
