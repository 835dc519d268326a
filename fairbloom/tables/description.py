"""Describe the tables of clients as `fairbloom data` prints them: in short, or client by client."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError, join_names
from fairbloom.text import join_first, plural, text_if

from .cells import different_cells
from .comparison import Profiles, Sorts, Untold, compare, leave_asked
from .determining import determines, present_values
from .duplicates import ComparedRows, find_common, find_repeated
from .encoding import (
    NO_UNIT,
    ClientTable,
    ColumnValues,
    EncodedFile,
    explain_cell,
    is_missing,
    is_unknown,
)
from .findings import SHOWN, Finding, Quiet, say_and_propose, say_and_propose_own
from .profiles import Cells, ColumnProfile, profile
from .reading import CellError, ReadTable
from .reasons import DataError
from .schema import Field, Schema, key_of_client, normalise
from .sides import settle
from .sizes import Row, summarise_clients
from .table_one import SiteRow, table_one
from .toml import Question, quote

# Faults, and remarks on copies or on clients that stand out, that a summary lists.
MAX_FAULTS = 40
MAX_ADVICE = 10

# The table of each client, or why it cannot be read.
Tables = Mapping[str, ClientTable | FairbloomError]

# The numbers of a client's examples, as a row; raises FairbloomError if it has too few.
CountExamples = Callable[[str], Row]

# Faults of one kind in a column: the column, the problem and remedy of the first, and their rows.
Kind = tuple[str, str, str, NDArray[np.intp]]


class Comparison(NamedTuple):
    """The profiles of clients by field, what stands out, and a sentence on each with its line."""

    fields: Mapping[str, Profiles]
    findings: Sequence[Finding]
    advice: Sequence[str]

    def ask(self, fields: Mapping[str, Field]) -> Iterator[Question]:
        """Yield what stands out and has a line to answer it with, as questions on the fields."""
        for finding, sentence in zip(self.findings, self.advice, strict=True):
            if finding.change_field() or finding.change_site(fields[finding.field]):
                yield Question(finding.field, sentence)


def describe(
    schema: Schema,
    tables: Tables,
    count_examples: CountExamples,
    *,
    every: bool,
    on_device: bool = False,
) -> dict[str, list[Row]]:
    """Return tables with a row for each client, fault, column of a client, and remark.

    Unless `every`, in short: a row for each column, kind of fault in a column of a file, and
    remark. Of many clients and remarks, a few have a row. Remarks propose lines of the schema, or
    `on_device` of its owner.toml.
    """
    columns = _columns(schema, tables)
    _, findings, sentences = compare_clients(schema, tables, on_device=on_device)
    remarks = [*_remark_on_files(schema, tables)]
    question = f"it determines {schema.target}: is it known only after it?"
    for name in _find_determining(schema, columns):
        if name not in schema.determining:
            line = text_if(not on_device, f" if so, say determining = [{quote(name)}]")
            remarks.append(_remark(name, "", f"{question}{line}"))
    copies = [*_remark_on_copies(schema, tables)]
    advice = [
        _remark(each.field, join_first(each.sites, SHOWN), sentence)
        for each, sentence in zip(findings, sentences, strict=True)
        if not isinstance(each, Quiet)
    ]
    if every:
        clients, faults = _list_clients(tables, count_examples)
        return {
            "clients": clients,
            "faults": faults,
            "columns": [*_list_columns(schema, columns)],
            "remarks": [*remarks, *copies, *advice],
        }
    faults = _join_alike([*_summarise_faults(tables)])
    rest = f"and {len(faults) - MAX_FAULTS} more, which --every-client prints"
    more_copies = f"and {len(copies) - MAX_ADVICE:,} more, which --every-client prints"
    further = (
        f"and {len(advice) - MAX_ADVICE:,} more, which --every-client prints, and --page draws"
    )
    about: dict[str, list[Finding]] = {name: [] for name in columns}
    for finding in findings:
        about[finding.field].append(finding)
    clients = [*_summarise_clients(tables, count_examples)]
    return {
        "clients": summarise_clients(clients),
        "faults": _shorten(faults, MAX_FAULTS, {"client": rest}),
        "columns": [
            _summarise_column(schema, name, columns_of, about[name], _find_lacking(tables, name))
            for name, columns_of in columns.items()
        ],
        "remarks": [
            *remarks,
            *_shorten(copies, MAX_ADVICE, _remark("", "", more_copies)),
            *_shorten(advice, MAX_ADVICE, _remark("", "", further)),
        ],
    }


def _remark(column: str, clients: str, remark: str) -> Row:
    """Return the row of a remark; "" stands for all columns, and for all clients."""
    return {"column": column, "client": clients, "remark": remark}


# Clients ------------------------------------------------------------------------------------------


def _list_clients(tables: Tables, count_examples: CountExamples) -> tuple[list[Row], list[Row]]:
    """Return a row for each client, and one for each fault."""
    clients: list[Row] = []
    faults: list[Row] = []
    for name, table in tables.items():
        try:
            if isinstance(table, FairbloomError):
                raise table
            clients.append({"client": name, **count_examples(name)})
        except FairbloomError as error:
            found = [error, *getattr(error, "others", ())]
            faults += [_describe_fault(name, fault) for fault in found]
            problem = plural(len(found), "1 fault", f"{len(found)} faults") + ", listed below"
            clients.append({"client": name, "problem": problem})
    return clients, faults


def _summarise_clients(tables: Tables, count_examples: CountExamples) -> Iterator[Row]:
    """Yield a row for each client, with its faults in short."""
    for name, table in tables.items():
        problem = "faults, listed below"
        if isinstance(table, ClientTable):
            rows = int(table.file.faulty[table.rows].sum())
            if not rows:
                try:
                    yield {"client": name, **count_examples(name)}
                    continue
                except FairbloomError as error:
                    problem = str(error)
            elif rows < len(table.rows):
                problem = plural(rows, "1 row has", f"{rows} rows have") + " faults, listed below"
        yield {"client": name, "problem": problem}


# Columns ------------------------------------------------------------------------------------------


def _columns(schema: Schema, tables: Tables) -> Mapping[str, Mapping[str, ColumnValues]]:
    """Return each column's values by client, without clients that lack it."""
    values = {name: table.values for name, table in _read_tables(tables).items()}
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
            yield {
                "column": name,
                "client": client,
                "values": _describe_values(schema.fields[name], present_values(column)),
                "missing": int(is_missing(column).sum()),
            }


