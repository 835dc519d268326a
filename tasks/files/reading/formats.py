"""The formats of tables and images, by the endings of their names and by how files of these formats begin."""

from pathlib import Path

from ..reasons import DataError

ENDINGS = (".csv", ".tsv", ".parquet", ".xlsx")
"""The endings of all tables that are read."""

UNREAD = (".feather", ".gz", ".ods", ".xls", ".xlsm", ".zip")
"""The endings of further tables: in a folder of tables they are refused, since a client must not be overlooked."""

REMEDY = "save it as .csv, .parquet or .xlsx"

PICTURES = (".png", ".jpg", ".jpeg")
"""The endings of images."""

STARTS = {
    b"PAR1": ".parquet",
    b"PK\x03\x04": ".xlsx",
    b"\x1f\x8b": ".gz",
    b"\xd0\xcf\x11\xe0": ".xls",
    b"ARROW1": ".feather",
    b"BZh91AY&SY": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"%PDF-": ".pdf",
}
"""What files of these formats begin with, whatever their names end with."""


def check_start(path: Path) -> None:
    """Raise DataError where a file is of a format that is not read, or its first bytes do not fit its ending."""
    ending = path.suffix.lower()
    if ending in UNREAD:
        raise unread_error(path)
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    found = next((kind for begin, kind in STARTS.items() if start.startswith(begin)), "")
    if found != (ending if ending in STARTS.values() else ""):
        begins = f"begins like {found}" if found else "does not begin like one"
        rename = f"rename it to {path.with_suffix(found).name}, or " if found in ENDINGS else ""
        raise DataError(f"{path} is no {ending} file: it {begins}: {rename}{REMEDY}", "other-format")


def unread_error(path: Path) -> DataError:
    """Return the error of a table in a format that is not read."""
    return DataError(f"{path}: {path.suffix} files are not read: {REMEDY}", "other-format")
