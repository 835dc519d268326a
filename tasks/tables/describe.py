"""Describe the tables of clients as `fairbloom data` prints them: in short, or client by client."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError, join_names
from fairbloom.text import join_first, plural, text_if

from ..schema import Field, Schema
from ..sizes import Row, summarise_clients
from ..task import Described
from .cells import different_cells, explain_number
from .clients import FileClients
from .duplicates import find_duplicates
from .encode import UNKNOWN, ColumnValues, EncodedFile, is_missing
from .read import CellError, Table, read_file
from .reasons import DataError
from .warnings import determines, find_remarks, present_values

# Faults, and remarks on a column, that a summary lists.
MAX_FAULTS = 40
MAX_REMARKS = 3

# The file of each client, or why it cannot be read.
Files = Mapping[str, FileClients | FairbloomError]

# Faults of one kind in a column: the column, the problem and remedy of the first, and their rows.
Kind = tuple[str, str, str, NDArray[np.intp]]


def describe(schema: Schema, files: Files, every: bool) -> Described:
    """Return tables with a row for each client, fault, column of a client, and remark.

    Unless `every`, in short: a row for each column, kind of fault in a column of a file, and
    remark. Of many clients and remarks, a few have a row.
    """
    columns = _columns(schema, files)
    on_columns = {
        name: [*_find_remarks(name, schema.fields[name], columns_of)]
        for name, columns_of in columns.items()
    }
    remarks = [
        *on_columns.values(),
        [*_find_spellings(schema, files)],
        *([row] for row in _find_determining(schema, columns)),  # none of which is left out
        [*_find_duplicates(files)],
    ]
    if every:
        clients, faults = _list_clients(files)
        return {
            "clients": clients,
            "faults": faults,
            "columns": [*_list_columns(schema, columns)],
            "remarks": [row for found in remarks for row in found],
        }
    faults = [*_summarise_faults(files)]
    if len(faults) > MAX_FAULTS:
        rest = len(faults) - MAX_FAULTS
        faults = [*faults[:MAX_FAULTS], {"client": f"and {rest} more, which --clients prints"}]
    return {
        "clients": summarise_clients([*_summarise_clients(files)]),
        "faults": faults,
        "columns": [
            _summarise_column(schema, name, columns_of, on_columns[name])
            for name, columns_of in columns.items()
        ],
        "remarks": [row for found in remarks for row in _shorten_remarks(found)],
    }


# Clients ------------------------------------------------------------------------------------------


def _list_clients(files: Files) -> tuple[list[Row], list[Row]]:
    """Return a row for each client, and one for each fault."""
    clients: list[Row] = []
    faults: list[Row] = []
    for name, file in files.items():
        try:
            if isinstance(file, FairbloomError):
                raise file
            clients.append({"client": name, **file.describe(name)})
        except FairbloomError as error:
            found = [error, *getattr(error, "others", ())]
            faults += [_describe_fault(name, each) for each in found]
            count = plural(len(found), "1 fault", f"{len(found)} faults")
            clients.append({"client": name, "problem": f"{count}, listed below"})
    return clients, faults


def _summarise_clients(files: Files) -> Iterator[Row]:
    """Yield a row for each client, with its faults in short."""
    for name, file in files.items():
        problem = "faults, listed below"
        if isinstance(file, FileClients):
            rows = int(file.encoded.faulty[file.rows[name]].sum())
            if not rows:
                try:
                    yield {"client": name, **file.describe(name)}
                    continue
                except FairbloomError as error:
                    problem = str(error)
            elif rows < len(file.rows[name]):
                having = plural(rows, "1 row has", f"{rows} rows have")
                problem = f"{having} faults, listed below"
        yield {"client": name, "problem": problem}


# Columns ------------------------------------------------------------------------------------------


def _columns(schema: Schema, files: Files) -> Mapping[str, Mapping[str, ColumnValues]]:
    """Return each column's values of the clients whose files have it."""
    values = {
        name: file.values(name) for name, file in files.items() if isinstance(file, FileClients)
    }
    return {
        name: {client: found[name] for client, found in values.items() if name in found}
        for name in schema.fields
    }


