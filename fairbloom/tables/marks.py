"""Infer how a file writes numbers: its decimal mark and thousands separators."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .cells import CURRENCY, WITH_UNIT
from .flags import find_flag
from .schema import Decimal, GroupMark, normalise

# Cells of a column that are looked at; those that no number can be read from are, all of them.
SAMPLE = 500

# Digits that thousands begin with: 0.123 has no thousands.
GROUP = "[+-]?[1-9][0-9]{0,2}"

# Patterns of cells that show which marks are in use; any other cell shows nothing.
EVIDENCE = {
    "either comma": re.compile(rf"{GROUP},[0-9]{{3}}"),
    "either point": re.compile(rf"{GROUP}\.[0-9]{{3}}"),
    "comma between thousands": re.compile(rf"{GROUP}(,[0-9]{{3}}){{2,}}"),
    "point between thousands": re.compile(rf"{GROUP}(\.[0-9]{{3}}){{2,}}"),
    "comma between thousands, decimal point": re.compile(rf"{GROUP}(,[0-9]{{3}})+\.[0-9]+"),
    "point between thousands, decimal comma": re.compile(rf"{GROUP}(\.[0-9]{{3}})+,[0-9]+"),
    "' ' between thousands": re.compile(rf"{GROUP}( [0-9]{{3}})+"),
    "' ' between thousands, decimal point": re.compile(rf"{GROUP}( [0-9]{{3}})+\.[0-9]+"),
    "' ' between thousands, decimal comma": re.compile(rf"{GROUP}( [0-9]{{3}})+,[0-9]+"),
    '"\'" between thousands': re.compile(rf"{GROUP}('[0-9]{{3}})+"),
    '"\'" between thousands, decimal point': re.compile(rf"{GROUP}('[0-9]{{3}})+\.[0-9]+"),
    '"\'" between thousands, decimal comma': re.compile(rf"{GROUP}('[0-9]{{3}})+,[0-9]+"),
    "decimal point": re.compile(r"[+-]?[0-9]*\.[0-9]+([eE][+-]?[0-9]+)?"),
    "decimal comma": re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?"),
    "none": re.compile(r"[+-]?[0-9]+"),
}


@dataclass(frozen=True)
class Marks:
    """The marks of a file's numbers; `group` separates thousands, "" if nothing does.

    `unclear` is a cell that can be read in two ways, if no other cell of the file decides.
    """

    decimal: Decimal = "."
    group: GroupMark = ""
    unclear: str = ""


def infer_marks(columns: Iterable[Iterable[str]]) -> Marks:
    """Return the marks with which each number in the columns can be read, if possible.

    A column counts if half of its cells at least are numbers. If the columns contradict each other,
    the decimal mark is a point.
    """
    examples: dict[str, str] = {}
    for cells in columns:
        kinds = [(_find_evidence(cell), cell) for cell in map(normalise, cells) if cell]
        numbers = [(kind, cell) for kind, cell in kinds if kind]
        if 2 * len(numbers) >= len(kinds):
            for kind, cell in numbers:
                examples.setdefault(kind, cell)

    def says(part: str) -> bool:
        return any(part in kind for kind in examples)

    separators: tuple[GroupMark, ...] = (" ", "'")
    spaced = [mark for mark in separators if says(f"{mark!r} between")]
    has_points = says("decimal point")
    has_commas = says("decimal comma")
    by_points = says("point between")
    by_commas = says("comma between")
    if (
        len(spaced) + by_points + by_commas > 1
        or (has_points and (has_commas or by_points))
        or (has_commas and by_commas)
    ):
        return Marks()
    point = examples.get("either point", "")
    comma = examples.get("either comma", "")
    group: GroupMark = next(iter(spaced), "")
    if has_points or by_commas:
        return Marks(".", "," if by_commas or (comma and not group) else group)
    if has_commas or by_points:
        return Marks(",", "." if by_points or (point and not group) else group)
    return Marks(".", group, comma or point)


def _find_evidence(cell: str) -> str:
    if not any(mark in cell for mark in ",.' "):
        return "none" if EVIDENCE["none"].fullmatch(cell) else ""
    if found := CURRENCY.fullmatch(cell) or WITH_UNIT.fullmatch(cell):
        cell = found["number"]
    elif flagged := find_flag(cell):
        cell = flagged.number
    return next((kind for kind, pattern in EVIDENCE.items() if pattern.fullmatch(cell)), "")
