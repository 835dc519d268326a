"""Read cells as numbers or categories, and explain cells that are almost numbers."""

import math
import re
import unicodedata
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grammar import LETTER, explain_pattern, find_numbers, is_band
from .schema import Decimal, File, fold, fold_cell, normalise

# The largest number: squares of larger ones could not be summed.
MAX_NUMBER = 1e100

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
MINUS = re.compile("[\u2010-\u2015\u2212\ufe63\uff0d]")
NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
GROUPED = re.compile(r"[+-]?[0-9]{1,3}([ '’_.,])[0-9]{3}([ '’_.,][0-9]{3})*([.,][0-9]+)?")
ANY_NUMBER = r"[+-]?(?:[0-9]{1,3}(?:[ '.,][0-9]{3})+(?:[.,][0-9]+)?|[0-9]*[.,]?[0-9]+)"
WITH_UNIT = re.compile(  # kg/m2 is a unit, and 0xff is no number with one
    rf"(?!0[xX])(?P<number>{ANY_NUMBER})\s*"
    rf"(?P<unit>(?:{LETTER}|[%‰°$€£¥'\"′″])(?:\D|(?<=[a-z])[23](?!\d))*?)\s*"
)
OF_UNITS = {"2": "[2²]", "3": "[3³]", "μ": "[μµ]"}  # signs that units are written with
CURRENCY = re.compile(rf"(?P<unit>[$€£¥₹]|CHF|EUR|GBP|USD)\s*(?P<number>{ANY_NUMBER})")
BOUND = re.compile(r"[<>≤≥~≈]=?\s*[0-9.,]+")
CLOCK = re.compile(r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-5][0-9])(:[0-5][0-9])?")
DEVIATION = re.compile(rf"(?P<number>{ANY_NUMBER})\s*(±|\+/-)\s*[0-9.,]+")
RANGE = re.compile(r"[0-9.,]+\s*([-\u2010-\u2015]\s*[0-9.,]+|\+)")  # 30-59, 60+


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
    """Return the name of a category or class: "4" for "4.0", and for "4,0" with decimal commas."""
    if decimal == "," and "," in cell and parse_number(cell, decimal) is not None:
        cell = cell.replace(",", ".")
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell


def fold_value(cell: str, decimal: Decimal = ".") -> str:
    """Return a client's name for comparisons: North is north, 1.0 is 1, and ’ is an apostrophe."""
    return fold_cell(canonical(normalise(cell), decimal))


def shorten(text: str) -> str:
    """Return a text as an error shows it: its beginning, with invisible characters escaped."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return "".join(
        each if each.isprintable() and not unicodedata.combining(each) else ascii(each)[1:-1]
        for each in shown
    )


def different_cells(values: Any) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct cells of a column as texts, then "", and the index of each row's cell."""
    coded = values.dictionary_encode().combine_chunks()
    cells = coded.dictionary.to_pylist()
    if str(values.type) != "string":
        cells = [format_number(each) if isinstance(each, float) else str(each) for each in cells]
    return [*cells, ""], np.from_dlpack(coded.indices.fill_null(len(cells))).astype(np.int32)