def _read_tables(tables: Tables) -> dict[str, ClientTable]:
    """Return the tables without those that cannot be read."""
    return {name: table for name, table in tables.items() if isinstance(table, ClientTable)}


def _shorten(rows: list[Row], most: int, rest: Row) -> list[Row]:
    """Return the first rows; of more, the `rest` is a row that says how many there are."""
    return rows if len(rows) <= most else [*rows[:most], rest]


def _remark_on_files(schema: Schema, tables: Tables) -> Iterator[Row]:
    """Yield remarks on the spellings of each client's name, on its file, and on missing units."""
    for name, table in _read_tables(tables).items():
        if counts := table.file.spellings.get(name):
            spellings = [f"{spelling} in {counts[spelling]:,} rows" for spelling in sorted(counts)]
            remark = f"it is written {join_first(spellings)}: they are one client"
            yield _remark(schema.client, name, remark)
        yield from (_remark(column or "", name, remark) for column, remark in table.file.remarks)
        units = np.array([]) if table.file.units is None else table.file.units[table.rows]
        if count := int((units >= NO_UNIT).sum()):
            having = plural(count, "1 row has", f"{count:,} rows have")
            yield _remark(schema.unit, name, f"{having} none: each counts as one")


def _remark_on_copies(schema: Schema, tables: Tables) -> Iterator[Row]:
    """Yield remarks on rows that clients have twice, or in common."""
    clients = {name: ComparedRows.of(table) for name, table in _read_tables(tables).items()}
    first_of = text_if(schema.unit, f", the first of each {schema.unit},")
    if repeated := find_repeated(clients):
        most_first = sorted(repeated, key=lambda name: -repeated[name])
        counts = join_first([f"{repeated[name]:,} at {name}" for name in most_first], SHOWN)
        of_persons = text_if(not schema.unit, "; for visits of one person, say unit in the schema")
        yield _remark(
            "",
            join_first(most_first, SHOWN),
            f"rows{first_of} repeat others of their client in every column ({counts}): leave"
            f" copies out, as training and test may share them{of_persons}",
        )
    for names, count, are_all in find_common(clients):
        rows = f"{text_if(are_all, 'all ')}{count:,} rows{first_of}"
        yield _remark(
            "",
            join_first(names, SHOWN),
            f"{rows} are the same at each in every column: if they are copies, keep them at one",
        )


