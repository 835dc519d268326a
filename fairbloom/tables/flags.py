"""Flags at numbers, as laboratories write them: 5.1 H, N 4.2, 4.2 (L), 4.2*.

They say how a number is, and are no part of it: they are on either side, in brackets or not.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from .cells import FLAG
from .grammar import FEW_VALUES, NEARLY_ALL

# Flags as they are usual: high, low, normal, abnormal, critical, panic.
USUAL = "h l n a c p hh ll nn aa * ** ! ↑ ↓ ↑↑ ↓↓"
WORDS = (
    "high low normal abnormal critical crit hoch tief niedrig erhöht haut bas élevé alto alta bajo"
    " baja basso bassa baixo baixa"
)
KNOWN = frozenset(f"{USUAL} {WORDS}".split())

# A letter may be a code, and one behind a number a unit: blanks, brackets or decimals tell them
# apart. A sign is neither.
SIGN = "[*!↑↓]+"
MARK = rf"{FLAG}|{SIGN}|(?i:{WORDS.replace(' ', '|')})"
NUMBER = r"[+-]?[0-9]+(?:[.,][0-9]+)?"
AFTER = re.compile(rf"(?:[+-]?[0-9]+[.,][0-9]+ ?|{NUMBER} )({MARK})|{NUMBER}({SIGN})")
BRACKETED = re.compile(rf"{NUMBER} ?[(\[] ?({MARK}) ?[)\]]|[(\[] ?({MARK}) ?[)\]] ?{NUMBER}")
BEFORE = re.compile(rf"({MARK}) {NUMBER}|({SIGN}){NUMBER}")

# Letters of one of these kinds are units: temperatures, times, weights.
UNIT_LETTERS = ("cfk", "smhdwyja", "gtk")

# Flags of a column.
MAX_FLAGS = 8


class Flagged(NamedTuple):
    """A cell's flag, its number, and whether the flag stands where a unit may."""

    flag: str
    number: str
    may_be_unit: bool


def find_flag(text: str) -> Flagged | None:
    """Return the flag at the number in a cell; None for another form."""
    for pattern in (AFTER, BRACKETED, BEFORE):
        found = pattern.fullmatch(text)
        if found:
            flag = next(filter(None, found.groups()))
            number = text.replace(flag, "").strip(" ()[]")
            return Flagged(flag, number, pattern is AFTER and not re.fullmatch(SIGN, flag))
    return None


def find_flags(texts: Collection[str], more: int) -> list[str]:
    """Return the flags of a column's different texts, [] of units or codes; `more` are numbers.

    Where they may be units, there are two of them at least, which are not units together.
    """
    found = {text: each for text in texts if (each := find_flag(text)) is not None}
    if len(texts) + more <= FEW_VALUES or len(found) < NEARLY_ALL * max(len(texts), 1):
        return []
    flags = {each.flag for each in found.values()}
    names = {flag.casefold() for flag in flags}
    may_be_units = all(each.may_be_unit for each in found.values())
    letters = {*"".join(names)}
    are_units = len(flags) == 1 or any(letters <= {*units} for units in UNIT_LETTERS)
    are_codes = not any(re.search("[.,]", text) for text in found)
    if may_be_units:
        are_flags = not are_units
    else:  # A 12 may be a ward, unless all letters are usual
        are_flags = names <= KNOWN or not (are_codes or len(flags) == 1)
    return sorted(flags) if are_flags and len(flags) <= MAX_FLAGS else []
