"""Compare the profiles of sites: who stands out, by the sites' own spread.

Sites differ by nature. What is usual is the 0.9 quantile of the other sites' own distances, each
against the rest. The site that stands out most leaves, and the rest are compared again: of three
hospitals with one in another unit, the two others would stand out as well. Findings are advice.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .cells import format_number, parse_number
from .conversions import CONVERSIONS, Conversion
from .profiles import CODES, MAX_NUMBERS, PROBABILITIES, ColumnProfile, Found, measure_quantiles
from .schema import fold_cell, normalise

Profiles = Mapping[str, ColumnProfile]

# A share of missing values stands out if it is so far from the others' median, by as many standard
# errors, and beyond the usual.
MISSING_APART = 0.25
MISSING_ERRORS = 4.0

# A distance between sites stands out beyond these, and beyond USUAL times the usual one.
NUMBERS_APART = 0.75
CATEGORIES_APART = 0.5
USUAL = 2.0

# What is usual with fewer than three other sites.
USUAL_OF_FEW = 0.25
CATEGORIES_USUAL_OF_FEW = 0.4
MISSING_USUAL_OF_FEW = 0.1

# A site lacks a category if as many rows of it are expected, by the 10 % quantile of the others'
# shares.
EXPECTED_ROWS = 7.0

# Quantiles without which the numbers of a site cannot be compared.
FEWEST_QUANTILES = 5

# The smallest range of a site's numbers that divides a distance, in shares of the others'.
SMALLEST_RANGE = 0.02

# A conversion explains a distance if it leaves at most the larger of EXPLAINED and the usual,
# and at most the distance divided by CURED. All that leave half as much again are named.
EXPLAINED = 0.3
CURED = 2.5
ALSO = 1.5
MARGIN = 0.02

# Years from which an age may be counted.
YEARS = (1900.0, 2100.0)

# Sites of a field that are said to stand out, and own columns of a site that may be fields: each
# takes a comparison of all sites.
MAX_LEAVING = 20
MAX_OWN = 200

# The largest distance of a column from the field that it may be.
ALIKE = 0.25

# Points of a site's distribution in a mixture of sites.
POINTS = 40
GRID = (np.arange(POINTS) + 0.5) / POINTS

# Rows of a number, on average, of which few are codes.
ROWS_OF_CODE = 5

# Listed numbers of a site that are counted out.
MOST_COUNTED = 10_000

# With at most as many other sites, the usual distance is measured without the site and themselves.
FEW_SITES = 40

# Similarity of two spellings that may be one, and the share of a site's rows from which a category
# is frequent.
SIMILAR = 0.85
FREQUENT = 0.05

# Different texts of a column that are compared with each other.
MAX_SPELLINGS = 200


# The kinds that are not ranked, and what a site then is or has.
QUIET = {"untold": "cannot be compared, for too few rows, in", "absent": "has no column"}


@dataclass(frozen=True)
class Finding:
    """A way in which sites stand out in a field.

    Attributes
    ----------
    kind
        What stands out: "missing", "numbers", "categories" (other ones), "lacking" (one of them),
        "spelling", "one-value", "name" (a column of another name), a kind of `Found`, or one of
        QUIET: "untold" if there are too few rows, "absent" without such a column.
    field
        The column.
    sites
        The sites: one, or if there are two, both.
    size
        How far they stand out, in multiples of the limit; findings are ranked by it.
    value, elsewhere
        The number that stands out, and what the others have: a share, a median, a code.
    rows
        The rows that show it.
    words
        The categories, or the other column.
    explained_by
        The conversions from the others' numbers, or codes, into the site's that explain it, the
        most usual first.
    """

    kind: str
    field: str
    sites: tuple[str, ...]
    size: float = 1.0
    value: float = math.nan
    elsewhere: float = math.nan
    rows: int = 0
    words: tuple[str, ...] = ()
    explained_by: tuple[Conversion, ...] = ()


def compare(fields: Mapping[str, Profiles]) -> list[Finding]:
    """Return what stands out, the farthest first.

    `fields` has the profiles of each field by site.
    """
    found: list[Finding] = []
    for name, sites in fields.items():
        used = {site: column for site, column in sites.items() if not column.identifier}
        for find in (
            _compare_missing,
            _compare_numbers,
            _compare_categories,
            _compare_spellings,
            _ask_about_one_value,
            _join_found,
        ):
            found += find(name, used)
    return sorted(found, key=lambda each: -each.size)


# Sites that leave ---------------------------------------------------------------------------------

Judge = Callable[[Sequence[str]], Iterator[Finding]]


def _let_leave(sites: Sequence[str], judge: Judge) -> Iterator[Finding]:
    """Yield the findings on sites that stand out, each compared with those that have not left.

    `judge` yields the findings on some of these sites, each on one. At most a third of the sites
    leave, and MAX_LEAVING.
    """
    left = [*sites]
    for _ in range(min(MAX_LEAVING, max(1, len(sites) // 3))):
        found = [*judge(left)] if len(left) > 1 else []
        if not found:
            return
        finding = max(found, key=lambda each: each.size)
        yield replace(finding, sites=tuple(left)) if len(left) == 2 else finding
        left.remove(finding.sites[0])


def _usual(distances: NDArray[np.float64], of_few: float) -> float:
    """Return the 0.9 quantile of the other sites' distances, and `of_few` for fewer than three."""
    known = distances[~np.isnan(distances)]
    return float(np.quantile(known, 0.9)) if len(known) >= 3 else of_few