def parse_numbers(
    values: Any, file: File, units: Collection[str], missing: Collection[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a column's numbers (else NaN), which cells are not numbers, and which are missing.

    `units` may follow the numbers; `missing` are texts in lower case.
    """
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import compute

    codes = [number for each in missing if (number := parse_number(each)) is not None]
    decimal = file.decimalChar or "."
    group = file.groupChar
    if not pa.types.is_string(values.type):
        numbers = _to_array(values.cast(pa.float64(), safe=False).fill_null(np.nan))
        return _judge(numbers, np.isnan(numbers), codes)
    if decimal == "." and not group:
        try:
            numbers = _to_array(values.cast(pa.float64()))
            if not np.isnan(numbers).any():
                return _judge(numbers, np.zeros(len(numbers), np.bool_), codes)
        except pa.ArrowInvalid:
            pass  # some may be missing, or not numbers: the slow way below
    texts = compute.utf8_trim_whitespace(values)
    gone = _to_array(compute.is_in(compute.utf8_lower(texts), pa.array([*missing], pa.string())))
    for unit in units:
        signs = unicodedata.normalize("NFKC", unit)
        sign = "".join(OF_UNITS.get(each, re.escape(each)) for each in signs)
        texts = compute.replace_substring_regex(texts, rf"^([0-9.,+\- ]+?)\s*{sign}$", r"\1")
        if CURRENCY.fullmatch(f"{unit}0"):
            texts = compute.replace_substring_regex(texts, rf"^{sign}\s*([0-9.,+\- ]+)$", r"\1")
    if group:
        texts = compute.replace_substring_regex(texts, "[\u00a0\u2009\u202f]", " ")
        pattern = (
            rf"^[+-]?[0-9]{{1,3}}({re.escape(group)}[0-9]{{3}})+({re.escape(decimal)}[0-9]+)?$"
        )
        plain = compute.replace_substring(texts, group, "")
        texts = compute.if_else(compute.match_substring_regex(texts, pattern), plain, texts)
    if decimal == ",":
        texts = compute.replace_substring(compute.replace_substring(texts, ".", "!"), ",", ".")
    is_number = compute.match_substring_regex(texts, f"^{NUMBER}$")
    return _judge(
        _to_array(compute.if_else(is_number, texts, "nan").cast(pa.float64())), gone, codes
    )


def _judge(
    numbers: NDArray[np.float64], gone: NDArray[np.bool_], codes: Collection[float]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return numbers, which of them are invalid, and which are missing: `gone`, or in `codes`."""
    is_missing = gone | np.isin(numbers, [*codes])
    return numbers, ~is_missing & ~(np.abs(numbers) <= MAX_NUMBER), is_missing


def _to_array(values: Any) -> NDArray[Any]:
    """Return a copy of a column as a NumPy array."""
    array = values.combine_chunks()
    if str(array.type) == "bool":
        return np.array(np.from_dlpack(array.cast("uint8")), np.bool_)
    return np.array(np.from_dlpack(array))  # to_numpy would import pandas if it is installed


def find_sign(cell: str, decimal: Decimal = ".") -> str:
    """Return which sign makes a cell differ from a number; "" if it is another text.

    The kinds are minus, range, bound, thousands, mark (a decimal mark), currency, clock, deviation,
    unit and size.
    """
    text = normalise(cell)
    other = "," if decimal == "." else "."
    if MINUS.search(text) and parse_number(MINUS.sub("-", text).replace(",", ".")) is not None:
        return "minus"
    patterns = {
        "range": RANGE,
        "bound": BOUND,
        "thousands": GROUPED,
        "mark": re.compile(rf"[+-]?[0-9]*\{other}[0-9]+"),
        "currency": CURRENCY,
        "clock": CLOCK,
        "deviation": DEVIATION,
        "unit": WITH_UNIT,
    }
    for kind, pattern in patterns.items():
        if pattern.fullmatch(text):
            return kind
    number = parse_number(text)
    return "size" if number is not None and abs(number) > MAX_NUMBER else ""


def explain_number(cell: str, decimal: Decimal, name: str, unit: str, file: str) -> tuple[str, str]:
    """Return the problem of a cell that is not a number, and the remedy in the cell or the schema.

    `name` is the column's name, `unit` the unit of its numbers ("": none), `file` the file's name.
    """
    text = normalise(cell)
    other = "," if decimal == "." else "."
    own_file = f"[files.{file!r}]"
    kind = find_sign(cell, decimal)
    if kind == "minus" and (sign := MINUS.search(text)):
        return (
            f"a number with the sign {sign[0]!r} (U+{ord(sign[0]):04X}) for a minus",
            f"write {MINUS.sub('-', text)}, with a hyphen",
        )
    if find_numbers(text) and (not kind or (kind == "range" and not is_band(text))):
        return explain_pattern(text, name)
    if kind in ("bound", "range"):
        return (
            f"a {kind} and no number",
            f"write a number, or add it to fields.{name}.missingValues",
        )
    if kind == "thousands" and (found := GROUPED.fullmatch(text)):
        mark = found[1]
        keys = f"groupChar = {mark!r}"
        if mark == other:
            keys += f", or decimalChar = {mark!r} if it is the decimal mark"
        return (
            f"a number with {mark!r} between thousands",
            f"write it without, or say {keys} under {own_file} in the schema",
        )
    if kind == "mark":
        mark_name = "comma" if other == "," else "point"
        return (
            f"a number with a decimal {mark_name}",
            f"write {text.replace(other, decimal)}, or say decimalChar = {other!r} under {own_file}"
            " in the schema",
        )
    if kind == "clock" and (found := CLOCK.fullmatch(text)):
        hours = int(found["hour"]) + int(found["minute"]) / 60
        return "a time and no number", f"write hours, {hours:.4g}, or put {name} in ignore"
    if kind == "deviation" and (found := DEVIATION.fullmatch(text)):
        return (
            "a number with its deviation",
            f"write {found['number']}, and the deviation into a column of its own",
        )
    if kind in ("unit", "currency") and (
        found := WITH_UNIT.fullmatch(text) or CURRENCY.fullmatch(text)
    ):
        remedy = f"write {found['number']}, or say unit = {found['unit']!r} in fields.{name}"
        if unit and fold(unit) != fold(found["unit"]):
            remedy = (
                f"write it in {unit}; for a whole file say fields.{name} = {{unit, factor}} under"
                f" {own_file}"
            )
        sign_or_unit = "a per cent sign" if found["unit"] == "%" else f"the unit {found['unit']!r}"
        return f"a number with {sign_or_unit}", remedy
    if kind == "size":
        return f"and numbers are at most {MAX_NUMBER:g}", "correct it, or leave the cell empty"
    return (
        "which is not a number",
        f"correct it, leave the cell empty, or add it to fields.{name}.missingValues",
    )


def sort_classes(classes: Collection[str]) -> list[str]:
    """Return classes in ascending order: as numbers if all of them are, else as texts."""
    values = {name: parse_number(name) for name in classes}
    if all(value is not None and math.isfinite(value) for value in values.values()):
        return sorted(classes, key=lambda name: (values[name], name))
    return sorted(classes)