def compare_clients(schema: Schema, tables: Tables, *, on_device: bool = False) -> Comparison:
    """Return what stands out in the clients' columns, by their profiles.

    The lines to paste are of the schema, or `on_device` of its owner.toml.
    """
    fields: dict[str, dict[str, ColumnProfile]] = {name: {} for name in schema.fields}
    for client, table in _read_tables(tables).items():
        found = profile(
            {name: Cells.of(schema.fields[name], values) for name, values in table.values.items()}
        )
        for name, column in found.items():
            fields[name][client] = column
    files = {
        name: key_of_client(name, table.file.paths[0].name)
        for name, table in _read_tables(tables).items()
        if table.file.rows is None
    }
    findings = [*settle(leave_asked(compare(fields), fields), fields, schema=schema.fields)]
    advice: list[str] = []
    for each in findings:
        about = schema.fields[each.field]
        if on_device:
            own = schema.file("", *each.sites[:1]).field(each.field)
            advice.append(say_and_propose_own(each, about, own))
        else:
            advice.append(say_and_propose(each, about, files))
    return Comparison(fields, findings, advice)


def tabulate(schema: Schema, tables: Tables) -> list[SiteRow]:
    """Return Table 1: each column at each client, and in all."""
    return table_one(schema, _columns(schema, tables))


def _find_determining(
    schema: Schema, columns: Mapping[str, Mapping[str, ColumnValues]]
) -> Iterator[str]:
    """Yield the inputs from which the target follows, by the rows of all clients."""
    target = columns[schema.target]
    for name in schema.inputs:
        both = [client for client in columns[name] if client in target]
        if both and determines(
            np.concatenate([columns[name][client] for client in both]),
            np.concatenate([target[client] for client in both]),
        ):
            yield name


def _describe_values(field: Field, values: ColumnValues) -> str:
    """Return the categories, or the range of the numbers, that occur in a column."""
    if not len(values):
        return "nothing"
    if field.categories:
        return join_first([field.categories[place] for place in np.unique(values)])
    return f"{values.min():g} to {values.max():g}"


def _find_lacking(tables: Tables, name: str) -> dict[str, int]:
    """Return the rows of each client that lacks a column: it is missing in all of them."""
    readable = _read_tables(tables).items()
    return {client: len(table.rows) for client, table in readable if name not in table.file.found}


def _summarise_column(
    schema: Schema,
    name: str,
    columns_of: Mapping[str, ColumnValues],
    findings: Sequence[Finding],
    lacking: Mapping[str, int],
) -> Row:
    """Return the row of a column: its kind, and its values at all clients.

    `lacking` has the number of rows of each client without it.
    """
    field = schema.fields[name]
    # no file may have the column, which the schema fills
    together = np.concatenate([*columns_of.values()]) if columns_of else np.array([], np.int32)
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
    if not columns_of:
        held = "no such column"
    elif lacking:
        held = f"{held}; not at {join_first([*lacking], SHOWN)}"
    if name == schema.target:
        kind = f"target, {kind}"
    elif name not in schema.inputs:
        kind = f"{kind}, no input"
    named = [site for each in findings if not isinstance(each, Quiet) for site in each.sites]
    quiet: dict[str, str] = {}
    for head, of_kind in (("too few rows", Untold), ("of several sorts", Sorts)):
        sites = [site for each in findings if isinstance(each, of_kind) for site in each.sites]
        if sites:
            quiet[head] = join_names(dict.fromkeys(sites))
    empty = [client for client, columns in columns_of.items() if not len(present_values(columns))]
    standing_out = [*dict.fromkeys([*named, *empty])]
    return {
        "column": name,
        "kind": kind,
        "values": held,
        "missing": int(is_missing(together).sum()) + sum(lacking.values()),
        "stands out": text_if(standing_out, join_names(standing_out)),
        **quiet,
    }