# Missing values -----------------------------------------------------------------------------------


def _compare_missing(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with another share of missing values."""

    def judge(sites: Sequence[str]) -> Iterator[Finding]:
        rows = np.array([columns[site].rows for site in sites])
        missing = np.array([sum(columns[site].missing.values()) for site in sites])
        shares = missing / np.maximum(rows, 1)
        if np.ptp(shares) <= MISSING_APART:
            return
        for place, site in enumerate(sites):
            others = np.delete(shares, place)
            middle = float(np.median(others))
            share = float(shares[place])
            usual = _usual(np.abs(others - middle), MISSING_USUAL_OF_FEW)
            variance = max(share * (1.0 - share), middle * (1.0 - middle), 0.05)
            error = math.sqrt(variance / max(int(rows[place]), 1))
            rounding = (columns[site].floor - 1) / max(int(rows[place]), 1)
            limit = max(MISSING_APART + rounding, MISSING_ERRORS * error, USUAL * usual)
            if (size := abs(share - middle) / limit) > 1.0:
                yield Finding("missing", name, (site,), size, share, middle, int(missing[place]))

    yield from _let_leave([site for site in columns if columns[site].rows], judge)


# Numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The quantiles of sites, shape (sites, 7), points of their distributions, and their rows."""

    quantiles: NDArray[np.float64]
    points: NDArray[np.float64]
    rows: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Sequence[ColumnProfile]) -> "_Numbers":
        """Return the numbers of some columns, each with a quantile at least."""
        quantiles = np.array([quantiles_of(column) for column in columns])
        known = [~np.isnan(row) for row in quantiles]
        points = [
            np.interp(GRID, PROBABILITIES[given], row[given])
            for given, row in zip(known, quantiles, strict=True)
        ]
        return cls(quantiles, np.array(points), np.array([column.present for column in columns]))

    def mix(self, left_out: Sequence[int]) -> NDArray[np.float64]:
        """Return the quantiles of all sites together but for those `left_out`."""
        weights = np.repeat(self.rows / POINTS, POINTS)
        weights.reshape(-1, POINTS)[[*left_out]] = 0.0
        shares = np.cumsum(weights[self._order]) - weights[self._order] / 2.0
        quantiles: NDArray[np.float64] = np.interp(
            PROBABILITIES * weights.sum(), shares, self._ordered
        )
        return quantiles

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.points.ravel(), kind="stable")

    @cached_property
    def _ordered(self) -> NDArray[np.float64]:
        return self.points.ravel()[self._order]

    def distances(self, left_out: Sequence[int]) -> NDArray[np.float64]:
        """Return the distance of each site from the rest; NaN for those `left_out`."""
        found = np.full(len(self.rows), np.nan)
        for place in range(len(self.rows)):
            if place not in left_out:
                found[place] = distance(self.quantiles[place], self.mix([place, *left_out]))
        return found


