"""Read cells as numbers or categories, and explain cells that are almost numbers."""

import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import text_if

from .ages import is_of_years, parse_age
from .grammar import LETTER, explain_pattern, find_numbers, is_band
from .schema import MAX_CATEGORIES, MISSING_VALUES, Decimal, SchemaFile, fold_cell, normalise

# The markers of a missing value, unless a schema has others.
MISSING = {each.casefold() for each in MISSING_VALUES}

# Rows that show whether a column of numbers has many different ones.
SAMPLE = 5_000

# Numbers, which of them are invalid, and which are missing.
Numbers = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]

# The largest number: squares of larger ones could not be summed.
MAX_NUMBER = 1e100

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
POINT_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
ANY_NUMBER = r"[+-]?(?:[0-9]{1,3}(?:[ '.,][0-9]{3})+(?:[.,][0-9]+)?|[0-9]*[.,]?[0-9]+)"
WITH_UNIT = re.compile(  # kg/m2 is a unit, and 0xff is no number with one
    rf"(?!0[xX])(?P<number>{ANY_NUMBER})\s*"
    rf"(?P<unit>(?:{LETTER}|[%‰°$€£¥'\"′″])(?:\D|(?<=[a-z])[23](?!\d))*?)\s*"
)
OF_UNITS = str.maketrans({"2": "[2²]", "3": "[3³]", "μ": "[μµ]"})  # kg/m² is kg/m2
CURRENCY = re.compile(rf"(?P<unit>[$€£¥₹]|CHF|EUR|GBP|USD)\s*(?P<number>{ANY_NUMBER})")

# A code that could be a number, unlike 1e+20 and 1.5E3, which programs write.
CODE = re.compile("[0-9]{1,4}[eE][0-9]{1,4}")

# A unit, or a flag: high, low, very high, very low.
FLAG = rf"(?:{LETTER}|HH|LL)"

WRITE_OR_MISSING = "write a number, or add it to fields.{name}.missingValues"
WITHOUT_UNIT = "write {number}, or say unit = {unit!r} in fields.{name}"

NO_TEXT = re.compile("(?!)")

# The signs that make a cell differ from a number by kind: its pattern, the problem and the remedy.
SIGNS = {
    "minus": (
        re.compile(
            "(?P<sign>[\u2010-\u2015\u2212\ufe63\uff0d])(?P<positive>[0-9.,]+([eE][0-9]+)?)"
        ),
        "a number with the sign {sign!r} (U+{code:04X}) for a minus",
        "write -{positive}, with a hyphen",
    ),
    "range": (  # 30-59, 60+
        re.compile(r"[0-9.,]+\s*([-\u2010-\u2015]\s*[0-9.,]+|\+)"),
        "a range and no number",
        WRITE_OR_MISSING,
    ),
    "bound": (
        re.compile(r"[<>≤≥~≈]=?\s*[0-9.,]+"),
        "a bound and no number",
        WRITE_OR_MISSING,
    ),
    "thousands": (
        re.compile(r"[+-]?[0-9]{1,3}(?P<sign>[ '’_.,])[0-9]{3}([ '’_.,][0-9]{3})*([.,][0-9]+)?"),
        "a number with {sign!r} between thousands",
        "write it without, or say groupChar = {sign!r}{decimal} under [files.{file!r}] in the"
        " schema",
    ),
    "mark": (
        re.compile("[+-]?[0-9]*(?P<sign>[.,])[0-9]+"),
        "a number with a decimal {mark}",
        "write {exchanged}, or say decimalChar = {sign!r} under [files.{file!r}] in the schema",
    ),
    "currency": (CURRENCY, "a number with the unit {unit!r}", WITHOUT_UNIT),
    "clock": (
        re.compile("[0-9]{1,2}:[0-5][0-9](:[0-5][0-9])?"),
        "a time and no number",
        "write hours, 10.5 for 10:30, or put {name} in ignore",
    ),
    "deviation": (
        re.compile(rf"(?P<number>{ANY_NUMBER})\s*(±|\+/-)\s*[0-9.,]+"),
        "a number with its deviation",
        "write {number}, and the deviation into a column of its own",
    ),
    "unit": (WITH_UNIT, "a number with the unit {unit!r}", WITHOUT_UNIT),
    "size": (
        NO_TEXT,
        f"and numbers are at most {MAX_NUMBER:g}",
        "correct it, or leave the cell empty",
    ),
    "": (
        NO_TEXT,
        "which is not a number",
        "correct it, leave the cell empty, or add it to fields.{name}.missingValues",
    ),
}


def parse_number(cell: str, decimal: Decimal = ".") -> float | None:
    """Return the number in a cell; None if it is not a number, or has the other decimal mark."""
    if decimal == ",":
        if "." in cell:
            return None
        cell = cell.replace(",", ".")
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def format_number(value: float, decimal: Decimal = ".") -> str:
    """Return a number as a text: 1 for 1.0, so that it is class 1, and "" for NaN."""
    if value != value:
        return ""
    if abs(value) < 2**53 and value == int(value):
        return str(int(value))
    return repr(float(value)).replace(".", decimal)


