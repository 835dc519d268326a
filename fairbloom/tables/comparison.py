"""Compare the profiles of sites: who stands out, by the sites' own spread.

Sites differ by nature. What is usual is the 0.9 quantile of the other sites' own distances, each
against the rest. The site that stands out most leaves, and the rest are compared again: of three
hospitals with one in another unit, the two others would stand out as well. Findings are advice.

A kind of finding is a class here, with the function that yields it in FINDERS, or, if only the rows
of a site show it, in IN_ROWS.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, islice
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import join_first, three_digits

from .cells import format_number, parse_number
from .conversions import CONVERSIONS, Conversion
from .findings import Explained, Finding, Quiet, join_words, spell
from .profiles import MAX_NUMBERS, PROBABILITIES, ColumnProfile, Found, measure_quantiles
from .schema import Field, fold_cell, normalise
from .toml import quote, write_table

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

# Names of columns that a sentence lists.
MAX_NAMED = 6

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


@dataclass(frozen=True)
class Untold(Quiet):
    """Sites with too few rows to compare."""

    kind = "untold"
    has = "cannot be compared, for too few rows, in"

    def say(self) -> str:
        """Return what stands out."""
        return "too few rows to compare"


@dataclass(frozen=True)
class Absent(Quiet):
    """A site without a column that most have."""

    kind = "absent"
    has = "has no column"

    def say(self) -> str:
        """Return what stands out."""
        return "it has no such column"


def compare(fields: Mapping[str, Profiles]) -> list[Finding]:
    """Return what stands out, the farthest first.

    `fields` has the profiles of each field by site.
    """
    found: list[Finding] = []
    for name, sites in fields.items():
        used = {site: column for site, column in sites.items() if not column.identifier}
        for find in FINDERS:
            found += find(name, used)
    return sorted(found, key=lambda each: -each.size)


# Sites that leave ---------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Finding)


def _let_leave(
    sites: Sequence[str], judge: Callable[[Sequence[str]], Iterator[Kind]]
) -> Iterator[Kind]:
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
        (odd,) = finding.sites
        left.remove(odd)
        if len(left) == 1:  # each may be the odd one
            finding = replace(finding, sites=(*left, odd), others=tuple(left))
        yield finding


def _usual(distances: NDArray[np.float64], of_few: float) -> float:
    """Return the 0.9 quantile of the other sites' distances, and `of_few` for fewer than three."""
    known = distances[~np.isnan(distances)]
    return float(np.quantile(known, 0.9)) if len(known) >= 3 else of_few


# Missing values -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Missing(Finding):
    """Another share of missing values; `elsewhere` is the others' median."""

    kind = "missing"
    is_of_missing = True

    share: float
    elsewhere: float

    def say(self) -> str:
        """Return what stands out."""
        return f"{self.share:.0%} of its rows have no value, and {self.elsewhere:.0%} elsewhere"


def find_missing(name: str, columns: Profiles) -> Iterator[Missing]:
    """Yield the sites with another share of missing values."""

    def judge(sites: Sequence[str]) -> Iterator[Missing]:
        rows = np.array([columns[site].rows for site in sites])
        missing = np.array([columns[site].empty for site in sites])
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
            size = abs(share - middle) / limit
            if size > 1.0:
                yield Missing(name, (site,), size, share=share, elsewhere=middle)

    yield from _let_leave([site for site in columns if columns[site].rows], judge)


# Numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Numbers(Explained):
    """Numbers far from the others'; `elsewhere` is their median."""

    kind = "numbers"

    median: float
    elsewhere: float

    def say(self) -> str:
        """Return what stands out."""
        cause = self.looks_like or "another quantity, another unit, or other people"
        elsewhere = three_digits(self.elsewhere)
        return f"median {three_digits(self.median)}, and {elsewhere} elsewhere: {cause}"

    def turn(self, sites: Sequence[str], columns: Sequence[Collection[str]]) -> Self:
        """Return it as a finding about the other side, of these sites."""
        turned = super().turn(sites, columns)
        return replace(turned, median=self.elsewhere, elsewhere=self.median)

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the conversions of the site's numbers."""
        return self.convert((), about)


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
    is_given = np.isfinite(quantiles_of(column))
    return int(is_given.sum()) >= FEWEST_QUANTILES


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


