"""Ages with their units: 045Y, 018M and 003W, as DICOM writes them, 18 months, 2 y 3 m: years.

A column of them has numbers of years; with another unit than a year's, a number is not read so.
"""

import re
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from .grammar import FEW_VALUES, LETTER, NEARLY_ALL
from .schema import fold, normalise

# How many of each unit are a year, by its names in the languages of files that are read.
UNITS = {
    1.0: (
        "y yr yrs yo year years j jahr jahre jahren an ans année années año años anno anni ano anos"
    ),
    12.0: ("m mo mon mos mth mths month months monat monate monaten mois mes meses mese mesi mês"),
    52.1775: (
        "w wk wks week weeks woche wochen sem semaine semaines semana semanas settimana settimane"
    ),
    365.2425: "d day days t tag tage tagen jour jours día días dia dias giorno giorni",
}
PER_YEAR: dict[str, float] = {}
for _per_year, _names in UNITS.items():
    PER_YEAR |= dict.fromkeys(map(fold, _names.split()), _per_year)

# The unit of years, where no cell has one.
YEARS = "Y"

# A number with a unit, and some of them, the larger units first.
PART = re.compile(rf"([0-9]+(?:[.,][0-9]+)?)\s*({LETTER}+(?:\.{LETTER}+)*)\.?(?:\s+old)?[\s,]*")
PARTS = re.compile(rf"(?:{PART.pattern})+")

# As DICOM writes an age.
DICOM = re.compile("[0-9]{3}[DWMY]")


def is_of_years(unit: str) -> bool:
    """Return whether a unit is that of years."""
    return PER_YEAR.get(_plain(unit)) == 1.0


def parse_age(text: str) -> float | None:
    """Return the years in a cell, None for one that is not an age with its unit."""
    text = normalise(text)
    if not PARTS.fullmatch(text):
        return None
    parts = [(number, PER_YEAR.get(_plain(unit), 0.0)) for number, unit in PART.findall(text)]
    sizes = [per_year for _, per_year in parts]
    if 0.0 in sizes or sizes != sorted({*sizes}):
        return None
    years = 0.0
    for number, per_year in parts:
        years += float(number.replace(",", ".")) / per_year
    return years


def _plain(unit: str) -> str:
    return fold(unit).replace(".", "")


class Ages(NamedTuple):
    """The unit of years in a column of ages, and two of its cells with other units."""

    unit: str
    others: tuple[str, ...]


def find_ages(texts: Collection[str], more: int) -> Ages | None:
    """Return how many different texts are ages in several units; `more` are plain numbers.

    None if too few are, or if one unit is all that they have: it is a unit as any other.
    """
    ages = [text for text in texts if parse_age(text) is not None]
    if len(texts) + more <= FEW_VALUES or len(ages) < NEARLY_ALL * len(texts):
        return None
    of_years = Counter[str]()
    others = list[str]()
    for text in ages:
        units = [unit for _, unit in PART.findall(normalise(text))]
        years = [unit for unit in units if is_of_years(unit)]
        of_years.update(years)
        if len(years) < len(units):
            others.append(text)
    if not others or not (of_years or all(map(DICOM.fullmatch, ages))):
        return None
    unit = min(of_years, key=lambda each: (-of_years[each], each), default=YEARS)
    return Ages(unit, tuple(sorted(others)[:2]))