def _list_columns(
    schema: Schema, columns: Mapping[str, Mapping[str, ColumnValues]]
) -> Iterator[Row]:
    """Yield a row for each column of each client."""
    for name, columns_of in columns.items():
        for client, column in columns_of.items():
            missing = int(is_missing(column).sum())
            values = _describe_values(schema.fields[name], present_values(column))
            yield {"column": name, "client": client, "values": values, "missing": missing}


def _find_remarks(name: str, field: Field, columns_of: Mapping[str, ColumnValues]) -> Iterator[Row]:
    for client, remark in find_remarks(name, field, columns_of):
        yield {"column": name, "client": client or "all", "remark": remark}


def _shorten_remarks(found: Sequence[Row]) -> Iterator[Row]:
    """Yield the first remarks on a column, and how many more there are."""
    yield from found[:MAX_REMARKS]
    if (rest := len(found) - MAX_REMARKS) > 0:
        more = plural(rest, "1 more remark", f"{rest} more remarks")
        yield {"column": found[0]["column"], "client": "", "remark": f"and {more}"}


def _find_spellings(schema: Schema, files: Files) -> Iterator[Row]:
    """Yield a remark for each client whose name has several spellings."""
    for name, file in files.items():
        if isinstance(file, FileClients) and (counts := file.encoded.spellings.get(name)):
            spellings = [f"{each} in {counts[each]:,} rows" for each in sorted(counts)]
            remark = f"it is written {join_first(spellings)}: they are one client"
            yield {"column": schema.client, "client": name, "remark": remark}


def _find_duplicates(files: Files) -> Iterator[Row]:
    """Yield a remark for each client with equal rows, and for clients with rows in common."""
    read = {name: file for name, file in files.items() if isinstance(file, FileClients)}
    for clients, remark in find_duplicates(read):
        yield {"column": "all", "client": clients, "remark": remark}


def _find_determining(
    schema: Schema, columns: Mapping[str, Mapping[str, ColumnValues]]
) -> Iterator[Row]:
    """Yield a remark on each column that alone says what the target is."""
    target = columns[schema.target]
    for name in schema.inputs:
        both = [client for client in columns[name] if client in target]
        if both and determines(
            np.concatenate([columns[name][client] for client in both]),
            np.concatenate([target[client] for client in both]),
        ):
            remark = f"{name} determines {schema.target}: is it known before?"
            yield {"column": name, "client": "all", "remark": remark}


def _describe_values(field: Field, values: ColumnValues) -> str:
    """Return the categories, or the range of the numbers, that occur in a column."""
    if not len(values):
        return "nothing"
    if field.categories:
        return join_first([field.categories[place] for place in np.unique(values)])
    return f"{values.min():g} to {values.max():g}"


def _summarise_column(
    schema: Schema, name: str, columns_of: Mapping[str, ColumnValues], remarks: Sequence[Row]
) -> Row:
    """Return the row of a column: its kind, and its values at all clients."""
    field = schema.fields[name]
    together = np.concatenate([*columns_of.values()]) if columns_of else np.array([])
    values = present_values(together)
    kind = f"number{text_if(field.unit, f' ({field.unit})')}"
    held = _describe_values(field, values)
    if field.categories:
        kind = "category"
        counts = np.bincount(values, minlength=len(field.categories))
        places = np.argsort(-counts, kind="stable").tolist()
        held = join_first([f"{field.categories[place]}: {counts[place]:,}" for place in places], 6)
    elif len(values):
        held += f", median {np.median(values):g}"
    if name == schema.target:
        kind = f"target, {kind}"
    elif name not in schema.inputs:
        kind = f"{kind}, no input"
    named = [str(row["client"]) for row in remarks if row["client"] != "all"]
    empty = [client for client, each in columns_of.items() if not len(present_values(each))]
    standing_out = [*dict.fromkeys([*named, *empty])]
    return {
        "column": name,
        "kind": kind,
        "values": held,
        "missing": int(is_missing(together).sum()),
        "stands out": join_names(standing_out) if standing_out else "",
    }


