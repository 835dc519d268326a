"""Columns of texts that may say who a row is about: dates, numbers of persons, and texts that hardly ever recur."""

import re
from collections.abc import Collection

MONTH = r"(jan|feb|mar|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[^\W\d_]*\.?"
TIME = r"([T ]+[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?( ?[ap]m)?( ?(Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
DATE = re.compile(
    rf"([0-9]{{4}}([-/.])[0-9]{{1,2}}(\2[0-9]{{1,2}})?"  # 2024-03-17, 2024-03
    rf"|[0-9]{{1,2}}([-/.])[0-9]{{1,2}}\4([0-9]{{4}}|[0-9]{{2}})"  # 17.03.2024, 3/17/24
    rf"|[0-9]{{1,2}}\.?[ -]?{MONTH}[ -]?[0-9]{{2,4}}"  # 17 March 2024, 17-Mar-24
    rf"|{MONTH} ?[0-9]{{1,2}}(st|nd|rd|th)?,? [0-9]{{4}}){TIME}",  # March 17th, 2024
    re.IGNORECASE,
)

EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
NUMBERED = re.compile(r"(?=.*[^\W\d_])[\w./:#-]*[0-9]{4,}[\w./:#-]*")
"""Letters and a number of four digits or more, in one word: MRN-004711, 4711/B."""

HEXADECIMAL = re.compile(r"(?=.*[0-9])(?=.*[a-f])[0-9a-f]{8}[0-9a-f-]*", re.IGNORECASE)
DIGITS = re.compile(r"[+(]?[0-9][0-9 ()/.:-]*")
RANGE = re.compile(r"([0-9]+) ?[-–] ?([0-9]+)")


def nearly_all_differ(different: int, rows: int) -> bool:
    """Return whether nearly every row has a different text, as with names, addresses or remarks."""
    return rows >= 20 and different >= 0.9 * rows


def look_like_dates(texts: Collection[str]) -> bool:
    """Return whether most of these texts are dates."""
    return 2 * sum(map(is_date, texts)) > len(texts)


def look_like_identifiers(texts: Collection[str]) -> bool:
    """Return whether most of these texts are numbers of persons or cases, e-mail addresses or telephone numbers."""
    return 2 * sum(map(is_identifier, texts)) > len(texts)


def is_date(text: str) -> bool:
    """Return whether a text is a date, with or without a time."""
    return DATE.fullmatch(text) is not None


def is_email(text: str) -> bool:
    """Return whether a text is an e-mail address."""
    return EMAIL.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """Return whether a text is the number of a person or case, an e-mail address or a telephone number."""
    return is_email(text) or any(each.fullmatch(text) for each in (NUMBERED, HEXADECIMAL)) or _has_many_digits(text)


def _has_many_digits(text: str) -> bool:
    """Return whether a text is of nine digits or more, as telephone and insurance numbers are, and no range."""
    if DIGITS.fullmatch(text) is None or sum(map(str.isdigit, text)) < 9:
        return False
    ends = RANGE.fullmatch(text)
    return ends is None or ends[1].startswith("0") or int(ends[1]) >= int(ends[2])
