"""The sentences that the server may receive about faults of a client's files.

On the client's machine, an error quotes the files, so that their owner finds the place. The quotes
do not leave the machine: the server gets one of the sentences below, with numbers of lines, rows
and columns, and with names that the run itself uses.
"""

from collections.abc import Sequence

from fairbloom.errors import ReportableError

# The sentences by key; braces take a number or a KnownReason text.
REASONS = {
    "unusable": "its data cannot be used: its own log says why",
    "no-place": "its data-dir names no folder or file on the device",
    "no-file": "its data-dir holds no file, or folder, of the kind that the task reads",
    "same-name": "two of its files have the same name but for the ending: rename one of them",
    "several-files": (
        "the schema names a column of clients, for a single file, and its data-dir holds {files}"
    ),
    "not-utf-8": (
        "line {line} of its file is neither in UTF-8 nor in an encoding that is stated: save the"
        " file in UTF-8, or state its encoding in the schema"
    ),
    "utf-16": "its file is in UTF-16 without a mark, or no text: save it in UTF-8",
    "other-format": (
        "its file is of a format that is not read, or of another one than its name ends with: save"
        " it as .csv, .parquet or .xlsx"
    ),
    "torn": (
        "one of its files ends in the middle of a line, or changed while it was read: wait until it"
        " is whole"
    ),
    "unreadable": "one of its files cannot be read: its own log names it",
    "no-table": (
        "its file cannot be read as a table of the kind that its ending names: its own log says why"
    ),
    "too-large": "its file may take more than half of the memory of its machine: split it",
    "no-extra": (
        "its file needs a package that is not installed on the device: its own log says which one"
    ),
    "several-sheets": (
        "its workbook has {sheets} sheets that hold values: state one in the schema, or remove or"
        " hide all but one"
    ),
    "no-results": (
        "its workbook has formulas without stored results: open it in a spreadsheet and save it"
    ),
    "strange-column": (
        "column {column} holds lists, bytes or other values that are neither numbers nor texts"
    ),
    "empty": "its file is empty: the first line must name the columns",
    "row-length": "line {line} has {cells} values, and line {header} names {columns} columns",
    "quotes": (
        "line {line} cannot be read: look for a quotation mark that is not closed, or one too many"
    ),
    "one-column": (
        "line 1 names one column only: columns are separated by comma, semicolon, tab or |"
    ),
    "unnamed-column": "column {column} has no name: give it one",
    "long-name": "the name of column {column} has {characters} characters: shorten it",
    "same-column": "columns {column} and {other} have the same name: rename or remove one",
    "no-column": "it has no column {column}, which the schema names",
    "two-names": "it has two columns that the schema calls {column}: remove one",
    "strange-columns": (
        "it has columns that the schema does not name ({columns}): add them to ignore, or its"
        " owner does so under [files.'*'] in owner.toml"
    ),
    "no-number": (
        "{position}, column {column} is not a number, as the schema says: its own log says what"
        " it is"
    ),
    "out-of-range": "{position}, column {column} is outside the range that the schema allows",
    "no-category": (
        "{position}, column {column} is not in the schema's categories: add it to them, or its"
        " spelling to one"
    ),
    "missing": (
        "{position}, column {column} has no value, nor have {cells} cells in all: the schema may"
        ' say missing = "drop" or "fill"'
    ),
    "nameless-rows": "column {column} names no client in {rows} rows",
    "few-rows": (
        "it has {rows} rows, {kept} of them without a missing value: at least {fewest} are needed"
    ),
    "few-units": (
        "it has {units} different values in the schema's column of units, and at least {fewest} are"
        " needed"
    ),
    "few-to-train": (
        "a model needs at least {min_rows} training rows, or units of the schema, to leave the"
        " device, and there are fewer:"
        " hold out less by test-share, or add rows; the owner of the device may lower the floor"
        " (limits.rows in owner.toml)"
    ),
    "few-to-measure": (
        "a loss needs at least {min_rows} training rows, or units of the schema, to leave the"
        " device, and there are fewer:"
        " hold out less by test-share, or add rows; the owner of the device may lower the floor"
        " (limits.rows in owner.toml)"
    ),
    "few-examples": "it has {examples} examples, and at least {fewest} are needed",
    "strange-folder": (
        "it has a folder that is not one of the schema's classes: rename it, or correct the schema"
    ),
    "stray-picture": "it has a picture outside the folders of classes: its own log names it",
    "other-files": (
        "its folders of classes hold files that are no pictures that are read: its own log counts"
        " them by ending"
    ),
    "several-pictures": "one of its images has several pages: its own log names it",
    "image-sizes": "its images are not all of the size that the schema states",
}


# Faults of one kind that are collected in a file, and shown.
MAX_FAULTS = 10


class KnownReason(str):
    """A text that the server may receive: a column's name in the schema, or a line's number."""

    __slots__ = ()


class DataError(ReportableError):
    """A fault of a client's files: the message is for their owner, the server gets REASONS[why].

    `values` fill the braces of that sentence. They must be numbers or KnownReason texts (else
    TypeError), so that no content of the files can leave.
    """

    others: Sequence["DataError"] = ()
    """Further faults of the same file; messages name only the first fault."""

    sheets: Sequence[str] = ()
    """The sheets of a workbook one of which must be named."""

    def __init__(self, message: str, why: str = "unusable", **values: int | KnownReason) -> None:
        for key, value in values.items():
            if type(value) is not int and not isinstance(value, KnownReason):
                raise TypeError(
                    f"{key} of {why} is a {type(value).__name__}, which may quote a client's files"
                )
        self.why = why
        super().__init__(message, REASONS[why].format(**values))


def raise_faults(faults: Sequence[DataError]) -> None:
    """Raise the first of these errors, if any, with the others attached."""
    if faults:
        faults[0].others = tuple(faults[1:])
        raise faults[0]