# Faults -------------------------------------------------------------------------------------------


def _summarise_faults(files: Files) -> Iterator[Row]:
    """Yield a row for each kind of fault in a column of a file."""
    seen = set()
    for name, file in files.items():
        if isinstance(file, FairbloomError):
            yield from _summarise_errors(name, [file, *getattr(file, "others", ())])
        elif file.encoded.path not in seen:
            seen.add(file.encoded.path)
            clients = {each: other.rows[each] for each, other in files.items() if other is file}
            yield from _summarise_file(file.encoded, clients)


def _summarise_errors(client: str, errors: Sequence[FairbloomError]) -> Iterator[Row]:
    """Yield a row for each kind of error of a file that cannot be read."""
    kinds: dict[str, list[FairbloomError]] = {}
    for error in errors:
        why = error.why if isinstance(error, DataError) else str(error)
        kinds.setdefault(why, []).append(error)
    for same in kinds.values():
        row = _describe_fault(client, same[0])
        if len(same) > 1:
            row["problem"] = f"{row['problem']} (and {len(same) - 1} more like this)"
        yield row


def _summarise_file(file: EncodedFile, clients: Mapping[str, NDArray[np.intp]]) -> Iterator[Row]:
    of_row = np.zeros(len(file), np.int64)
    for place, rows in enumerate(clients.values()):
        of_row[rows] = place
    names = [*clients]
    if not file.faults:
        return
    table = read_file(file.path, file.schema.file(file.path.name))
    for error in file.faults:
        if not isinstance(error, CellError) or error.rows is None:
            yield _describe_fault(join_names(names), error)
    for column, problem, remedy, rows in _find_kinds(file, table):
        first = int(table.lines[rows[0]])
        last = int(table.lines[rows[-1]])
        more = len(rows) - 1
        lines = f"{first}"
        if more:
            lines = f"{first} to {last}, {more:,} more"
        yield {
            "client": join_names([names[each] for each in np.unique(of_row[rows])]),
            "file": file.path.name,
            "line": lines,
            "column": column,
            "value": table.show_cell(column, int(rows[0])),
            "problem": problem,
            "remedy": remedy,
        }


def _find_kinds(file: EncodedFile, table: Table) -> Iterator[Kind]:
    """Yield the kinds of faults of a file's cells, by column."""
    several: set[str] = set()
    for error in file.faults:
        if not isinstance(error, CellError) or error.rows is None:
            continue
        if error.why not in ("no-number", "no-category"):
            yield error.column, error.problem, error.remedy, error.rows
        elif error.column not in several:
            several.add(error.column)
            yield from _kinds_of_column(file, table, error)


def _kinds_of_column(file: EncodedFile, table: Table, first: CellError) -> Iterator[Kind]:
    """Yield the kinds of faulty cells of a column; its first fault is `first`."""
    name = first.column
    field = file.schema.fields[name]
    column = file.columns[name]
    if field.categories:
        problem = first.problem.partition(", as ")[0]
        yield name, problem, first.remedy, np.flatnonzero(column == UNKNOWN)
        return
    rows = np.flatnonzero(np.isinf(column))
    cells, codes = different_cells(table.find(table.file.column_name(name)).take(rows))
    kinds: dict[str, list[int]] = {}
    remedies: dict[str, str] = {}
    for code, cell in enumerate(cells[:-1]):
        problem, remedy = explain_number(cell, table.decimal, name, field.unit, table.path.name)
        kinds.setdefault(problem, []).append(code)
        remedies.setdefault(problem, remedy)
    for problem, same in kinds.items():
        yield name, problem, remedies[problem], rows[np.isin(codes, same)]


def _describe_fault(client: str, error: FairbloomError) -> Row:
    """Return a row of the table of faults."""
    row: Row = {"client": client, "file": "", "line": "", "column": "", "value": ""}
    if not isinstance(error, CellError):
        return {**row, "problem": str(error)}
    return {
        "client": client,
        "file": error.file,
        "line": error.line or "",
        "column": error.column,
        "value": error.value,
        "problem": error.problem,
        "remedy": error.remedy,
    }