def canonical(cell: str, decimal: Decimal = ".") -> str:
    """Return the name of a category or class: "4" for "4.0", or with decimal commas for "4,0"."""
    if decimal == ",":
        if parse_number(cell, decimal) is None:  # a point may be between thousands
            return cell
        cell = cell.replace(",", ".")
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell


def fold_value(cell: str, decimal: Decimal = ".") -> str:
    """Return a client's name for comparisons: North is north, 1.0 is 1, and ’ is an apostrophe."""
    return fold_cell(canonical(normalise(cell), decimal))


def shorten(text: str) -> str:
    """Return a text as an error shows it: its beginning, with invisible characters escaped."""
    return "".join(
        letter
        if letter.isprintable() and not unicodedata.combining(letter)
        else ascii(letter)[1:-1]
        for letter in (text if len(text) <= 40 else f"{text[:40]}…")
    )


def different_cells(values: Any) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct cells of a column as texts, then "", and the index of each row's cell."""
    coded = values.dictionary_encode().combine_chunks()
    cells = coded.dictionary.to_pylist()
    if str(values.type) != "string":
        cells = [format_number(cell) if isinstance(cell, float) else str(cell) for cell in cells]
    return [*cells, ""], np.from_dlpack(coded.indices.fill_null(len(cells))).astype(np.int32)


def parse_numbers(
    values: Any, file: SchemaFile, units: Collection[str], missing: Collection[str]
) -> Numbers:
    """Return a column's numbers (else NaN), which cells are not numbers, and which are missing.

    `units` may stand at the numbers, in brackets or not; if one is that of years, ages in other
    units are read as years. `missing` are texts in lower case.
    """
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import compute

    codes = [number for text in missing if (number := parse_number(text)) is not None]
    decimal = file.decimalChar or "."
    group = file.groupChar
    if not pa.types.is_string(values.type):
        numbers = to_array(values.cast(pa.float64(), safe=False).fill_null(np.nan))
        return _judge(numbers, np.isnan(numbers), codes)
    if decimal == "." and not group:
        try:
            numbers = to_array(values.cast(pa.float64()))
            if not np.isnan(numbers).any():
                return _judge(numbers, np.zeros(len(numbers), np.bool_), codes)
        except pa.ArrowInvalid:
            pass  # some may be missing, or not numbers: the slow way below
    texts = compute.utf8_trim_whitespace(values)
    markers = pa.array([*missing], pa.string())
    gone = to_array(compute.is_in(compute.utf8_lower(texts), markers))
    if any(map(is_of_years, units)):
        texts = _write_years(texts, decimal)
    for unit in units:
        sign = re.escape(unicodedata.normalize("NFKC", unit)).translate(OF_UNITS)
        bracketed = rf"[(\[]\s*{sign}\s*[)\]]"
        between = r"\s+"  # a letter before a number is a code
        if CURRENCY.fullmatch(f"{unit}0") or not any(map(str.isalnum, unit)):
            between = r"\s*"
        for pattern in (
            rf"^([0-9.,+\- ]+?)\s*(?:{sign}|{bracketed})$",
            rf"^(?:{sign}{between}|{bracketed}\s*)([0-9.,+\-][0-9.,+\- ]*)$",
        ):
            texts = compute.replace_substring_regex(texts, pattern, r"\1")
    if group:
        texts = compute.replace_substring_regex(texts, "[\u00a0\u2009\u202f]", " ")
        pattern = (
            rf"^[+-]?[0-9]{{1,3}}({re.escape(group)}[0-9]{{3}})+({re.escape(decimal)}[0-9]+)?$"
        )
        texts = compute.if_else(
            compute.match_substring_regex(texts, pattern),
            compute.replace_substring(texts, group, ""),
            texts,
        )
    if decimal == ",":
        without_points = compute.replace_substring(texts, ".", "!")
        texts = compute.replace_substring(without_points, ",", ".")
    is_number = compute.match_substring_regex(texts, f"^{POINT_NUMBER}$")
    parsed = compute.if_else(is_number, texts, "nan").cast(pa.float64())
    return _judge(to_array(parsed), gone, codes)


def _write_years(texts: Any, decimal: Decimal) -> Any:
    """Return a column in which ages with their units are numbers of years."""
    import pyarrow as pa  # imported late: a server reads no tables

    coded = texts.dictionary_encode().combine_chunks()
    written = list[str]()
    for text in coded.dictionary.to_pylist():
        years = parse_age(text)
        written.append(text if years is None else format_number(years, decimal))
    cells = pa.array(written, pa.string())
    return pa.chunked_array([cells.take(coded.indices)])


