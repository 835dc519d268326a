"""Workbooks as Excel writes them, in as few words as it reads: no library here writes any."""

import datetime
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
SHEET = "xl/worksheets/sheet1.xml"
STYLES = (
    f'<styleSheet xmlns="{MAIN}"><cellStyleXfs count="1"><xf numFmtId="9"/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0"/>'
    '<xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>'
)


class FormulaError(str):
    """An error that a formula gives: #N/A."""

    __slots__ = ()


def column_name(place: int) -> str:
    """Return the letters of a column, counted from 0."""
    return (
        chr(ord("A") + place)
        if place < 26
        else column_name(place // 26 - 1) + column_name(place % 26)
    )


def cell(place: int, row: int, value: object) -> str:
    """Return a cell, "" for an empty one."""
    at = f'r="{column_name(place)}{row}"'
    match value:
        case None:
            return ""
        case bool():
            return f'<c {at} t="b"><v>{int(value)}</v></c>'
        case datetime.date():
            moment = datetime.datetime(value.year, value.month, value.day)
            if isinstance(value, datetime.datetime):
                moment = value
            days = (moment - datetime.datetime(1899, 12, 30)) / datetime.timedelta(days=1)
            return f'<c {at} s="1"><v>{days!r}</v></c>'
        case int() | float():
            return f"<c {at}><v>{value!r}</v></c>"
        case FormulaError():
            return f'<c {at} t="e"><v>{value}</v></c>'
        case _:
            text = escape(str(value))
            return f'<c {at} t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def sheet_of(rows: Sequence[Sequence[object]]) -> str:
    """Return the rows of a sheet as XML."""
    lines = []
    for number, row in enumerate(rows, start=1):
        cells = "".join(cell(place, number, value) for place, value in enumerate(row))
        lines.append(f'<row r="{number}">{cells}</row>')
    return "".join(lines)


def write_workbook(
    path: Path,
    sheets: Mapping[str, Sequence[Sequence[object]] | str],
    hidden: Sequence[str] = (),
    before: str = "",
    after: str = "",
    styles: str = STYLES,
) -> None:
    """Write an .xlsx file of these sheets, as rows of cells or XML; each has `before` in front of
    its rows, and `after` behind them."""
    states = ("visible", "hidden")
    names = "".join(
        f'<sheet name="{escape(name)}" sheetId="{k}" state="{states[name in hidden]}"'
        f' r:id="rId{k}"/>'
        for k, name in enumerate(sheets, start=1)
    )
    parts = "".join(
        f'<Relationship Id="rId{k}" Type="{RELATIONS}/worksheet" Target="worksheets/sheet{k}.xml"/>'
        for k in range(1, len(sheets) + 1)
    )
    package = "application/vnd.openxmlformats-package.relationships+xml"
    whole = {
        "[Content_Types].xml": (
            f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml"'
            ' ContentType="application/xml"/><Default Extension="rels"'
            f' ContentType="{package}"/></Types>'
        ),
        "_rels/.rels": (
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
            f'Type="{RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
        ),
        "xl/workbook.xml": (
            f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>{names}</sheets></workbook>'
        ),
        "xl/_rels/workbook.xml.rels": (
            f'<Relationships xmlns="{PACKAGE}/relationships">{parts}<Relationship Id="rIdS" '
            f'Type="{RELATIONS}/styles" Target="styles.xml"/></Relationships>'
        ),
        "xl/styles.xml": styles,
    }
    for k, rows in enumerate(sheets.values(), start=1):
        content = rows if isinstance(rows, str) else sheet_of(rows)
        whole[f"xl/worksheets/sheet{k}.xml"] = (
            f'<worksheet xmlns="{MAIN}">{before}<sheetData>{content}</sheetData>{after}</worksheet>'
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in whole.items():
            archive.writestr(name, HEAD + content)


def edit_workbook(path: Path, part: str, old: str, new: str, encoding: str = "utf-8") -> None:
    """Replace a text in one file of a workbook, and write this file in an encoding."""
    with zipfile.ZipFile(path) as archive:
        whole = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in whole.items():
            changed = text.replace(old, new).replace('"UTF-8"', f'"{encoding}"')
            archive.writestr(name, changed.encode(encoding) if name == part else text)