# Faults -------------------------------------------------------------------------------------------


def _join_alike(faults: Sequence[Row]) -> list[Row]:
    """Return rows of faults in which a value, a new category for example, has one row.

    The row names all clients, the first file, and the lines in it.
    """
    alike: dict[object, list[Row]] = {}
    for place, row in enumerate(faults):
        about = (row.get("column"), row.get("value"), row["problem"], row.get("remedy"))
        alike.setdefault(about if row.get("value") else place, []).append(row)
    return [_join(rows) for rows in alike.values()]


def _join(faults: Sequence[Row]) -> Row:
    """Return one row of several that differ by client and file."""
    first = faults[0]
    more = len(faults) - 1
    clients = [str(row["client"]) for row in faults]
    file = f"{first.get('file', '')}{text_if(more, f' and {more} more')}"
    return {**first, "client": join_first(clients), "file": file}


def _summarise_faults(tables: Tables) -> Iterator[Row]:
    """Yield a row for each kind of fault in a column of a file."""
    seen = set()
    readable = _read_tables(tables)
    for name, table in tables.items():
        if isinstance(table, FairbloomError):
            yield from _summarise_errors(name, [table, *getattr(table, "others", ())])
        elif table.file.path not in seen:
            seen.add(table.file.path)
            yield from _summarise_file(
                table.file,
                {
                    client: source.rows
                    for client, source in readable.items()
                    if source.file is table.file
                },
            )


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
    yield from (
        _describe_fault(join_names(names), error)
        for error in file.faults
        if not isinstance(error, CellError) or error.rows is None
    )
    for table in file.read() if file.faults else ():  # several are of one client
        for column, problem, remedy, rows in _find_kinds(file, table):
            first, last = table.lines[rows[[0, -1]]].tolist()
            more = len(rows) - 1
            yield {
                "client": join_names([names[each] for each in np.unique(of_row[rows])]),
                "file": table.path.name,
                "line": f"{first}{text_if(more, f' to {last}, {more:,} more')}",
                "column": column,
                "value": table.show_cell(column, int(rows[0])),
                "problem": problem,
                "remedy": remedy,
            }


def _find_kinds(file: EncodedFile, table: ReadTable) -> Iterator[Kind]:
    """Yield the kinds of faults of a table's cells, by column, with rows of the table."""
    several: set[str] = set()
    for error in file.faults:
        if not isinstance(error, CellError) or error.rows is None or error.file != table.path.name:
            continue
        if error.why not in ("no-number", "no-category"):
            yield error.column, error.problem, error.remedy, error.rows - table.start
        elif error.column not in several:
            several.add(error.column)
            yield from _kinds_of_column(file, table, error.column)


def _kinds_of_column(file: EncodedFile, table: ReadTable, name: str) -> Iterator[Kind]:
    """Yield the kinds of faulty cells of a column; each new category is one."""
    field = file.schema.fields[name]
    values = file.columns[name][table.start : table.start + len(table)]
    rows = np.flatnonzero(is_unknown(values))
    cells, codes = different_cells(table.find(table.column_name(name)).take(rows))
    # By problem and category: the codes of the cells, and the remedy of the first.
    kinds: dict[tuple[str, str], tuple[list[int], str]] = {}
    for code, cell in enumerate(cells[:-1]):
        problem, remedy = explain_cell(
            cell, name, field, name == file.schema.target, table.decimal, table.file.key
        )
        text = text_if(field.categories, normalise(cell))
        kinds.setdefault((problem, text), ([], remedy))[0].append(code)
    yield from (
        (name, problem, remedy, rows[np.isin(codes, same)])
        for (problem, _), (same, remedy) in kinds.items()
    )


def _describe_fault(client: str, error: FairbloomError) -> dict[str, str | int]:
    """Return a row of the table of faults."""
    if not isinstance(error, CellError):
        return {
            "client": client,
            "file": "",
            "line": "",
            "column": "",
            "value": "",
            "problem": str(error),
        }
    return {
        "client": client,
        "file": error.file,
        "line": error.line or "",
        "column": error.column,
        "value": error.value,
        "problem": error.problem,
        "remedy": error.remedy,
    }
