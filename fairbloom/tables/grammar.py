"""The ways in which systems write numbers: 0x4e, 5.5×10³, 5.3D+01, (123), 120/80, 80 CR.

A grammar, not a list: marks, signs, powers and at most two words may be around one or two numbers.
Codes and bands are no numbers: E11.9, T2N0, 007, 40-49.
"""

import re
from collections.abc import Collection
from itertools import islice

# A letter; Python takes superscripts, fractions and circled digits for letters.
LETTER = r"[^\W\d_²³¹¼-¾\u2070-\u209c⅐-⅟①-⓿]"

# No number begins with a 0 before another digit, as codes and telephone numbers do.
NUMBER_IN_TEXT = re.compile(
    r"""(?<![\d.,])
    (?: 0[xX][0-9a-fA-F]+ | 0[oO][0-7]+ | 0[bB][01]+
    | (?: (?!0\d)\d{1,3}(?:[ '’´`_.,٬]\d{3})+ | \d{1,2}(?:,\d\d)+,\d{3} | (?!0\d)\d+ )  # 1,23,456
      (?: [.,٫·]\d+ (?: \s?[eEdD]\d+ )? )?  # a code has neither a point nor a sign: 4E1
      (?: \s? (?: [eEdD]\s?[+-] | [x×*·⋅]\s?10(?:\^|\*\*|(?=[⁰¹²³⁴-⁹⁺⁻]))[+⁺⁻-]? ) [\d⁰¹²³⁴-⁹]+ )?
    ) (?!\d)""",
    re.VERBOSE,
)
WORD = re.compile(rf"{LETTER}+(?:[./^*·-]?{LETTER}+)*")

# What codes have, and numbers do not, if \0 stands for each number: further digits, letters before
# a number or between two, unless they are units of time or length. A long word before it names a
# room or a grade.
CODE = re.compile(
    rf"\d|;|^\*|\0_\0|(?:^|[^\w\0]){LETTER}+\0|\0(?!(?:[dhmswxy]|ft|min)\0){LETTER}+\0"
    rf"|^{LETTER}+[-_/#*]|\0-{LETTER}\b|^{LETTER}{{4,}} "
)

# Digits of units, of kg/m2 and ml/min/1.73m²; and those that a pattern has an N for.
OF_UNIT = re.compile(r"(?<=[a-z])(?<!0[xob])[23](?!\d)|(?<=[a-z]/)\s?\d+(?:[.,]\d+)?(?=\s?[a-z])")
DIGITS = re.compile(r"(?<=0[xob])[0-9a-fA-F]+|(?!0[xob])\d+(?:[.,]\d+)?")

# Codes with a suffix: a check digit, a kind of tumour, the end of a postal code.
SUFFIXED = re.compile(r"\d+-\d|\d{4,}/\d|\d{5,}-\d+")

# Characters that are read; words around the numbers of a cell, and such words in a column.
LONGEST = 60
MAX_WORDS = 2

# Columns with more different values are no codes; share of them that must be numbers, and how many
# show it.
FEW_VALUES = 12
NEARLY_ALL = 0.95
SAMPLE = 1_000


def find_numbers(text: str) -> list[str]:
    """Return the one or two numbers that a normalised cell holds; [] if it is a code or a text."""
    text = OF_UNIT.sub("", text[:LONGEST])
    rest = NUMBER_IN_TEXT.sub("\0", text)
    numbers = [found[0] for found in NUMBER_IN_TEXT.finditer(text)]
    is_other = CODE.search(rest) or len(WORD.findall(rest)) > MAX_WORDS or len(numbers) > 2
    return [] if is_other else numbers


def explain_pattern(text: str, name: str) -> tuple[str, str]:
    """Return the problem and the remedy of a cell that holds numbers; `name` is the column's."""
    numbers = find_numbers(text)
    pattern = DIGITS.sub("N", text)
    if len(numbers) == 2:
        return (
            f"two numbers written as {pattern!r}",
            f"write {' and '.join(numbers)} into columns of their own, or put {name} in ignore",
        )
    return (
        f"a number written as {pattern!r}",
        "write only digits and a decimal point, as in -1234.5 or 1.2e5",
    )


def are_numbers(texts: Collection[str], more: int) -> bool:
    """Return whether nearly all of many different cells hold numbers; `more` are plain ones."""
    cells = {text: find_numbers(text) for text in islice(texts, SAMPLE)}
    written = {text: numbers for text, numbers in cells.items() if numbers}
    words = {" ".join(WORD.findall(DIGITS.sub("", text))).casefold() for text in written}
    pairs = [text for text, numbers in written.items() if len(numbers) == 2]
    bands = [text for text in pairs if is_band(text)]
    # Few bands begin or end with the same number, unlike 1 h 20 min and 1 h 30 min, or 28/30.
    spoken = [written[text] for text in bands if not re.search(r"[-–]|\d{4}/\d$", text)]
    fewest = min((len({*each}) for each in zip(*spoken, strict=True)), default=0)
    are_bands = len(bands) > NEARLY_ALL * len(pairs) and not 0 < 2 * fewest <= len(bands)
    return (
        len(texts) + more > FEW_VALUES
        and len(written) >= NEARLY_ALL * len(cells)
        and len(words - {""}) <= MAX_WORDS
        and not are_bands
    )


def is_band(text: str) -> bool:
    """Return whether a cell is a range, 40-49 or 40 to 49, or a code with a suffix."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text.replace(",", "."))]
    return len(numbers) == 2 and (numbers[0] < numbers[1] or bool(SUFFIXED.fullmatch(text)))
