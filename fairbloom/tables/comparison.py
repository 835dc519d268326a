"""Compare the profiles of sites: who stands out, by the sites' own spread.

Sites differ by nature: a core of them decides, by its own spread. Findings are advice.

A kind of finding is a class here, with the function that yields it in FINDERS, or, if only the rows
of a site show it, in IN_ROWS.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import join_first, plural, tell_apart

from .cells import format_number, parse_number
from .conversions import CONVERSIONS, Conversion
from .core import FEW_SITES, Split, choose, split
from .distances import SiteCategories, SiteNumbers, SiteShares, distance, variation
from .findings import Change, Explained, Finding, Quiet, join_words, spell, write_added
from .profiles import (
    MAX_NUMBERS,
    PROBABILITIES,
    SENTINELS,
    ColumnProfile,
    Found,
    measure_quantiles,
)
from .schema import Field, FileField, fold_cell, fold_look, normalise, say_apart, squash
from .scripts import as_latin, show_script
from .toml import quote, write_table
from .wordings import read_answers

Profiles = Mapping[str, ColumnProfile]

# More sites than this share of them, and than FEW_ODD, that stand out without a conversion are of
# several sorts.
ODD_SHARE = 0.2
FEW_ODD = 2

# A site lacks a category if as many rows of it are expected, by the 10 % quantile of the others'
# shares.
EXPECTED_ROWS = 7.0

# Quantiles without which the numbers of a site cannot be compared.
FEWEST_QUANTILES = 5

# The share of a site's rows in numbers that its list leaves out, beyond which it is not compared:
# they are its tails.
LEFT_OUT = 0.1

# A number that has as many of a site's rows is apart from its other numbers, if it has most rows of
# most sites. It may mean a missing value if it has NEARLY_ALL, or the median other site
# has none.
HEAP = 0.25
NEARLY_ALL = 0.9

# A conversion explains a distance if it leaves at most the larger of EXPLAINED and the usual,
# and at most the distance divided by CURED. All that leave half as much again are named.
EXPLAINED = 0.3
CURED = 2.5
ALSO = 1.5
MARGIN = 0.02

# Different quantiles on both sides that a conversion maps.
FEWEST_MAPPED = 3

# Years from which an age may be counted.
YEARS = (1900.0, 2100.0)

# Own columns of a site that may be fields.
MAX_OWN = 200

# The largest distance of a column from the field that it may be.
ALIKE = 0.25

# Names of columns that a sentence lists.
MAX_NAMED = 6

# Rows of a number, on average, of which few are codes.
ROWS_OF_CODE = 5

# Listed numbers of a site that are counted out.
MOST_COUNTED = 10_000

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


def leave_asked(findings: Iterable[Finding], fields: Mapping[str, Profiles]) -> Iterator[Finding]:
    """Yield findings but on other categories of columns that tell which site a row is of.

    A draft asks whether such a column is to be ignored; the sites have no category in common.
    """
    for finding in findings:
        is_of_words = isinstance(finding, Categories | Lacking)
        if not is_of_words or not _tell_the_site(fields[finding.field]):
            yield finding


def _tell_the_site(columns: Profiles) -> bool:
    """Return whether three sites or more have no value in common with another."""
    _, counts = _shares_of([*columns.values()])
    having = np.count_nonzero(counts, axis=0)
    return len(columns) > 2 and int(having.max(initial=0)) == 1


# Sites outside of a core --------------------------------------------------------------------------

# What describes the sites at some places, which stand out by a number of limits.
Describe = Callable[[NDArray[np.int64], float], Finding]


@dataclass(frozen=True)
class Sorts(Quiet):
    """Sites of which too many are apart from the rest for one of them to stand out."""

    kind = "sorts"
    has = "is far from most sites, which are of several sorts, in"

    def say(self) -> str:
        """Return what stands out."""
        return "the sites are of several sorts"


def _judge(field: str, sites: Sequence[str], found: Split, describe: Describe) -> Iterator[Finding]:
    """Yield a finding on each group of sites that stand out of a core, as `describe` returns it.

    A group as large as the core is one of two sides, and of three sites that all differ each may be
    the odd one: all are named.
    """
    core = tuple(site for site, is_member in zip(sites, found.core, strict=True) if is_member)
    for group, size in zip(found.groups, found.sizes, strict=True):
        odd = tuple(sites[place] for place in group.tolist())
        others: tuple[str, ...] = ()
        if not found.agrees:
            others = (*core, *odd)
        elif len(odd) >= len(core):
            others = core
        named = (*core, *odd) if others else odd
        yield replace(describe(group, size), sites=named, others=others)
    if found.unknown:
        yield Untold(field, tuple(sites[place] for place in found.unknown), 0.0)
    if not found.agrees and not found.groups:
        yield Sorts(field, tuple(sites), 0.0)


def _rank(field: str, count: int, findings: Collection[Finding]) -> Iterator[Finding]:
    """Yield findings on some of a number of sites, unless these are of several sorts."""
    unexplained: list[Finding] = []
    for each in findings:
        if isinstance(each, Quiet) or (isinstance(each, Explained) and each.explained_by):
            yield each
        else:
            unexplained.append(each)
    odd = dict.fromkeys(site for each in unexplained for site in each.odd)
    if len(odd) > max(FEW_ODD, ODD_SHARE * count):
        yield Sorts(field, tuple(odd), 0.0)
    else:
        yield from unexplained


# Missing values -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Missing(Finding):
    """Another share of missing values; `elsewhere` is the core's median."""

    kind = "missing"
    is_of_missing = True

    share: float
    elsewhere: float

    def say(self) -> str:
        """Return what stands out."""
        return f"{self.share:.0%} of its rows have no value, and {self.elsewhere:.0%} elsewhere"


