"""Cells as numbers and texts: what a number is, and what is odd about a cell that is nearly one."""

import re
import unicodedata
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schema import Decimal, File, normalise

MAX_NUMBER = 1e100
"""Numbers beyond cannot be squared and summed."""

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
MINUS = re.compile("[\u2010-\u2015\u2212\ufe63\uff0d]")
NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
GROUPED = re.compile(r"[+-]?[0-9]{1,3}([ '.,])[0-9]{3}([ '.,][0-9]{3})*([.,][0-9]+)?")
WITH_UNIT = re.compile(r"(?P<number>[+-]?[0-9]*[.,]?[0-9]+)\s*(?P<unit>[^\d\s.,][^\d]*?)\s*")
BOUND = re.compile(r"[<>≤≥~≈]=?\s*[0-9.,]+")


def parse_number(cell: str, decimal: Decimal = ".") -> float | None:
    """Return the number that a cell holds, None where it holds none, or the other decimal mark."""
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
    text = str(int(value)) if abs(value) < 2**53 and value == int(value) else repr(float(value))
    return text.replace(".", decimal)


def canonical(cell: str, decimal: Decimal = ".") -> str:
    """Return the name of a category or class: 4.0 is 4, as is 4,0 where commas are decimal marks."""
    if decimal == "," and "," in cell and parse_number(cell, decimal) is not None:
        cell = cell.replace(",", ".")
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell


def shorten(text: str) -> str:
    """Return a text as an error shows it: its beginning, and what cannot be seen by its number."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return "".join(
        each if each.isprintable() and not unicodedata.combining(each) else ascii(each)[1:-1]
        for each in shown
    )


def different_cells(values: Any) -> tuple[list[str], NDArray[np.int32]]:
    """Return the different cells of a column as texts, "" behind them, and which of them each row has."""
    import pyarrow as pa  # imported late: a server reads no tables

    coded = values.dictionary_encode().combine_chunks()
    cells = coded.dictionary.to_pylist()
    if not pa.types.is_string(values.type):
        cells = [format_number(each) if isinstance(each, float) else str(each) for each in cells]
    codes = np.from_dlpack(coded.indices.fill_null(len(cells)))
    return [*cells, ""], codes.astype(np.int32)


def parse_numbers(
    values: Any, file: File, units: Collection[str], missing: Collection[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the numbers of a column, NaN for others; which cells are no numbers.

    And which are missing values.

    `units` may stand behind the numbers; `missing` are texts in small letters.
    """
    import pyarrow as pa
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
            pass  # some of them may be missing, or no numbers
    texts = compute.utf8_trim_whitespace(values)
    gone = _to_array(compute.is_in(compute.utf8_lower(texts), pa.array([*missing], pa.string())))
    for unit in units:
        texts = compute.replace_substring_regex(
            texts, rf"^([0-9.,+\- ]+?)\s*{re.escape(unit)}$", r"\1"
        )
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
    """Return numbers, which of them are none, and which are missing: those that are gone, and codes for it."""
    is_missing = gone | np.isin(numbers, [*codes])
    return numbers, ~is_missing & ~(np.abs(numbers) <= MAX_NUMBER), is_missing


def _to_array(values: Any) -> NDArray[Any]:
    """Return a column as an array of its own; NumPy's bool where it is of booleans."""
    array = values.combine_chunks()
    if str(array.type) == "bool":
        return np.array(np.from_dlpack(array.cast("uint8")), np.bool_)
    return np.array(np.from_dlpack(array))  # to_numpy would import pandas where it is installed


def explain_number(cell: str, decimal: Decimal, name: str, unit: str, file: str) -> tuple[str, str]:
    """Return what is odd about a cell that is no number, and what would do in it, or in the schema.

    The column is called `name`, its numbers are in `unit`, "" for none, and the file is called
    `file`.
    """
    text = normalise(cell)
    other = "," if decimal == "." else "."
    own_file = f"[files.{file!r}]"
    if sign := MINUS.search(cell):
        said = f"with the sign {sign[0]!r} (U+{ord(sign[0]):04X}) for a minus"
        return said, f"write {MINUS.sub('-', text)}, with a hyphen"
    if BOUND.fullmatch(text):
        return "a bound and no number", f"write a number, or add it to fields.{name}.missingValues"
    if found := GROUPED.fullmatch(text):
        mark = found[1]
        says = f", or decimalChar = {mark!r} if it is the decimal mark" if mark == other else ""
        remedy = (
            f"write it without, or say groupChar = {mark!r}{says} under {own_file} in the schema"
        )
        return f"a number with {mark!r} between thousands", remedy
    if re.fullmatch(rf"[+-]?[0-9]*\{other}[0-9]+", text):
        remedy = (
            f"write {text.replace(other, decimal)}, or say decimalChar = {other!r} under {own_file}"
            " in the schema"
        )
        return f"a number with a decimal {'comma' if other == ',' else 'point'}", remedy
    if found := WITH_UNIT.fullmatch(text):
        remedy = f"write {found['number']}, or say unit = {found['unit']!r} in fields.{name}"
        if unit not in ("", found["unit"]):
            remedy = (
                f"write it in {unit}; for a whole file say fields.{name} = {{unit, factor}} under"
                f" {own_file}"
            )
        what = "a per cent sign" if found["unit"] == "%" else f"the unit {found['unit']!r}"
        return f"a number with {what}", remedy
    if (number := parse_number(text)) is not None and abs(number) > MAX_NUMBER:
        return f"and numbers are at most {MAX_NUMBER:g}", "correct it, or leave the cell empty"
    return (
        "which is no number",
        f"correct it, leave the cell empty, or add it to fields.{name}.missingValues",
    )