def find_numbers(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with numbers far from the others', and the conversions that explain it.

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
    few = [site for site in numeric if site not in used]
    if few:
        yield Untold(name, tuple(few), 0.0)

    def judge(sites: Sequence[str]) -> Iterator[Numbers]:
        numbers = _Numbers.of([columns[site] for site in sites])
        distances = numbers.distances(())
        for place in np.flatnonzero(distances > NUMBERS_APART).tolist():
            own = distances if len(sites) > FEW_SITES else numbers.distances([place])
            usual = _usual(np.delete(own, place), USUAL_OF_FEW)
            size = float(distances[place]) / max(NUMBERS_APART, USUAL * usual)
            if size > 1.0:
                quantiles = numbers.quantiles[place]
                others = numbers.mix([place])
                yield Numbers(
                    name,
                    (sites[place],),
                    size,
                    _explain_numbers(name, quantiles, others, usual),
                    median=float(quantiles[3]),
                    elsewhere=float(others[3]),
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
    return tuple(sorted(also, key=lambda way: not way.is_named_in(field)))


def _explain_numbers(
    name: str, site: NDArray[np.float64], others: NDArray[np.float64], usual: float
) -> tuple[Conversion, ...]:
    """Return the conversions that explain a site's quantiles."""

    def left(way: Conversion) -> float:
        back = (site - way.offset) / way.factor
        return distance(back[::-1] if way.factor < 0.0 else back, others)

    # Years of birth, from the year in which an age is counted.
    year = float(np.nanmedian(site + others[::-1]))
    birth = Conversion("years of birth", "ages", -1.0, round(year))
    births = [birth if np.nanmedian(site) > np.nanmedian(others) else birth.inverse()]
    is_turned = bool((np.isnan(site) == np.isnan(site[::-1])).all())
    more = births if is_turned and YEARS[0] <= year <= YEARS[1] else []
    return _explain(name, left, distance(site, others), usual, more)


# Categories ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Categories(Explained):
    """Other categories than the others', `words`."""

    kind = "categories"

    words: tuple[str, ...]

    def say(self) -> str:
        """Return what stands out."""
        like = f": {self.looks_like}" if self.explained_by else ""
        return f"its categories, {join_words(self.words)}, are other ones{like}"

    @property
    def has_line(self) -> bool:
        """Whether it proposes anything."""
        return True

    def turn(self, sites: Sequence[str], columns: Sequence[Collection[str]]) -> Self:
        """Return it as a finding about the other side, of these sites."""
        words = dict.fromkeys(chain(*columns))
        return replace(super().turn(sites, columns), words=tuple(words))

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the conversions of the site's codes, or spellings to fill in."""
        if self.explained_by:
            return self.convert(self.words, about)
        # Of two sites, each may be the one that is to change.
        own = self.words if len(self.sites) == 1 else ()
        usual = [each for each in about.categories if each not in own]
        return [{"spellings": spell(usual or ["USUAL"])}]


@dataclass(frozen=True, kw_only=True)
class Lacking(Finding):
    """Categories, `words`, that the others have."""

    kind = "lacking"

    words: tuple[str, ...]

    def say(self) -> str:
        """Return what stands out."""
        return f"it lacks {join_words(self.words)}, which the others have"


def _shares_of(columns: Sequence[ColumnProfile]) -> tuple[list[str], NDArray[np.float64]]:
    """Return the different values, folded, and their rows at each site."""
    folded: list[Counter[str]] = []
    for column in columns:
        counted = Counter[str]()
        for text, count in column.values.items():
            counted[_fold(text)] += count
        folded.append(counted)
    texts = [*dict.fromkeys(chain(*folded))]
    counts = np.zeros((len(columns), len(texts)))
    for site, counted in enumerate(folded):
        counts[site] = [counted[text] for text in texts]
    return texts, counts


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


def find_categories(name: str, columns: Profiles) -> Iterator[Finding]:
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
            distances = _variation(others, np.delete(present, place), rest - others)
            usual = _usual(distances, CATEGORIES_USUAL_OF_FEW)
            size = float(apart[place]) / max(CATEGORIES_APART, USUAL * usual)
            shares = others / np.maximum(np.delete(present, place), 1)[:, None]
            low = np.quantile(shares, 0.1, axis=0) if len(others) >= 4 else shares.min(axis=0)
            expected = np.where(counts[place] == 0, low * present[place], 0.0)
            fewest = EXPECTED_ROWS + columns[site].floor - 1
            lacking = expected.max(initial=0.0) / fewest
            farthest = max(size, lacking)
            if farthest <= 1.0:
                continue
            ways = _explain_codes(name, texts, counts[place], rest, usual)
            written = _spell_out(columns, [*sites, site])
            if size > 1.0 or ways:
                own = [written[texts[each]] for each in np.flatnonzero(counts[place])]
                yield Categories(name, (site,), farthest, ways, words=tuple(own))
            else:
                lost = [written[texts[each]] for each in np.flatnonzero(expected > fewest)]
                yield Lacking(name, (site,), farthest, words=tuple(lost))

    filled = [site for site in columns if columns[site].present]
    having = [site for site in filled if 2 * columns[site].others <= columns[site].present]
    few = [site for site in filled if site not in having]
    if few:
        yield Untold(name, tuple(few), 0.0)
    yield from _let_leave(having, judge)


def _spell_out(columns: Profiles, sites: Sequence[str]) -> dict[str, str]:
    """Return a spelling of each folded value: that of the last site that has it."""
    return {_fold(text): text for site in sites for text in columns[site].values}


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
            back = ((number or 0.0) - way.offset) / way.factor
            moved[format_number(round(back, 6))] += count
        unknown = sum(count for text, count in moved.items() if text not in texts)
        there = np.array([moved[text] for text in texts] + [unknown])
        return float(_variation(there, there.sum(), np.append(others, 0.0)))

    return _explain(name, left, float(_variation(site, site.sum(), others)), usual)


@dataclass(frozen=True, kw_only=True)
class Spelling(Finding):
    """A text that may be a spelling of another one, which is more `usual`."""

    kind = "spelling"

    text: str
    usual: str

    def say(self) -> str:
        """Return what stands out."""
        return f"{self.text!r} may be a spelling of {self.usual!r}"

    def change_field(self) -> Mapping[str, str]:
        """Return the spelling."""
        return {"spellings": write_table({self.usual: [self.text]})}

    def change_own(self, about: Field) -> Mapping[str, str]:
        """Return the spelling, if the usual one is a category."""
        return self.change_field() if self.usual in about.categories else {}


def find_spellings(name: str, columns: Profiles) -> Iterator[Spelling]:
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
            is_other = folded[text] != folded[usual] and _digits(text) == _digits(usual)
            if not is_other or _are_both_frequent(counts[text], counts[usual]):
                continue
            if difflib.get_close_matches(folded[usual], [folded[text]], 1, SIMILAR):
                yield Spelling(name, tuple(counts[text]), text=text, usual=usual)
                break


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _are_both_frequent(shares: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return whether two texts are frequent at one site, by their shares at each."""
    return any(
        share >= FREQUENT and others.get(site, 0.0) >= FREQUENT for site, share in shares.items()
    )


# Names --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Named(Finding):
    """A field that a site may have as a `column` of another name."""

    kind = "name"

    column: str

    def say(self) -> str:
        """Return what stands out."""
        return f"its column {self.column!r} may be this one"

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the column's name."""
        del about
        return [{"name": quote(self.column)}]


def match_names(fields: Mapping[str, Profiles], own: Mapping[str, Profiles]) -> Iterator[Named]:
    """Yield the columns that only one site has, and that look like a field that it lacks.

    `own` has the profiles of each site's own columns by name.
    """
    for site, columns in own.items():
        lacked = {name: sites for name, sites in fields.items() if site not in sites}
        matched: set[str] = set()
        matched_own: set[str] = set()
        for apart, own_name, name in sorted(_find_alike(columns, lacked)):
            if name not in matched and own_name not in matched_own:
                yield Named(name, (site,), 1.0 - apart, column=own_name)
                matched.add(name)
                matched_own.add(own_name)


@dataclass(frozen=True, kw_only=True)
class Alike(Finding):
    """Columns of several names that may be one: none is at most sites; `columns` has each site's.

    The field is the name at most of these sites.
    """

    kind = "alike"

    columns: tuple[str, ...]

    def say(self) -> str:
        """Return what stands out."""
        pairs = zip(self.columns, self.sites, strict=True)
        held = [f"{column!r} at {site}" for column, site in pairs]
        return f"{join_first(held, MAX_NAMED)} look alike: are they one column?"

    def change_at(self, site: str) -> Mapping[str, str]:
        """Return the keys that one of the sites may say of its column."""
        column = dict(zip(self.sites, self.columns, strict=True))[site]
        return {} if column == self.field else {"name": quote(column)}


def match_rare(rare: Mapping[str, Profiles], named: Collection[Named] = ()) -> Iterator[Alike]:
    """Yield the columns of several names that may be one field, each of other sites.

    `rare` has the profiles of the columns that most sites lack, by name and site; those that are
    `named` may be a field already. Of too many, none are compared.
    """
    taken = {(each.sites[0], each.column) for each in named}
    known: dict[str, Profiles] = {}
    for name, profiles in rare.items():
        is_taken = any((site, name) in taken for site in profiles)
        if not is_taken and all(each.values or each.quantiles for each in profiles.values()):
            known[name] = profiles
    if len(known) > MAX_OWN:
        return
    apart: list[tuple[float, str, str]] = []
    for name, other in combinations(known, 2):
        if known[name].keys().isdisjoint(known[other]):
            first, *_ = known[name].values()
            distance = _distance_from(first, [*known[other].values()][:FEW_SITES])
            apart.append((distance, name, other))
    groups = {name: [name] for name in known}
    for distance, name, other in sorted(apart):
        together = [*groups[name], *groups[other]]
        sites = [*chain(*(known[each] for each in together))]
        is_one = len({*sites}) == len(sites)
        if distance <= ALIKE and is_one and groups[name] is not groups[other]:
            for each in together:
                groups[each] = together
    for name, together in groups.items():
        if len(together) > 1 and together[0] == name:
            columns: dict[str, str] = {}
            for each in together:
                columns |= dict.fromkeys(known[each], each)
            field = max(together, key=lambda each: len(known[each]))
            yield Alike(field, tuple(columns), columns=tuple(columns.values()))


def _find_alike(
    columns: Profiles, lacked: Mapping[str, Profiles]
) -> Iterator[tuple[float, str, str]]:
    """Yield the distance of a site's own columns from fields that it lacks, if they are near."""
    few = {name: [*sites.values()][:FEW_SITES] for name, sites in lacked.items() if sites}
    for own_name, column in islice(columns.items(), MAX_OWN):
        if column.values or column.quantiles:
            for name, sites in few.items():
                apart = _distance_from(column, sites)
                if apart <= ALIKE:
                    yield apart, own_name, name


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


@dataclass(frozen=True, kw_only=True)
class OneValue(Finding):
    """A column with one value, and nothing in other `rows`."""

    kind = "one-value"
    is_of_missing = True

    value: str
    rows: int

    def say(self) -> str:
        """Return what stands out."""
        return f"it is {self.value!r} or nothing, in {self.rows:,} rows: does nothing mean no?"

    @property
    def no(self) -> str:
        """The second category, which nothing may mean."""
        return "no" if parse_number(self.value) is None else "0"

    def change_field(self) -> Mapping[str, str]:
        """Return the second category, which nothing may mean."""
        if self.value == self.no:
            return {}
        return {
            "categories": quote([self.no, self.value]),
            "spellings": write_table({self.no: [""]}),
        }

    def change_own(self, about: Field) -> Mapping[str, str]:
        """Return what nothing means, if it is a category."""
        is_second = self.no in about.categories and self.value != self.no
        return {"spellings": write_table({self.no: [""]})} if is_second else {}


def find_one_value(name: str, columns: Profiles) -> Iterator[OneValue]:
    """Yield a question on a column that has one value, and nothing in other rows."""
    values = {text for column in columns.values() for text in column.values}
    missing = sum(column.empty for column in columns.values())
    are_listed = not any(column.others or column.quantiles for column in columns.values())
    if len(values) == 1 and missing and are_listed:
        having = [site for site, column in columns.items() if column.missing]
        yield OneValue(name, tuple(having), value=values.pop(), rows=missing)


@dataclass(frozen=True, kw_only=True)
class InRows(Finding):
    """What only the rows of sites show; see `Found`.

    Attributes
    ----------
    is_code
        Whether the number may stand for a missing value, unless it is usual at another site.
    number, column, units
        The number, the other column, the two units.
    rows
        The rows of all sites that show it.
    """

    is_code: ClassVar[bool] = False

    number: float
    column: str
    units: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Code(InRows):
    """A number that may stand for a missing value."""

    is_code = True

    def change_field(self) -> Mapping[str, str]:
        """Return the marker of a missing value."""
        return {"missingValues": quote([format_number(self.number)])}

    def change_own(self, about: Field) -> Mapping[str, str]:
        """Return the marker, unless it is a category."""
        return {} if format_number(self.number) in about.categories else self.change_field()


@dataclass(frozen=True, kw_only=True)
class Far(Code):
    """A number far from the others."""

    kind = "far"

    def say(self) -> str:
        """Return what stands out."""
        return f"{format_number(self.number)} in {self.rows:,} rows, far from the others"


@dataclass(frozen=True, kw_only=True)
class Negative(Code):
    """A negative number, among others that are not."""

    kind = "negative"

    def say(self) -> str:
        """Return what stands out."""
        code = format_number(self.number)
        return f"{code} in {self.rows:,} rows, and no other number is negative"


@dataclass(frozen=True, kw_only=True)
class Zero(Code):
    """Zero, far from the other numbers."""

    kind = "zero"

    def say(self) -> str:
        """Return what stands out."""
        near = "no other number is near it: it may mean a missing value"
        return f"0 in {self.rows:,} rows, and {near}"


@dataclass(frozen=True, kw_only=True)
class TwoUnits(InRows):
    """Numbers in two units."""

    kind = "two-units"

    def say(self) -> str:
        """Return what stands out."""
        rows = f"the rarer in {self.rows:,} rows"
        return f"it seems to be in two units, as {self.units}, {rows}: write it in one"


@dataclass(frozen=True, kw_only=True)
class Exclusive(InRows):
    """A column that is never filled where another one is."""

    kind = "exclusive"

    def say(self) -> str:
        """Return what stands out."""
        return f"it is never filled where {self.column!r} is: they may be one column"


# What only rows show, by the code of its kind in a profile.
IN_ROWS = {each.kind: each for each in (Far, Negative, Zero, TwoUnits, Exclusive)}


def join_found(name: str, columns: Profiles) -> Iterator[InRows]:
    """Yield what sites found in their rows, once for all sites that found the same."""
    alike: dict[Found, dict[str, int]] = {}
    for site, column in columns.items():
        for each in column.found:
            alike.setdefault(replace(each, rows=0), {})[site] = each.rows
    for found, sites in alike.items():
        rest = [columns[site] for site in columns if site not in sites]
        kind = IN_ROWS[found.kind]
        if kind.is_code and any(_is_usual(found.number, column) for column in rest):
            continue
        yield kind(
            name,
            tuple(sites),
            number=found.number,
            column=found.column,
            units=found.units,
            rows=sum(sites.values()),
        )


def _is_usual(number: float, column: ColumnProfile) -> bool:
    """Return whether a number lies among the numbers of a site."""
    given = quantiles_of(column)
    low = np.fmin.reduce(given, initial=np.inf)
    return bool(low <= number <= np.fmax.reduce(given, initial=-np.inf))


# What is compared of each field.
FINDERS: Sequence[Callable[[str, Profiles], Iterator[Finding]]] = (
    find_missing,
    find_numbers,
    find_categories,
    find_spellings,
    find_one_value,
    join_found,
)