def quantiles_of(column: ColumnProfile) -> NDArray[np.float64]:
    """Return the quantiles of a column's numbers, NaN for those that are not given."""
    if column.quantiles:
        return np.array(column.quantiles, np.float64)
    numbers = _numbers_of(column)
    counts = np.array([*column.values.values()], np.int64)[: len(numbers)]
    step = 1 + int(counts.sum()) // MOST_COUNTED
    return np.array(measure_quantiles(np.repeat(numbers, -(-counts // step)), 1), np.float64)


def _has_enough(column: ColumnProfile) -> bool:
    """Return whether a column has quantiles enough to be compared."""
    return int(np.isfinite(quantiles_of(column)).sum()) >= FEWEST_QUANTILES


def _numbers_of(column: ColumnProfile) -> NDArray[np.float64]:
    """Return the listed values as numbers; none if one of them is a text."""
    numbers = [parse_number(text) for text in column.values]
    return np.array([] if None in numbers else numbers, np.float64)


def distance(site: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the mean difference of two distributions' quantiles, in shares of the smaller range.

    NaN if the others have one number only. The range is that of nine tenths of the numbers; a
    site's counts as a fiftieth of the others' at least.
    """
    given = np.flatnonzero(~np.isnan(site))
    if len(given) < 2:
        return math.nan
    first, last = given[0], given[-1]
    others_range = others[last] - others[first]
    if others_range <= 0.0:
        return math.nan
    site_range = max(site[last] - site[first], SMALLEST_RANGE * others_range)
    return float(np.abs(site[given] - others[given]).mean() / min(others_range, site_range))


def _are_numbers(columns: Profiles) -> bool:
    """Return whether a column has quantities, and no codes: many distinct numbers for its rows."""
    if any(column.quantiles for column in columns.values()):
        return True
    listed = [column for column in columns.values() if len(_numbers_of(column))]
    distinct = {text for column in listed for text in column.values}
    rows = sum(column.present for column in listed)
    return len(distinct) > MAX_NUMBERS or rows < ROWS_OF_CODE * len(distinct)


def _compare_numbers(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites whose numbers are far from the others', with the conversions that explain it.

    A site with too few quantiles cannot be compared.
    """
    if not _are_numbers(columns):
        return
    numeric = {
        site: column
        for site, column in columns.items()
        if column.quantiles or len(_numbers_of(column))
    }
    used = [site for site, column in numeric.items() if _has_enough(column)]
    if few := [site for site in numeric if site not in used]:
        yield Finding("untold", name, tuple(few), 0.0)

    def judge(sites: Sequence[str]) -> Iterator[Finding]:
        numbers = _Numbers.of([columns[site] for site in sites])
        distances = numbers.distances(())
        for place in np.flatnonzero(distances > NUMBERS_APART).tolist():
            own = distances if len(sites) > FEW_SITES else numbers.distances([place])
            usual = _usual(np.delete(own, place), USUAL_OF_FEW)
            if (size := float(distances[place]) / max(NUMBERS_APART, USUAL * usual)) > 1.0:
                quantiles = numbers.quantiles[place]
                others = numbers.mix([place])
                yield Finding(
                    "numbers",
                    name,
                    (sites[place],),
                    size,
                    float(quantiles[3]),
                    float(others[3]),
                    columns[sites[place]].present,
                    explained_by=_explain_numbers(name, quantiles, others, usual),
                )

    yield from _let_leave(used, judge)


def _explain(
    field: str,
    left: Callable[[Conversion], float],
    apart: float,
    usual: float,
    more: Sequence[Conversion] = (),
) -> tuple[Conversion, ...]:
    """Return the conversions that explain a distance `apart` in a field.

    `left` is the rest after one. First come conversions of the quantity that the field names, then
    the most usual.
    """
    rest = {each: left(each) for each in (*CONVERSIONS, *more)}
    best = min(rest.values())
    if not best <= max(EXPLAINED, usual) or not best <= apart / CURED:
        return ()
    also = [each for each, distance in rest.items() if distance <= ALSO * best + MARGIN]
    # Of "mg/dl and mmol/l of glucose" the field may name the last word.
    return tuple(
        sorted(also, key=lambda way: way.about.casefold().split(" of ")[-1] not in field.casefold())
    )


def _explain_numbers(
    name: str, site: NDArray[np.float64], others: NDArray[np.float64], usual: float
) -> tuple[Conversion, ...]:
    """Return the conversions that explain a site's quantiles."""

    def left(way: Conversion) -> float:
        back = (site - way.offset) / way.factor
        return distance(back[::-1] if way.factor < 0.0 else back, others)

    # Years of birth, from the year in which an age is counted.
    year = float(np.nanmedian(site + others[::-1]))
    births = [Conversion("years of birth and ages", -1.0, round(year))]
    is_turned = bool((np.isnan(site) == np.isnan(site[::-1])).all())
    more = births if is_turned and YEARS[0] <= year <= YEARS[1] else []
    return _explain(name, left, distance(site, others), usual, more)


# Categories ---------------------------------------------------------------------------------------


def _shares_of(columns: Sequence[ColumnProfile]) -> tuple[list[str], NDArray[np.float64]]:
    """Return the different values, folded, and their rows at each site."""
    counts = []
    for column in columns:
        counts.append(Counter[str]())
        for text, count in column.values.items():
            counts[-1][_fold(text)] += count
    texts = [*dict.fromkeys(text for count in counts for text in count)]
    return texts, np.array([[count[text] for text in texts] for count in counts], np.float64)


def _fold(text: str) -> str:
    """Return a value for comparisons: without case, blanks and hyphens."""
    return re.sub(r"[\s_-]", "", fold_cell(normalise(text))) or text


def _variation(
    counts: NDArray[np.float64], present: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the total variation between sites' categories and the others', along the last axis.

    Of a site's `present` rows those that its profile does not list may be as the others' are.
    """
    shares = counts / np.maximum(present, 1.0)[..., None]
    rest = others / np.maximum(others.sum(axis=-1, keepdims=True), 1.0)
    apart: NDArray[np.float64] = np.maximum(shares - rest, 0.0).sum(axis=-1)
    return apart


def _compare_categories(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with other categories, or without one that all others have."""
    if _are_numbers(columns):
        return

    def judge(sites: Sequence[str]) -> Iterator[Finding]:
        texts, counts = _shares_of([columns[site] for site in sites])
        total = counts.sum(axis=0)
        present = np.array([columns[site].present for site in sites], np.float64)
        apart = _variation(counts, present, total - counts)
        largest = (counts / np.maximum(present, 1.0)[:, None]).max(axis=0)
        expected_most = np.where(counts == 0.0, largest * present[:, None], 0.0)
        may_lack = expected_most.max(axis=1, initial=0.0) > EXPECTED_ROWS
        for place in np.flatnonzero(may_lack | (apart > CATEGORIES_APART)).tolist():
            site = sites[place]
            others = np.delete(counts, place, axis=0)
            rest = total - counts[place]
            usual = _usual(
                _variation(others, np.delete(present, place), rest - others),
                CATEGORIES_USUAL_OF_FEW,
            )
            size = float(apart[place]) / max(CATEGORIES_APART, USUAL * usual)
            shares = others / np.maximum(np.delete(present, place), 1)[:, None]
            low = np.quantile(shares, 0.1, axis=0) if len(others) >= 4 else shares.min(axis=0)
            expected = np.where(counts[place] == 0, low * present[place], 0.0)
            fewest = EXPECTED_ROWS + columns[site].floor - 1
            lacking = expected.max(initial=0.0) / fewest
            if max(size, lacking) <= 1.0:
                continue
            ways = _explain_codes(name, texts, counts[place], rest, usual)
            are_own = size > 1.0 or bool(ways)
            shown = np.flatnonzero(counts[place] if are_own else expected > fewest)
            written = {_fold(text): text for each in sites for text in columns[each].values}
            written |= {_fold(text): text for text in columns[site].values}
            yield Finding(
                "categories" if are_own else "lacking",
                name,
                (site,),
                max(size, lacking),
                float(apart[place]),
                usual,
                int(present[place]),
                tuple(written[texts[each]] for each in shown),
                ways,
            )

    filled = [site for site in columns if columns[site].present]
    having = [site for site in filled if 2 * columns[site].others <= columns[site].present]
    if few := [site for site in filled if site not in having]:
        yield Finding("untold", name, tuple(few), 0.0)
    yield from _let_leave(having, judge)


def _explain_codes(
    name: str,
    texts: Sequence[str],
    site: NDArray[np.float64],
    others: NDArray[np.float64],
    usual: float,
) -> tuple[Conversion, ...]:
    """Return the conversions of numbers that explain a site's categories; () of texts."""
    numbers = [parse_number(text) for text, count in zip(texts, site, strict=True) if count]
    if None in numbers or len(numbers) < 2:
        return ()
    own = site[site > 0.0]

    def left(way: Conversion) -> float:
        moved = Counter[str]()
        for number, count in zip(numbers, own.tolist(), strict=True):
            moved[format_number(round(((number or 0.0) - way.offset) / way.factor, 6))] += count
        unknown = sum(count for text, count in moved.items() if text not in texts)
        there = np.array([moved[text] for text in texts] + [unknown])
        return float(_variation(there, there.sum(), np.append(others, 0.0)))

    return _explain(name, left, float(_variation(site, site.sum(), others)), usual)


def _compare_spellings(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield pairs of texts that may be two spellings of one."""
    counts: dict[str, dict[str, float]] = {}
    for site, column in columns.items():
        for text, count in column.values.items():
            if any(map(str.isalpha, text)):
                counts.setdefault(text, {})[site] = count / max(column.present, 1)
    if len(counts) > MAX_SPELLINGS:
        return
    folded = {text: _fold(text) for text in counts}
    ordered = sorted(counts, key=lambda text: (-sum(counts[text].values()), text))
    for place, text in enumerate(ordered):
        for usual in ordered[:place]:
            is_one = (
                folded[text] != folded[usual]
                and re.sub(r"\D", "", text) == re.sub(r"\D", "", usual)
                and not any(
                    counts[usual].get(site, 0.0) >= FREQUENT
                    for site, share in counts[text].items()
                    if share >= FREQUENT
                )
            )
            if is_one and difflib.get_close_matches(folded[usual], [folded[text]], 1, SIMILAR):
                yield Finding("spelling", name, tuple(counts[text]), words=(text, usual))
                break


# Names --------------------------------------------------------------------------------------------


def match_names(fields: Mapping[str, Profiles], own: Mapping[str, Profiles]) -> Iterator[Finding]:
    """Yield the columns that only one site has, and that look like a field that it lacks.

    `own` has the profiles of each site's own columns by name.
    """
    for site, columns in own.items():
        lacked = {
            name: [*sites.values()][:FEW_SITES]
            for name, sites in fields.items()
            if site not in sites
        }
        pairs = [
            (_distance_from(column, sites), column_name, name)
            for column_name, column in [*columns.items()][:MAX_OWN]
            for name, sites in lacked.items()
            if sites and (column.values or column.quantiles)
        ]
        for apart, column_name, name in sorted(pair for pair in pairs if pair[0] <= ALIKE):
            if name in lacked and column_name in columns:
                yield Finding("name", name, (site,), 1.0 - apart, words=(column_name,))
                del lacked[name]
                columns = {each: columns[each] for each in columns if each != column_name}


def _distance_from(column: ColumnProfile, sites: Sequence[ColumnProfile]) -> float:
    """Return how far a column is from a field of other sites; infinity if it is of another kind."""
    together = {str(place): each for place, each in enumerate((column, *sites))}
    if not _are_numbers(together):
        _, counts = _shares_of([*together.values()])
        return float(_variation(counts[0], counts[0].sum(), counts[1:].sum(axis=0)))
    known = [each for each in together.values() if _has_enough(each)]
    if column not in known or len(known) < 2:
        return math.inf
    apart = distance(quantiles_of(column), _Numbers.of(known).mix([0]))
    return float(np.nan_to_num(apart, nan=math.inf))


# What the rows of a site show ---------------------------------------------------------------------


def _ask_about_one_value(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield a question on a column that has one value, and nothing in other rows."""
    values = {text for column in columns.values() for text in column.values}
    missing = sum(sum(column.missing.values()) for column in columns.values())
    are_listed = not any(column.others or column.quantiles for column in columns.values())
    if len(values) == 1 and missing and are_listed:
        yield Finding(
            "one-value",
            name,
            tuple(site for site, column in columns.items() if column.missing),
            rows=missing,
            words=tuple(values),
        )


def _join_found(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield what sites found in their rows, once for all sites that found the same."""
    alike: dict[tuple[str, float, str], dict[str, Found]] = {}
    for site, column in columns.items():
        for each in column.found:
            number = each.number * (each.kind != "two-units")  # whose ratios differ by chance
            alike.setdefault((each.kind, number, each.column), {})[site] = each
    for (kind, number, other), sites in alike.items():
        rest = [columns[site] for site in columns if site not in sites]
        if kind in CODES and any(_is_usual(number, column) for column in rest):
            continue
        yield Finding(
            kind,
            name,
            tuple(sites),
            value=next(iter(sites.values())).number,
            rows=sum(each.rows for each in sites.values()),
            words=tuple(filter(None, [other])),
        )


def _is_usual(number: float, column: ColumnProfile) -> bool:
    """Return whether a number lies among the numbers of a site."""
    given = quantiles_of(column)
    low = np.fmin.reduce(given, initial=np.inf)
    return bool(low <= number <= np.fmax.reduce(given, initial=-np.inf))
