"""Find columns that say who or which row a row is: numbers of rows, persons or cases, and dates."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .encoding import ColumnValues
from .grammar import NEARLY_ALL
from .schema import MAX_CATEGORIES, MAX_TEXT
from .survey import Column

# Rows of a file that show whether all values of a column differ.
FEWEST_ROWS = 20

# The share of all rows that have another text each from which texts are no categories.
MOST_CATEGORIES = 0.75

# Numbers are dense if the range of nearly all is at most this many times their count.
DENSE = 1.2

# The numbers at either end that do not count in that range.
TAIL = (1.0 - NEARLY_ALL) / 2.0

# Names of columns of identifiers.
NAMED = re.compile(
    r"(?i:(.*[\W_])?(id|ids|mrn|nr|no|number|index|key|patient|case|person|record|subject))"
    r"|(?i:.*(nummer|patient|subject)[\W_]*(id|nr|no)?)|.*[a-z]I[Dd]|(?i:row[\W_]*names?)"
)

# Names of columns that number nothing, though all their values may differ.
NEVER = re.compile(
    r"(.*[\W\d_])?(year|month|week|day|hour|time|date|age|jahr|tag)s?([\W\d_].*)?", re.I
)

MONTH = r"(jan|feb|mar|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[^\W\d_]*\.?"
TIME = r"([T ]+[0-9]{1,2}:[0-9]{2}.*)?"
DATE = re.compile(
    rf"([12][0-9]{{3}}([-/.])[0-9]{{1,2}}(\2[0-9]{{1,2}})?"  # 2024-03-17, 2024-03
    rf"|[0-9]{{1,2}}([-/.])[0-9]{{1,2}}\4([0-9]{{4}}|[0-9]{{2}})"  # 17.03.2024, 3/17/24
    rf"|[0-9]{{1,2}}\.?[ -]?{MONTH}[ -]?[0-9]{{2,4}}"  # 17 March 2024, 17-Mar-24
    rf"|{MONTH} ?[0-9]{{1,2}}(st|nd|rd|th)?,? [0-9]{{4}}){TIME}",  # March 17th, 2024
    re.IGNORECASE,
)

# Names that say a date, a day or a time, but no age, and nothing that is worth or weighs something.
DATED = re.compile(
    r"(?!(.*[\W\d_])?([Aa]ge|AGE|[Aa]lter|ALTER)([\W\d_A-Z].*)?$)"
    r"(?!(?i:.*(weight|value|cost|price|pay|income|salary|wage|sales|population|count|dose)s?$))"
    r"(.*(?i:date|datum|dato|fecha|day|dag|tag|time|zeit|zeitpunkt|tid|hora|heure|jour|giorno|stamp"
    r"|birth|dob|(?<![^\W_])(data|d[ií]a))(?i:s?)(?![a-zà-ÿ]).*|(?i:date|datum|fecha).*)"
)

# Numbers in such columns: Excel's of the days from 1920 to 2100, and the seconds since 1970 from
# 1980 to 2100, or thousandths of them and so on, as pandas and databases have them.
SECONDS = [(3.155e8 * unit, 4.134e9 * unit) for unit in (1, 1e3, 1e6, 1e9)]
TIMES = ((7_306, 73_051), *SECONDS)

# Identifiers of persons or cases.
IDENTIFIER = re.compile(
    r"[^@\s]+@[^@\s]+\.[^@\s]+"  # an e-mail address
    r"|(?=.*[^\W\d_])[\w./:#-]*[0-9]{4,}[\w./:#-]*"  # MRN-004711, 4711/B
    r"|(?=.*[0-9])(?=.*[a-f])[0-9a-f]{8}[0-9a-f-]*"
    # a telephone number, and no range
    r"|(?=(.*[0-9]){9})(?![0-9]{1,8} ?[-–] ?[0-9]{1,8}$)[+(]?[0-9][0-9 ()/.:-]*",
    re.IGNORECASE,
)


class Reason(NamedTuple):
    """Why a column is left out; `of_it`: in the sentence, "it" goes before `said`."""

    said: str
    of_it: bool = True

    def __str__(self) -> str:
        """Return the whole sentence."""
        return f"it {self.said}" if self.of_it else self.said


NUMBERS_OF_ROWS = Reason("looks like numbers of rows")
NUMBERS_OF_PERSONS = Reason("looks like numbers of persons or cases")

# Different values of a column that may name persons with several rows each; and at a site of
# average size.
FEWEST_UNITS = 20
FEWEST_AT_SITE = 2

# Rows of a person, on average.
MIN_ROWS, MAX_ROWS = 1.5, 20

# Share of persons with the same value of another column, such as age, in all of their rows; and the
# largest such share among shuffled rows, above which values are the same by chance.
SAME = 0.95
BY_CHANCE = 0.8


class Judgement(NamedTuple):
    """What is done with a column, with the reason; None if it is used.

    Attributes
    ----------
    ignored
        Why the column is put in ignore.
    unused
        Why the column is a field, but no input.
    remark
        What a person should look at.
    """

    ignored: Reason | None = None
    unused: Reason | None = None
    remark: str = ""

    @property
    def identifies(self) -> bool:
        """Whether the column seems to name persons, rows or dates."""
        return self.ignored is not None or self.unused is not None


def judge_numbers(name: str, column: Column) -> Judgement:
    """Return whether a column of numbers numbers rows or persons, or has dates."""
    if are_dates(name, column.numbers[column.codes]):
        return Judgement(ignored=Reason("looks like dates"))
    if NEVER.fullmatch(name):
        return Judgement()
    ends = np.cumsum([len(rows) for rows in column.sites.rows])
    of_files = np.split(column.numbers[column.codes], ends[:-1])
    # a few rows of a file show nothing, nor that the column names no person
    parts = [part for part in of_files if np.count_nonzero(~np.isnan(part)) >= FEWEST_ROWS]
    if not parts or not all(map(_are_of_one_each, parts)):
        return Judgement()
    if all(map(_are_dense, parts)):
        return Judgement(unused=NUMBERS_OF_ROWS)
    if NAMED.fullmatch(name):
        return Judgement(ignored=NUMBERS_OF_PERSONS)
    return Judgement(
        remark="nearly each row has another whole number: if they are numbers of persons or cases,"
        " put it in ignore"
    )


def are_dates(name: str, cells: NDArray[np.float64]) -> bool:
    """Return whether nearly all numbers are calendar days, or count time by the column's name."""
    numbers = cells[~np.isnan(cells)]
    # If 95 % are dates, at least a fifth of any sixteenth are: most columns are judged by one.
    return (
        bool(len(numbers))
        and _share_of_dates(name, numbers[: -(-len(numbers) // 16)]) >= 0.2
        and _share_of_dates(name, numbers) >= NEARLY_ALL
    )


def _share_of_dates(name: str, numbers: NDArray[np.float64]) -> float:
    """Return the largest share of the numbers that are dates of one form."""
    turned = numbers % 1e4 * 1e4 + numbers // 1e4 % 100 * 100 + numbers // 1e6  # 17032024
    days = np.stack([numbers, numbers // 1e4, numbers // 1e6, turned])  # 20240317, 202403171530
    is_date = (
        (np.abs(days // 1e4 - 2000) <= 100)
        & (np.abs(days // 100 % 100 - 6.5) < 6)
        & (np.abs(days % 100 - 16) < 16)
    )
    if DATED.fullmatch(name):
        is_date = np.concatenate(
            [is_date, [(numbers >= first) & (numbers < last) for first, last in TIMES]]
        )
    return float(is_date.mean(axis=1).max())


def _are_of_one_each(numbers: NDArray[np.float64]) -> bool:
    """Return whether nearly all rows of a file have a whole number, each another one."""
    whole = numbers[numbers == np.round(numbers)]
    return nearly_all_differ(len(np.unique(whole)), len(numbers))


def _are_dense(numbers: NDArray[np.float64]) -> bool:
    """Return whether nearly all numbers of a file follow each other."""
    low, high = np.nanquantile(numbers, (TAIL, 1.0 - TAIL))
    return bool(high - low < DENSE * NEARLY_ALL * len(numbers))


def judge_texts(column: Column) -> Judgement:
    """Return whether texts are too many or too long for categories, or say who a row is about."""
    longest = max(map(len, column.text_counts), default=0)
    if longest > MAX_TEXT:
        return Judgement(ignored=Reason(f"a text of it has {longest:,} characters", of_it=False))
    different = len(column.text_counts)
    rows = column.text_counts.total()
    judgement = judge_most_texts(column)
    if judgement.ignored is None and are_too_many(different, rows):
        said = f"has {different:,} different texts in {rows:,} rows, too many for categories"
        return Judgement(ignored=Reason(said))
    return judgement


def judge_most_texts(column: Column, fewest: int = 1) -> Judgement:
    """Return whether most texts say who a row is about, or are too many; no single row decides.

    Fewer rows than `fewest` say nothing of whom they are about: two numbers of persons are most of
    the different texts where all other rows have the same one.
    """
    counts = column.text_counts
    if len(counts) > MAX_CATEGORIES:
        return Judgement(ignored=Reason(f"has {len(counts):,} different texts"))
    for kind, pattern in (
        ("dates", DATE),
        ("numbers of persons or cases, or addresses", IDENTIFIER),
    ):
        matching = [text for text in counts if pattern.fullmatch(text)]
        rows = sum(counts[text] for text in matching)
        if 2 * len(matching) > len(counts) and rows >= fewest:
            return Judgement(ignored=Reason(f"looks like {kind}"))
    if any(
        nearly_all_differ(len(counts_of_site), counts_of_site.total())
        for counts_of_site in column.texts_of_sites()
    ):
        return Judgement(
            ignored=Reason(
                "nearly every row has a different text, which may say who it is about", of_it=False
            )
        )
    return Judgement()


def are_too_many(different: int, rows: int) -> bool:
    """Return whether texts are no categories of all rows, as most rows have another one."""
    return rows >= FEWEST_ROWS and different >= MOST_CATEGORIES * rows


def nearly_all_differ(different: int, rows: int) -> bool:
    """Return whether nearly every row has another value, as in columns of names or remarks."""
    return rows >= FEWEST_ROWS and different >= NEARLY_ALL * rows


# Persons ------------------------------------------------------------------------------------------


def rows_of_units(name: str, column: Column) -> float:
    """Return the number of rows of a value, on average; 0 if the values cannot be persons."""
    numbers = column.numbers[~np.isnan(column.numbers)]
    # First the columns that can be judged without sorting all rows.
    is_coarse = column.is_present.sum() > (MAX_ROWS * len(column.sites.names) * len(column.numbers))
    is_few = np.count_nonzero(column.counts) < FEWEST_UNITS
    if NEVER.fullmatch(name) or is_coarse or is_few or (numbers != np.round(numbers)).any():
        return 0.0
    units = find_units(column)
    counts = np.bincount(units[units >= 0])
    are_enough = len(counts) >= FEWEST_AT_SITE * len(column.sites.names)
    return float(counts.mean()) if are_enough and MIN_ROWS <= counts.mean() <= MAX_ROWS else 0.0


def may_name_persons(name: str, column: Column) -> bool:
    """Return whether a column may name persons, some of whom have several rows.

    Its name or its texts say so; its values are neither dates nor few.
    """
    numbers = column.numbers[~np.isnan(column.numbers)]
    is_fraction = bool((numbers != np.round(numbers)).any())
    if is_fraction or NEVER.fullmatch(name) or are_dates(name, column.numbers[column.codes]):
        return False
    texts = column.text_counts
    dates = sum(DATE.fullmatch(text) is not None for text in texts)
    identifiers = sum(IDENTIFIER.fullmatch(text) is not None for text in texts)
    if 2 * dates > len(texts) or not (2 * identifiers > len(texts) or NAMED.fullmatch(name)):
        return False
    units = find_units(column)
    counts = np.bincount(units[units >= 0])
    rows = int(counts.sum())
    return FEWEST_UNITS <= len(counts) < rows <= MAX_ROWS * len(counts)


def find_units(column: Column) -> NDArray[np.int64]:
    """Return the index of each row's value at its site; -1 for rows without one."""
    present = column.is_present
    cells = column.codes[present]
    if len(column.texts) < len(column.numbers):  # numbers of cells that are not merged
        numbers = column.numbers[cells]
        different, of_number = np.unique(numbers, return_inverse=True)
        cells = np.where(np.isnan(numbers), len(different) + cells, of_number)
    pairs = column.sites.of_row[present] * (cells.max(initial=0) + 1) + cells
    units = np.full(len(column.codes), -1)
    units[present] = np.unique(pairs, return_inverse=True)[1]
    return units


def name_persons(column: Column, others: Iterable[ColumnValues]) -> bool:
    """Return whether rows of the same value nearly always agree in another column, such as age."""
    units = find_units(column)
    present = units >= 0
    units = units[present]
    # The rows of each site in another order.
    shuffled = np.lexsort(
        (np.random.default_rng(0).permutation(len(units)), column.sites.of_row[present])
    )
    for values in others:
        found = values[present].astype(np.float64)
        found[np.isnan(found)] = -np.inf  # so that missing values are equal
        if (
            _share_that_agrees(units, found) >= SAME
            and _share_that_agrees(units, found[shuffled]) <= BY_CHANCE
        ):
            return True
    return False


def _share_that_agrees(units: NDArray[np.int64], values: NDArray[np.float64]) -> float:
    """Return the share of the units with several rows in which all values are equal."""
    counts = np.bincount(units)
    starts = (np.cumsum(counts) - counts)[counts > 1]
    ends = np.cumsum(counts)[counts > 1]
    if not len(starts):
        return 0.0
    ordered = values[np.argsort(units, kind="stable")]
    differs = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    return float((differs[ends - 1] == differs[starts]).mean())
