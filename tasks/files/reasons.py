"""What the server may know of what is wrong with a client's files: these sentences, and nothing else.

An error about files quotes them, so that their owner finds the place. None of that leaves the machine: the server
gets one of the sentences below, with numbers of lines, rows and columns, and with names that the run itself uses.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Self

from fairbloom.errors import ReportableError

REASONS = {
    "unusable": "its data cannot be used: its own log says why",
    "no-place": "its data-dir names no folder or file on the device",
    "no-file": "its data-dir holds no file, or folder, of the kind that the task reads",
    "same-name": "two of its files have the same name but for the ending: rename one of them",
    "unreadable": "one of its files cannot be read: its own log names it",
    "one-colour": "one of its images has one colour throughout: its own log names it",
    "several-files": "csv.client is for a single file, and its data-dir holds {files}: leave csv.client out",
    "not-utf-8": "line {line} of its file is not in UTF-8: save the file in UTF-8, or name its encoding by "
    "csv.encoding",
    "other-encoding": "line {line} of its file is neither in UTF-8 nor in the encoding that it states, or "
    "csv.encoding: save the file in UTF-8",
    "utf-16": "its file is in UTF-16 without a mark, or no text: save it in UTF-8",
    "other-format": "its file is of a format that is not read, or of another one than its name ends with: save it as "
    ".csv, .parquet or .xlsx",
    "separator-line": "line 1 of its file states the separator: delete that line",
    "no-table": "its file cannot be read as a table of the kind that its ending names: its own log says why",
    "no-extra": "its file needs a package that is not installed on the device: its own log says which one",
    "too-large": "its file is too large to be read: its own log says what the limit is",
    "several-sheets": "its workbook has {sheets} sheets that hold values: remove or hide all but one",
    "strange-column": "column {column} holds lists, bytes or other values that are neither numbers nor texts: leave it "
    "out by csv.ignore",
    "empty": "its file is empty: the first line must name the columns",
    "row-length": "line {line} has {cells} values, and line {header} names {columns} columns",
    "quotes": "line {line} cannot be read: look for a quotation mark that is not closed, or one too many",
    "one-column": "line 1 names one column only: columns are separated by comma, semicolon, tab or |",
    "no-header": "line 1 holds values: the first line must name the columns",
    "doubtful-header": "line 1 may hold values in place of the columns' names, as in column {column}: the first line "
    "must name the columns, and no name may be a number, a date, an e-mail address, or a value of its own column",
    "unnamed-column": "column {column} has no name: give it one",
    "long-name": "the name of column {column} has {characters} characters: shorten it",
    "same-column": "columns {column} and {other} have the same name: rename or remove one",
    "decimal-comma": "{position}, column {column} holds a number with a comma: say csv.decimal=, or name the file "
    "in csv.commas, or write decimal points, and no thousands separators",
    "decimal-point": "{position}, column {column} holds a number with a point, and csv.decimal or csv.commas "
    "says that the file has commas: write decimal commas, and no thousands separators",
    "no-number": "{position}, column {column} is not a number, while most of the column is: correct it, leave the "
    "cell empty if the value is missing, or read the column as categories by csv.categories",
    "large-number": "{position}, column {column} is too large a number: correct it, or leave the cell empty",
    "long-text": "{position}, column {column} holds a text of {characters} characters: leave the column out by "
    "csv.ignore",
    "no-target": "it has no column called target, label or y: name the target by csv.target",
    "two-targets": "it has several of the columns target, label and y: name one by csv.target, and leave the others "
    "out by csv.ignore",
    "no-column": "it has no column {column}, which {setting} names",
    "group-target": "column {column}, which csv.group names, is its target: name another one",
    "group-of-texts": "column {column} holds texts, which csv.group compares with a number: name the column alone",
    "many-groups": "column {column}, which csv.group names, holds {different} different values, and {most} groups are "
    "the most: divide its numbers, or name another column",
    "nameless-rows": "column {column} names no client in {rows} rows",
    "no-inputs": "it has no columns but the target: nothing to learn from",
    "few-rows": "it has {rows} rows, {kept} of them without a missing value: at least {fewest} are needed",
    "missing": "{position}, column {column} has no value, nor have {cells} cells in all: csv.missing=drop leaves such "
    "rows out, csv.missing=fill fills them in, csv.ignore leaves columns out",
    "many-categories": "column {column} holds {different} different texts, and {most} categories are the most: leave "
    "it out by csv.ignore",
    "dates": "column {column} holds texts that look like dates: leave it out by csv.ignore, or allow it by "
    "csv.categories",
    "identifiers": "column {column} holds texts that look like numbers of persons or cases, or like addresses: leave "
    "it out by csv.ignore, or allow it by csv.categories",
    "respelled-categories": "column {column} holds texts that differ in upper and lower case alone: write them in one "
    "way, or take them as they are by csv.categories",
    "respelled-classes": "the target, column {column}, holds texts that differ in upper and lower case alone: write "
    "them in one way, or state all classes by csv.classes",
    "all-different": "column {column} holds {different} different texts in {rows} rows, which may say who a row is "
    "about: leave it out by csv.ignore, or allow it by csv.categories",
    "different-targets": "the target has {different} different values in {rows} rows, texts among them, which may say "
    "who a row is about: choose another target, or state all classes",
    "mixed-target": "{position}, column {column} is not a number, while most of the target is: correct it, or set "
    "csv.kind=classification",
    "many-classes": "the target, column {column}, has {different} different values, and {most} classes are the most: "
    "name the right column by csv.target, or state all classes by csv.classes",
    "one-class": "all rows have the same class: state all classes, or leave this client out",
    "strange-class": "column {column} holds a value that is none of the stated classes: correct it, or state all "
    "classes by csv.classes",
    "no-quantity": "{position}, column {column} is not a number to predict: correct it, name another column by "
    "csv.target, or set csv.kind=classification",
    "other-columns": "its columns are not those that the clients agreed on: it lacks {lacking}, and has {added} "
    "besides: csv.ignore leaves columns out",
    "other-kind": "column {column} holds numbers where the others have categories, or categories where they have "
    "numbers: correct it, or take it as categories everywhere by csv.categories",
    "few-behind": "a mean needs at least {floor} training rows, and column {column} has a value in fewer: set "
    "csv.standardise=client, hold out less by test-share, or leave the column out by csv.ignore; the owner of the "
    "device may lower the floor (limits.rows in client.toml)",
    "few-targets": "the mean of the target needs at least {floor} training rows, and there are fewer: hold out less "
    "by test-share, or add rows; the owner of the device may lower the floor (limits.rows in client.toml)",
    "few-to-train": "a model needs at least {floor} training rows to leave the device, and there are fewer: hold out "
    "less by test-share, or add rows; the owner of the device may lower the floor (limits.rows in client.toml)",
    "few-to-measure": "a loss needs at least {floor} training rows to leave the device, and there are fewer: hold out "
    "less by test-share, or add rows; the owner of the device may lower the floor (limits.rows in client.toml)",
    "rare-class": "its target has a class of fewer than {floor} rows, whose name is not sent: state all classes by "
    "csv.classes, or name another target",
    "near-rows": "the rows behind {number} differ by fewer than {floor} from those behind an earlier number of this "
    "kind, so that the two would show single rows: take the seed, test-share, validation-share and csv settings of "
    "the earlier run",
    "other-shape": "its examples have another shape than those of the others",
    "few-examples": "it has {examples} examples, and at least {fewest} are needed",
    "strange-folder": "it has a folder of none of the stated classes: rename it, or state all classes",
    "image-sizes": "its images are not all of one size: image-folder.size=32 brings all to 32×32",
}
"""Every sentence by its key; what is in braces is a number, or a Heading."""


MAX_FAULTS = 10
"""The most faults of a kind that are looked for in a file, and the most that are shown."""


class Heading(str):
    """A name that the server may know: one that the run itself uses, or one in a header that has passed its check."""

    __slots__ = ()


class Position(str):
    """Where a row is, as the server may know it: "line 7" of a text, "row 7" of a spreadsheet."""

    __slots__ = ()

    def __new__(cls, unit: Literal["line", "row"], number: int) -> Self:
        """Return the words."""
        return super().__new__(cls, f"{unit} {number}")


class DataError(ReportableError):
    """What is wrong with a client's files: the message is for their owner, the server gets REASONS[why] alone.

    `values` fill that reason's braces: numbers, Headings and Positions, so that no content can leave (TypeError).
    """

    others: Sequence["DataError"] = ()
    """What else is wrong with the same file; messages name the first fault alone."""

    def __init__(self, message: str, why: str = "unusable", **values: int | Heading | Position) -> None:
        for key, value in values.items():
            if type(value) is not int and not isinstance(value, Heading | Position):
                raise TypeError(f"{key} of {why} is a {type(value).__name__}, which may quote a client's files")
        quoted = {key: repr(str(value)) if isinstance(value, Heading) else value for key, value in values.items()}
        super().__init__(message, REASONS[why].format(**quoted))


def raise_faults(faults: Sequence[DataError]) -> None:
    """Raise the first of these errors, if there is one; it holds the others."""
    if faults:
        faults[0].others = tuple(faults[1:])
        raise faults[0]


def collect_faults(checks: Iterable[Callable[[], object]]) -> list[DataError]:
    """Return what is wrong by these checks, each of which raises a DataError then."""
    found: list[DataError] = []
    for check in checks:
        try:
            check()
        except DataError as error:
            found += [error, *error.others]
    return found