def find_missing(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with another share of missing values."""
    sites = [site for site in sorted(columns) if columns[site].rows]
    missing = {site: columns[site].empty / columns[site].rows for site in sites}
    rows = [columns[site].rows for site in sites]
    if not sites or max(missing.values()) - min(missing.values()) <= SiteShares.floor:
        return
    shares = np.array([*missing.values()])
    steps = np.array([columns[site].floor for site in sites], np.float64)
    compared = SiteShares(shares, np.array(rows, np.float64), steps)
    found = split(compared)
    elsewhere = compared.middle(found.core)

    def describe(group: NDArray[np.int64], size: float) -> Missing:
        return Missing(name, (), size, share=float(np.median(shares[group])), elsewhere=elsewhere)

    yield from _rank(name, len(sites), [*_judge(name, sites, found, describe)])


# Numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Numbers(Explained):
    """Numbers far from the core's: what `quantile` of them lies below a number, and `elsewhere`."""

    kind = "numbers"

    number: float
    elsewhere: float
    quantile: float = 0.5

    def say(self) -> str:
        """Return what stands out."""
        cause = self.looks_like or "another quantity, another unit, or other people"
        number, elsewhere = tell_apart(self.number, self.elsewhere)
        what = "median" if self.quantile == 0.5 else f"{self.quantile:.0%} are at most"
        return f"{what} {number}, and {elsewhere} elsewhere: {cause}"

    def turn(self, sites: Sequence[str], columns: Sequence[Collection[str]]) -> Self:
        """Return it as a finding about the other side, of these sites."""
        turned = super().turn(sites, columns)
        return replace(turned, number=self.elsewhere, elsewhere=self.number)

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the conversions of the site's numbers."""
        return self.convert((), about)


@dataclass(frozen=True, kw_only=True)
class Heap(Finding):
    """One number in most rows of a site, and in few of the core's.

    0 and sentinels may mean a missing value; another one may be of the site, and of no row.
    """

    kind = "heap"

    number: float
    share: float
    elsewhere: float

    def say(self) -> str:
        """Return what stands out."""
        question = "does it mean a missing value?" if self.is_code else "is it one of the site?"
        shares = f"in {self.share:.0%} of its rows, and in {self.elsewhere:.0%} elsewhere"
        return f"{format_number(self.number)} {shares}: {question}"

    @property
    def is_code(self) -> bool:
        """Whether the number may mean a missing value."""
        return self.number == 0.0 or self.number in SENTINELS

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the marker of a missing value."""
        added = write_added(FileField(), self.change_own(about))
        return [added] if added else []

    def change_own(self, about: Field) -> FileField:
        """Return the marker of a missing value, unless it is a category."""
        return _mark_missing(self.number, about) if self.is_code else FileField()


def _mark_missing(number: float, about: Field) -> FileField:
    """Return that a number means a missing value, unless it is a category."""
    marker = format_number(number)
    return FileField() if marker in about.categories else FileField(missingValues=(marker,))


def quantiles_of(column: ColumnProfile) -> NDArray[np.float64]:
    """Return the quantiles of a column's numbers, NaN for those that are not given."""
    if column.quantiles:
        return np.array(column.quantiles, np.float64)
    return _quantiles_of_listed(column, without=None)


def _quantiles_of_listed(column: ColumnProfile, without: float | None) -> NDArray[np.float64]:
    """Return the quantiles of a column's listed numbers, but for one that is left out."""
    numbers = _numbers_of(column)
    counts = np.array([*column.values.values()], np.int64)[: len(numbers)]
    if without is not None:
        is_used = numbers != without
        numbers, counts = numbers[is_used], counts[is_used]
    step = 1 + int(counts.sum()) // MOST_COUNTED
    return np.array(measure_quantiles(np.repeat(numbers, -(-counts // step)), 1), np.float64)


def _has_enough(quantiles: NDArray[np.float64]) -> bool:
    """Return whether a column has quantiles enough to be compared."""
    return int(np.isfinite(quantiles).sum()) >= FEWEST_QUANTILES


def _numbers_of(column: ColumnProfile) -> NDArray[np.float64]:
    """Return the listed values as numbers; none if one of them is a text."""
    numbers = [parse_number(text) for text in column.values]
    return np.array([] if None in numbers else numbers, np.float64)


def _are_numbers(columns: Profiles) -> bool:
    """Return whether a column has quantities, and no codes: many distinct numbers for its rows."""
    if any(column.quantiles for column in columns.values()):
        return True
    listed = [column for column in columns.values() if len(_numbers_of(column))]
    distinct = {text for column in listed for text in column.values}
    rows = sum(column.present for column in listed)
    return len(distinct) > MAX_NUMBERS or rows < ROWS_OF_CODE * len(distinct)


def _has_one_value(column: ColumnProfile) -> bool:
    """Return whether all rows of a column have the same value."""
    return len(column.values) == 1 and sum(column.values.values()) == column.present


def _shows_tails(column: ColumnProfile) -> bool:
    """Return whether a column's list leaves few of its rows out."""
    return column.others <= LEFT_OUT * column.present


def _share_of(number: float, column: ColumnProfile) -> float:
    """Return the share of a column's rows that have a number; 0 if that is not listed."""
    return column.values.get(format_number(number), 0) / max(column.present, 1)


def _heap_of(column: ColumnProfile) -> float | None:
    """Return the most frequent number of a column that counts them; None if it has fewer rows."""
    numbers = _numbers_of(column)
    if not len(numbers) or _share_of(numbers[0], column) < HEAP:
        return None
    return float(numbers[0])


def find_numbers(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with numbers far from the core's, and the conversions that explain it.

    What has one value at most sites is a property of the sites, and not compared. A site with too
    few quantiles cannot be compared.
    """
    if not _are_numbers(columns):
        return
    numeric = {
        site: columns[site]
        for site in sorted(columns)
        if columns[site].quantiles or len(_numbers_of(columns[site]))
    }
    constant = [site for site, column in numeric.items() if _has_one_value(column)]
    if 2 * len(constant) >= len(numeric) > 1:
        return
    heaps = [*find_heaps(name, numeric)]
    yield from heaps
    named = {site for each in heaps for site in each.sites}
    rest = {site: column for site, column in numeric.items() if site not in named}
    quantiles = _quantiles_by_site(rest)
    used = [
        site
        for site, column in rest.items()
        if _shows_tails(column) and site not in constant and _has_enough(quantiles[site])
    ]
    few = [site for site in rest if site not in used]
    if few:
        yield Untold(name, tuple(few), 0.0)
    if used:
        rows = np.array([rest[site].present for site in used], np.float64)
        yield from _compare_numbers(name, used, SiteNumbers(_stack(quantiles, used), rows))


def _stack(
    quantiles: Mapping[str, NDArray[np.float64]], sites: Sequence[str]
) -> NDArray[np.float64]:
    return np.stack([quantiles[site] for site in sites])


def find_heaps(name: str, columns: Profiles) -> Iterator[Heap]:
    """Yield the sites of which most rows have 0, a sentinel or their only value, unlike the core's.

    It fills nearly all rows, or the median other site does not list it.
    """
    heaps: dict[float, list[str]] = {}
    for site, column in columns.items():
        number = _heap_of(column)
        if number is None or _share_of(number, column) <= 0.5:
            continue
        if number == 0.0 or number in SENTINELS or _has_one_value(column):
            heaps.setdefault(number, []).append(site)
    sites = [*columns]
    rows = np.array([column.present for column in columns.values()], np.float64)
    steps = np.array([column.floor for column in columns.values()], np.float64)
    for number, having in heaps.items():
        shares = np.array([_share_of(number, column) for column in columns.values()])
        compared = SiteShares(shares, rows, steps)
        found = split(compared)
        others = [_share_of(number, columns[site]) for site in sites if site not in having]
        is_rare = not others or float(np.median(others)) == 0.0
        for group, size in zip(found.groups, found.sizes, strict=True):
            odd = [
                place
                for place in group
                if sites[place] in having and (is_rare or shares[place] >= NEARLY_ALL)
            ]
            if odd:
                yield Heap(
                    name,
                    tuple(sites[place] for place in odd),
                    size,
                    number=number,
                    share=float(np.median(shares[odd])),
                    elsewhere=compared.middle(found.core),
                )


def _quantiles_by_site(columns: Profiles) -> dict[str, NDArray[np.float64]]:
    """Return the quantiles of each site; without a number that has most rows of most sites."""
    heaps = {site: _heap_of(column) for site, column in columns.items()}
    most = Counter(
        number
        for site, number in heaps.items()
        if number is not None and _share_of(number, columns[site]) > 0.5
    )
    common, sites = most.most_common(1)[0] if most else (None, 0)
    if 2 * sites <= len(columns):
        common = None
    quantiles: dict[str, NDArray[np.float64]] = {}
    for site, column in columns.items():
        is_apart = common is not None and heaps[site] == common
        quantiles[site] = _quantiles_of_listed(column, common) if is_apart else quantiles_of(column)
    return quantiles


def _compare_numbers(name: str, sites: Sequence[str], numbers: SiteNumbers) -> Iterator[Finding]:
    """Yield the sites with numbers far from the core's."""
    found = split(numbers)
    others = numbers.mix(found.core)

    def describe(group: NDArray[np.int64], size: float) -> Numbers:
        own = numbers.mix(choose(group, len(sites)))
        if len(group) == 1:
            own = numbers.quantiles[group[0]]
        place = _most_telling(own, others)
        return Numbers(
            name,
            (),
            size,
            _explain_numbers(name, own, others, found.usual),
            number=float(own[place]),
            elsewhere=float(others[place]),
            quantile=float(PROBABILITIES[place]),
        )

    yield from _rank(name, len(sites), [*_judge(name, sites, found, describe)])


def _most_telling(own: NDArray[np.float64], others: NDArray[np.float64]) -> int:
    """Return the place of the median, or if that is the same, of what differs most."""
    middle = len(PROBABILITIES) // 2
    apart = np.nan_to_num(np.abs(own - others))
    return middle if apart[middle] else int(apart.argmax())


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
    """Return the conversions that explain a site's quantiles; a conversion maps three of them."""
    is_given = ~np.isnan(site)
    if min(len({*each[is_given].tolist()}) for each in (site, others)) < FEWEST_MAPPED:
        return ()

    def left(way: Conversion) -> float:
        back = (site - way.offset) / way.factor
        return float(distance(back[::-1] if way.factor < 0.0 else back, others))

    # Years of birth, from the year in which an age is counted.
    year = float(np.nanmedian(site + others[::-1]))
    birth = Conversion("years of birth", "ages", -1.0, round(year))
    births = [birth if np.nanmedian(site) > np.nanmedian(others) else birth.inverse()]
    is_turned = bool((np.isnan(site) == np.isnan(site[::-1])).all())
    more = births if is_turned and YEARS[0] <= year <= YEARS[1] else []
    return _explain(name, left, float(distance(site, others)), usual, more)


# Categories ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Categories(Explained):
    """Other categories, `words`, than the core's, which are `usual` in their most usual form."""

    kind = "categories"

    words: tuple[str, ...]
    usual: tuple[str, ...] = ()

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
        return replace(super().turn(sites, columns), words=tuple(words), usual=self.words)

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the conversions of the site's codes, or spellings to fill in."""
        if self.explained_by:
            return self.convert(self.words, about)
        # Of two sites, each may be the one that is to change.
        own = self.words if len(self.sites) == 1 else ()
        usual = [each for each in about.categories if each in self.usual]
        other = [each for each in about.categories if each not in own]
        return [{"spellings": spell(usual or other or ["USUAL"])}]


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
    folded = _fold_values(columns)
    places: dict[str, int] = {}
    for column, meant in zip(columns, folded, strict=True):
        for text in column.values:
            if meant[text] not in places:
                places[meant[text]] = len(places)
    counts = np.zeros((len(columns), len(places)))
    for site, column in enumerate(columns):
        for text, count in column.values.items():
            counts[site, places[folded[site][text]]] += count
    return [*places], counts


def _fold_values(columns: Sequence[ColumnProfile]) -> list[Mapping[str, str]]:
    """Return each value of sites' columns for comparisons: two answers of any language in English.

    Answers of a site that has one of them, or a third, mean what they do at most sites.
    """
    written = dict.fromkeys(chain.from_iterable(column.values for column in columns))
    plain = {text: _fold(text) for text in written}
    pairs = Counter(tuple(column.values) for column in columns if len(column.values) == 2)
    read = {words: read_answers(words) for words in pairs}
    known = {words: meant for words, meant in read.items() if meant}
    if not known:
        return [plain] * len(columns)
    most = max(known, key=pairs.__getitem__)
    usual = {plain[text]: meant for text, meant in known[most].items()}
    others = {text: usual.get(word, word) for text, word in plain.items()}
    return [known.get(tuple(column.values), others) for column in columns]


def _fold(text: str) -> str:
    """Return a value for comparisons: without case, blanks, hyphens and scripts of one look."""
    return re.sub(r"[\s_-]", "", fold_look(normalise(text))) or text


@dataclass(frozen=True, eq=False)
class _Values:
    """The different values of columns, folded, and each column's rows of them."""

    columns: Profiles
    texts: Sequence[str]
    counts: NDArray[np.float64]
    present: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Profiles) -> "_Values":
        """Return the values of each site's column."""
        texts, counts = _shares_of([*columns.values()])
        present = np.array([column.present for column in columns.values()], np.float64)
        return cls(columns, texts, counts, present)

    def spell(self, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return a spelling of some of the values: that of the last site that has it."""
        written: dict[str, str] = {}
        columns = [*self.columns.values()]
        for column, meant in zip(columns, _fold_values(columns), strict=True):
            for text in column.values:
                written[meant[text]] = text
        folded = [text for text, is_chosen in zip(self.texts, chosen, strict=True) if is_chosen]
        return tuple(written[text] for text in folded)

    def describe(
        self, field: str, group: NDArray[np.int64], size: float, found: Split
    ) -> Categories:
        """Return the finding that a group of sites has other categories than the core."""
        own = self.counts[group].sum(axis=0)
        core = found.core.copy()
        core[group] = False
        ways = _explain_codes(field, self.texts, own, self.counts[core].sum(axis=0), found.usual)
        sites = [*self.columns]
        named = tuple(sites[place] for place in group.tolist())
        leading = [site for site, is_core in zip(sites, core, strict=True) if is_core]
        usual = self._spell_most(leading)
        return Categories(field, named, size, ways, words=self.spell(own > 0.0), usual=usual)

    def _spell_most(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Return the values of some sites, each as most of their rows have it."""
        columns = [self.columns[site] for site in sites]
        rows: dict[str, Counter[str]] = {}
        for column, folded in zip(columns, _fold_values(columns), strict=True):
            for text, count in column.values.items():
                rows.setdefault(folded[text], Counter())[text] += count
        return tuple(max(each, key=each.__getitem__) for each in rows.values())


def find_categories(name: str, columns: Profiles) -> Iterator[Finding]:
    """Yield the sites with other categories, or without one that all of the core have.

    What has one value at most sites is a property of the sites, and not compared; a site with one
    value is never in the core.
    """
    if _are_numbers(columns):
        return
    filled = [site for site in sorted(columns) if columns[site].present]
    sites = [site for site in filled if 2 * columns[site].others <= columns[site].present]
    few = tuple(site for site in filled if site not in sites)
    if few:
        yield Untold(name, few, 0.0)
    may_lead = np.array([not _has_one_value(columns[site]) for site in sites], np.bool_)
    if 2 * int(may_lead.sum()) < len(sites) or len(sites) < 2:
        return
    values = _Values.of({site: columns[site] for site in sites})
    found = split(SiteCategories(values.counts, values.present), may_lead)

    def describe(group: NDArray[np.int64], size: float) -> Categories:
        return values.describe(name, group, size, found)

    findings = [*_judge(name, sites, found, describe)]
    if found.agrees:
        findings += _find_lacking(name, values, found)
    yield from _rank(name, len(sites), findings)


def _find_lacking(name: str, values: _Values, found: Split) -> Iterator[Finding]:
    """Yield the sites near the core that lack a category which all of it have, by these together.

    If codes that begin elsewhere explain it, they are other categories.
    """
    sites = [*values.columns]
    shares = values.counts / np.maximum(values.present, 1.0)[:, None]
    of_core = _least_of(shares[found.core])
    apart = [place for group in found.groups for place in group.tolist()]
    lacking: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    are_lacking = (values.counts == 0.0).any(axis=1)
    for place in np.flatnonzero(are_lacking).tolist():
        site = sites[place]
        rest = found.core.copy()
        rest[place] = False
        if place in apart or not rest.any():
            continue
        least = _least_of(shares[rest]) if rest.sum() <= FEW_SITES else of_core
        fewest = EXPECTED_ROWS + values.columns[site].floor - 1
        expected = np.where(values.counts[place] == 0.0, least * values.present[place], 0.0)
        size = float(expected.max(initial=0.0)) / fewest
        if size <= 1.0:
            continue
        other = values.describe(name, np.array([place]), size, found)
        if other.explained_by:
            yield other
        else:
            lacking.setdefault(values.spell(expected > fewest), []).append((site, size))
    for words, odd in lacking.items():
        size = max(each for _, each in odd)
        yield Lacking(name, tuple(site for site, _ in odd), size, words=words)


def _least_of(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each category that nearly all sites have at least; all of a few."""
    least: NDArray[np.float64] = shares.min(axis=0)
    return np.quantile(shares, 0.1, axis=0) if len(shares) >= 4 else least


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
        return float(variation(there, there.sum(), np.append(others, 0.0)))

    return _explain(name, left, float(variation(site, site.sum(), others)), usual)


@dataclass(frozen=True, kw_only=True)
class Spelling(Finding):
    """A text that may be a spelling of another one, which is more `usual`."""

    kind = "spelling"

    text: str
    usual: str

    def say(self) -> str:
        """Return what stands out."""
        return f"{show_script(self.text)} may be a spelling of {show_script(self.usual)}"

    def change_field(self) -> Mapping[str, str]:
        """Return the spelling."""
        return {"spellings": write_table({self.usual: [self.text]})}

    def propose(self, about: Field, file: str) -> Change | None:
        """Return the spelling: of the site's files, if the schema has the text as a category."""
        if self.text not in about.categories:
            return super().propose(about, file)
        if file:
            return Change(self.field, file, [self.change_field()])
        kept = [each for each in about.categories if each != self.text]
        return Change(self.field, "", [{"categories": quote(kept), **self.change_field()}])

    def change_own(self, about: Field) -> FileField:
        """Return the spelling, if the usual one is a category."""
        if self.usual not in about.categories:
            return FileField()
        return FileField(spellings={self.usual: (self.text,)})


Words = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Wording(Explained):
    """Two answers in other words, or in another language, than at the other sites.

    `words` are pairs of the sites' word and the others'.
    """

    kind = "wording"

    words: Words

    def say(self) -> str:
        """Return what stands out."""
        own, others = map(join_words, zip(*self.words, strict=True))
        return f"{own} may be its {plural(len(self.words), 'word', 'words')} for {others}"

    @property
    def has_line(self) -> bool:
        """Whether it proposes anything."""
        return True

    def turn(self, sites: Sequence[str], columns: Sequence[Collection[str]]) -> Self:
        """Return it as a finding about the other side, of these sites."""
        words = tuple((other, own) for own, other in self.words)
        return replace(super().turn(sites, columns), words=words)

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the spellings."""
        del about
        return [_spell_answers(self.words)]


def _spell_answers(words: Words) -> dict[str, str]:
    spellings = {other: [own] for own, other in words}
    return {"spellings": write_table(spellings)}


def find_wordings(name: str, columns: Profiles) -> Iterator[Wording]:
    """Yield the sites that give two answers in other words than most sites, or most rows.

    Where as many sites have other words, either may be those of the schema.
    """
    pairs: dict[frozenset[str], list[str]] = {}
    for site, column in columns.items():
        if len(column.values) == 2:
            pairs.setdefault(frozenset(column.values), []).append(site)
    sites_of = {words: sites for words, sites in pairs.items() if read_answers(words)}
    if len(sites_of) < 2:
        return

    def count(words: frozenset[str]) -> tuple[int, int]:
        rows = sum(columns[site].present for site in sites_of[words])
        return len(sites_of[words]), rows

    usual = max(sites_of, key=count)
    for words, sites in sites_of.items():
        translated = _translate(words, usual)
        if translated:
            others = tuple(sites_of[usual]) if len(sites) == len(sites_of[usual]) else ()
            named = (*others, *sites)
            yield Wording(name, named, others=others, words=translated)


def _translate(own: Collection[str], usual: Collection[str]) -> Words:
    """Return each of a site's two answers that has another usual word, with that."""
    usual_word = {meant: word for word, meant in read_answers(usual).items()}
    meant = read_answers(sorted(own))
    if {*meant.values()} != {*usual_word}:
        return ()
    pairs = [(word, usual_word[each]) for word, each in meant.items()]
    return tuple((word, other) for word, other in pairs if _fold(word) != _fold(other))


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
    words = {text: _words_of(text) for text in counts}
    ordered = sorted(counts, key=lambda text: (-sum(counts[text].values()), text))
    for place, text in enumerate(ordered):
        for usual in ordered[:place]:
            is_same = folded[text] == folded[usual]
            if is_same and as_latin(text) == text and as_latin(usual) == usual:
                continue
            is_other = _digits(text) == _digits(usual) and _are_similar(words[text], words[usual])
            if is_same or (is_other and not _are_both_frequent(counts[text], counts[usual])):
                yield Spelling(name, tuple(counts[text]), text=text, usual=usual)
                break


def _words_of(text: str) -> list[str]:
    return re.split(r"[\s_-]+", fold_cell(normalise(text)))


def _are_similar(words: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether each word of a text is nearly that of another one: East is not West."""
    return len(words) == len(others) and all(
        difflib.get_close_matches(other, [word], 1, SIMILAR)
        for word, other in zip(words, others, strict=True)
    )


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
    """A field that a site may have as a `column` of another name, and with other `words`."""

    kind = "name"

    column: str
    words: Words = ()

    def say(self) -> str:
        """Return what stands out."""
        return f"its column {self.column!r} may be this one"

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the column's name, and the spellings of its answers."""
        del about
        name = {"name": quote(self.column)}
        return [name | _spell_answers(self.words) if self.words else name]


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
                words = _answers_at(columns[own_name], lacked[name])
                yield Named(name, (site,), 1.0 - apart, column=own_name, words=words)
                matched.add(name)
                matched_own.add(own_name)


def _answers_at(column: ColumnProfile, sites: Profiles) -> Words:
    """Return each of a column's two answers that has another word at most sites, with that."""
    wordings = [tuple(sorted(each.values)) for each in sites.values()]
    usual = Counter(wordings)
    return _translate(column.values, usual.most_common(1)[0][0])


@dataclass(frozen=True, kw_only=True)
class Alike(Finding):
    """Columns of several names that may be one, each at few sites; `columns` has each site's.

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
        if known[name].keys().isdisjoint(known[other]) and not say_apart(name, other):
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
                if say_apart(own_name, name):
                    continue
                apart = _distance_from(column, sites)
                if _are_similar([squash(own_name)], [squash(name)]):
                    # sites that differ, as in their units, are near to none together
                    for each in sites:
                        apart = min(apart, _distance_from(column, [each]))
                if apart <= ALIKE:
                    yield apart, own_name, name


def are_alike(column: ColumnProfile, sites: Sequence[ColumnProfile]) -> bool:
    """Return whether a column may be a field of other sites, by its values."""
    return _distance_from(column, sites) <= ALIKE


def _distance_from(column: ColumnProfile, sites: Sequence[ColumnProfile]) -> float:
    """Return how far a column is from a field of other sites; infinity if it is of another kind."""
    together = {str(place): each for place, each in enumerate((column, *sites))}
    if not _are_numbers(together):
        _, counts = _shares_of([*together.values()])
        apart = variation(counts[0], counts[0].sum(), counts[1:].sum(axis=0))
        return float(np.nan_to_num(apart, nan=math.inf))
    quantiles = {each: quantiles_of(together[each]) for each in together}
    known = [each for each in together if _has_enough(quantiles[each])]
    if "0" not in known or len(known) < 2:
        return math.inf
    rows = np.array([together[each].present for each in known], np.float64)
    others = SiteNumbers(_stack(quantiles, known), rows).mix(np.array(known) != "0")
    return float(np.nan_to_num(distance(quantiles["0"], others), nan=math.inf))


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

    def change_own(self, about: Field) -> FileField:
        """Return what nothing means, if it is a category."""
        is_second = self.no in about.categories and self.value != self.no
        return FileField(spellings={self.no: ("",)}) if is_second else FileField()


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

    def change_own(self, about: Field) -> FileField:
        """Return the marker, unless it is a category."""
        return _mark_missing(self.number, about)


@dataclass(frozen=True, kw_only=True)
class Far(Code):
    """A number far from the others."""

    kind = "far"

    def say(self) -> str:
        """Return what stands out."""
        return f"{format_number(self.number)} in {self.rows:,} rows, far from the others"


@dataclass(frozen=True, kw_only=True)
class OffScale(Code):
    """A whole number after a hole in a scale."""

    kind = "scale"

    def say(self) -> str:
        """Return what stands out."""
        code = format_number(self.number)
        return f"{code} in {self.rows:,} rows, and numbers next to it are missing: it may be a code"


@dataclass(frozen=True, kw_only=True)
class Above(InRows):
    """Several numbers far above the others; `number` is the nearest."""

    kind = "above"
    is_code = True

    def say(self) -> str:
        """Return what stands out."""
        held = f"{format_number(self.number)} or more in {self.rows:,} rows"
        return f"{held}, far from the others: correct them, or list codes in missingValues"


@dataclass(frozen=True, kw_only=True)
class Below(InRows):
    """Several numbers far below the others; `number` is the nearest."""

    kind = "below"
    is_code = True

    def say(self) -> str:
        """Return what stands out."""
        held = f"{format_number(self.number)} or less in {self.rows:,} rows"
        return f"{held}, far from the others: correct them, or list codes in missingValues"


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


# Kinds of which sites may have found other numbers.
OF_SEVERAL = (Above.kind, Below.kind)

# What only rows show, by the code of its kind in a profile.
KINDS_IN_ROWS = (Far, OffScale, Above, Below, Negative, Zero, TwoUnits, Exclusive)
IN_ROWS = {each.kind: each for each in KINDS_IN_ROWS}


def join_found(name: str, columns: Profiles) -> Iterator[InRows]:
    """Yield what sites found in their rows, once for all sites that found the same."""
    alike: dict[Found, dict[str, Found]] = {}
    for site, column in columns.items():
        for each in column.found:
            number = 0.0 if each.kind in OF_SEVERAL else each.number
            alike.setdefault(replace(each, rows=0, number=number), {})[site] = each
    for found, sites in alike.items():
        rest = [columns[site] for site in columns if site not in sites]
        numbers = [each.number for each in sites.values()]
        nearest = max(numbers) if found.kind == Below.kind else min(numbers)
        rows = sum(each.rows for each in sites.values())
        kind = IN_ROWS[found.kind]
        if kind.is_code and any(_is_usual(nearest, column) for column in rest):
            continue
        yield kind(
            name,
            tuple(sites),
            number=nearest,
            column=found.column,
            units=found.units,
            rows=rows,
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
    find_wordings,
    find_spellings,
    find_one_value,
    join_found,
)