def _judge(
    numbers: NDArray[np.float64], gone: NDArray[np.bool_], codes: Collection[float]
) -> Numbers:
    """Return numbers, which of them are invalid, and which are missing: `gone`, or in `codes`."""
    is_missing = gone | np.isin(numbers, [*codes])
    return numbers, ~is_missing & ~(np.abs(numbers) <= MAX_NUMBER), is_missing


def parse_texts(
    texts: Sequence[str], file: SchemaFile, units: Collection[str], missing: Collection[str]
) -> Numbers:
    """Return the numbers in texts, as `parse_numbers` does."""
    import pyarrow as pa  # imported late: a server reads no tables

    cells = pa.chunked_array([pa.array(texts, pa.string())])
    return parse_numbers(cells, file, units, missing)


@dataclass(frozen=True, eq=False)
class FileColumn:
    """The different cells of a file's column, then "", and the index of each row's cell.

    A column of many numbers has a cell for each row, and no `texts`.
    """

    texts: Sequence[str]
    codes: NDArray[np.int32]
    numbers: NDArray[np.float64]
    is_wrong: NDArray[np.bool_]
    is_missing: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        values: Any,
        file: SchemaFile,
        units: Collection[str] = (),
        missing: Collection[str] = MISSING,
    ) -> "FileColumn":
        """Return a column of a file that writes its numbers as `file` says.

        `units` may follow the numbers; `missing` are the markers of a missing value, in lower case.
        """
        sample = parse_numbers(values.slice(0, SAMPLE), file, units, missing)
        if len(np.unique(sample[0])) > MAX_CATEGORIES and not sample[1].any():
            numbers, is_wrong, is_missing = parse_numbers(values, file, units, missing)
            if not is_wrong.any():
                return cls(
                    (), np.arange(len(values), dtype=np.int32), numbers, is_wrong, is_missing
                )
        texts, codes = different_cells(values)
        how = file if str(values.type) == "string" else SchemaFile()  # numbers need no decimal mark
        numbers, is_wrong, is_missing = parse_texts(texts, how, units, missing)
        is_code = np.array(["e" in text.casefold() for text in texts]) & ~np.isnan(numbers)
        if all(CODE.fullmatch(texts[place].strip()) for place in np.flatnonzero(is_code).tolist()):
            numbers[is_code] = np.nan
            is_wrong |= is_code
        return cls(texts, codes, numbers, is_wrong, is_missing)


def to_array(values: Any) -> NDArray[Any]:
    """Return a copy of a column as a NumPy array."""
    array = values.combine_chunks()
    if str(array.type) == "bool":
        return np.array(np.from_dlpack(array.cast("uint8")), np.bool_)
    return np.array(np.from_dlpack(array))  # to_numpy would import pandas if it is installed


def find_sign(cell: str) -> str:
    """Return which of SIGNS makes a cell differ from a number, or "size"; "" for another text."""
    text = normalise(cell)
    number = parse_number(text)
    return next(
        (kind for kind, (pattern, _, _) in SIGNS.items() if pattern.fullmatch(text)),
        text_if(number is not None and abs(number) > MAX_NUMBER, "size"),
    )


def explain_number(cell: str, decimal: Decimal, name: str, unit: str, file: str) -> tuple[str, str]:
    """Return the problem of a cell that is not a number, and the remedy in the cell or the schema.

    `name` is the column's name, `unit` the unit of its numbers ("": none), `file` the file's name.
    """
    text = canonical(normalise(cell), decimal)  # as a draft names it
    kind = find_sign(text)
    if find_numbers(text) and (not kind or (kind == "range" and not is_band(text))):
        return explain_pattern(text, name)
    pattern, problem, remedy = SIGNS[kind]
    found = pattern.fullmatch(text)
    values: dict[str, Any] = found.groupdict() if found else {}
    other = "," if decimal == "." else "."
    if values.get("unit") == "%":
        problem = "a number with a per cent sign"
    if unit and values.get("unit", unit) != unit:
        remedy = (
            "write it in {own}; for a whole file say fields.{name} = {{unit, factor, offset}}"
            " under [files.{file!r}]"
        )
    if re.fullmatch(FLAG, values.get("unit", "")):
        remedy = f"if {{unit!r}} is a flag, add it to flags of fields.{{name}}, or else {remedy}"
    values |= {
        "name": name,
        "own": unit,
        "file": file,
        "code": ord(text[:1] or " "),
        "mark": "comma" if other == "," else "point",
        "exchanged": text.replace(other, decimal),
        "decimal": text_if(
            values.get("sign") == other, f", or decimalChar = {other!r} if it is the decimal mark"
        ),
    }
    return problem.format(**values), remedy.format(**values)


def sort_classes(classes: Collection[str]) -> list[str]:
    """Return classes in ascending order: as numbers if all of them are, else as texts."""
    values = {name: parse_number(name) for name in classes}
    if all(value is not None and math.isfinite(value) for value in values.values()):
        return sorted(classes, key=lambda name: (values[name], name))
    return sorted(classes)
