"""The tables of a run folder: the columns and rows of rounds.csv and clients.csv, and how they are read and written."""

import csv
import io
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairbloom.protocol import names
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.system.files import write_whole

from ..checkpoint import KEPT
from ..fairness import percent_improved, summarize
from .errors import RunFolderError

SEPARATOR = " | "
"""What is between the refused replies of a round. It does not occur in a reason, which a client may have written."""

REFUSED = re.compile(r"""((?:'[^']*'|"'")+|[^\s'"]\S*?): """)
"""The name at the beginning of a refused reply, in quotation marks where it has spaces."""

ABSENT = ("refused", "missing", "offline")
"""The columns of rounds.csv that name clients whose replies a round did without."""

MEASURES = tuple(summarize({"anyone": 1.0}))
"""The measures of fairness that rounds.csv has of the score."""

Row = Mapping[str, object]


def client_columns(scores: Iterable[Score] = (ACCURACY,), *, validated: bool = False) -> tuple[str, ...]:
    """Return the columns of clients.csv; `validated` says whether clients have validation examples."""
    scores = tuple(scores)
    on_validation = *(score.column(split="validation") for score in scores), "validation_loss_of_global_model"
    return (
        *("round", "client", "participated", "coefficient", "test_examples"),
        *(score.column(model) for score in scores for model in ("global", "personal")),
        *("test_loss_of_global_model", "train_loss_before_round", "train_loss_of_global_model"),
        *(on_validation if validated else ()),
    )


def round_columns(method: Method, score: Score = ACCURACY, *, validated: bool = False) -> tuple[str, ...]:
    """Return the columns of rounds.csv.

    Those of personal models, of validation examples and the method's own are there only where there are any.
    """
    models = ("global",) if method.terms(1).personal_lambda is None else ("global", "personal")
    return (
        *("round", "participants", "replies_used", "refused", "missing", "offline", "decided_by"),
        *(("clipped",) if method.clip_updates else ()),
        "percent_of_participants_improved",
        *(f"{score.column(model)}_{measure}" for model in models for measure in MEASURES),
        *((f"{score.column(split='validation')}_mean",) if validated else ()),
        *(report.replace("-", "_") for report in method.reports),
        *("bytes_sent", "bytes_received", "seconds"),
    )


def round_row(
    finished: Round, seconds: float, reports: Iterable[str] = (), score: Score = ACCURACY
) -> dict[str, object]:
    """Return a round's row of rounds.csv; `reports` are the metrics that the method itself tells."""
    row: dict[str, object] = {
        "round": finished.number,
        "participants": len(finished.participants),
        "replies_used": len(finished.coefficients),
        "refused": SEPARATOR.join(
            f"{shlex.quote(name)}: {reason.replace(SEPARATOR, ' / ')}" for name, reason in finished.refused.items()
        ),
        "missing": shlex.join(finished.missing),
        "offline": shlex.join(finished.offline),
        "decided_by": finished.decided_by,
        **({"clipped": shlex.join(finished.clipped)} if finished.clipped else {}),
        "bytes_sent": finished.bytes_sent,
        "bytes_received": finished.bytes_received,
        "seconds": round(seconds, 6),
    }
    told, measured = finished.train_metrics, finished.evaluations
    before = {name: m[names.LOSS_BEFORE] for name, m in told.items() if names.LOSS_BEFORE in m}
    after = {name: m[names.TRAIN_LOSS] for name, m in measured.items() if name in before and names.TRAIN_LOSS in m}
    if after:
        row["percent_of_participants_improved"] = percent_improved({name: before[name] for name in after}, after)
    for model, metric in (("global", score.name), ("personal", f"{score.name}-{names.PERSONAL}")):
        values = {name: score.shown(m[metric]) for name, m in measured.items() if metric in m}
        if values:
            spread = summarize(values, lower_is_better=not score.higher_is_better)
            row |= {f"{score.column(model)}_{measure}": value for measure, value in spread.items()}
    on_validation = f"{score.name}-{names.VALIDATION}"
    if values := {name: score.shown(m[on_validation]) for name, m in measured.items() if on_validation in m}:
        row[f"{score.column(split='validation')}_mean"] = summarize(values)["mean"]
    return row | {report.replace("-", "_"): finished.metrics.get(report) for report in reports}


def client_rows(
    finished: Round, scores: Iterable[Score] = (ACCURACY,), *, validated: bool = False
) -> list[tuple[object, ...]]:
    """Return the cells of `client_columns` for each client that evaluated the round's model."""
    scores = tuple(scores)
    validation = [(score, f"{score.name}-{names.VALIDATION}") for score in scores] if validated else []
    shown = [(score, metric) for score in scores for metric in (score.name, f"{score.name}-{names.PERSONAL}")]
    number, coefficients, told = finished.number, finished.coefficients, finished.train_metrics
    nothing: Mapping[str, float] = {}
    return [
        (
            number,
            name,
            1 if name in coefficients else 0,
            coefficients.get(name),
            int(measured[names.NUM_EXAMPLES]),
            *[score.shown(measured[metric]) if metric in measured else None for score, metric in shown],
            measured.get(names.LOSS),
            told.get(name, nothing).get(names.LOSS_BEFORE),
            measured.get(names.TRAIN_LOSS),
            *[score.shown(measured[metric]) if metric in measured else None for score, metric in validation],
            *([measured.get(f"{names.LOSS}-{names.VALIDATION}")] if validated else []),
        )
        for name, measured in sorted(finished.evaluations.items())
    ]


def names_in(cell: str) -> list[str]:
    """Return the names of a cell of the columns missing and offline."""
    try:
        return shlex.split(cell)
    except ValueError:  # an older version wrote names with quotation marks as they are
        return cell.split()


def absent_in(row: Mapping[str, str], kind: str) -> list[str]:
    """Return the clients that a row of rounds.csv names as refused, missing or offline, which `kind` says."""
    cell = row.get(kind, "")
    return [name for name, _ in refusals_in(cell)] if kind == "refused" else names_in(cell)


def read_table(path: Path, columns: Collection[str]) -> list[dict[str, str]]:
    """Return the rows of a finished run's table.

    Raises
    ------
    RunFolderError
        When the file is missing, torn or something else, or lacks one of `columns`.
    """
    with _readable(path, "Restore it from a copy, or run again with another folder (--out)"):
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            raise ValueError("its last line is torn")
        header, rows = _parsed(content)
        if lacking := [column for column in columns if column not in header]:
            raise ValueError(f"it has no column {lacking[0]}")
        return rows


def read_rows(path: Path, columns: Collection[str], *, finished: bool) -> list[dict[str, str]]:
    """Return the rows of a run's table; of an unfinished one the last line may be torn, or the file not there yet.

    Raises
    ------
    RunFolderError
        When the file cannot be read, or is something else.
    """
    if finished:
        return read_table(path, columns)
    try:
        content = path.read_bytes()
        text = content[: content.rfind(b"\n") + 1].decode()
        rows = [row for row in csv.DictReader(io.StringIO(text, newline="")) if None not in row.values()]
        if rows and not all(row.get("round", "").isdecimal() for row in rows):
            raise ValueError("it is no table of rounds")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. Restore it from a copy") from error
    return rows


def refusals_in(cell: str) -> list[tuple[str, str]]:
    """Return the clients and reasons of a cell of the column `refused`, as `round_row` writes it."""
    found: list[tuple[str, str]] = []
    for part in cell.split(SEPARATOR):
        name, colon, reason = part.partition(": ")
        if quoted := REFUSED.match(part):
            found.append((names_in(quoted[1])[0], part[quoted.end() :]))
        elif colon:  # a name with spaces, as an older version wrote it
            found.append((name, reason))
        elif found:  # a reason that has the separator in it, as an older version wrote it
            found[-1] = (found[-1][0], f"{found[-1][1]}{SEPARATOR}{part}")
    return found


class TableWriter:
    """A table of a run that goes on: rows wait in memory until they are written.

    Parameters
    ----------
    path
        The file.
    columns
        Its first line.
    """

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self.columns = columns
        self._size = 0
        self._waiting: list[str] = []

    def cut_back(self, last: int, furthest: float) -> None:
        """Rewrite the file with the rows up to round `last`, or start it; rows of later rounds may be torn.

        Raises
        ------
        RunFolderError
            As `check` does.
        """
        kept = [row for row in self.check(last, furthest) if int(row["round"]) <= last]
        content = as_csv(self.columns, kept, header=True).encode()
        write_whole(self.path, content)
        self._size, self._waiting = len(content), []

    def check(self, last: int, furthest: float = math.inf) -> list[dict[str, str]]:
        """Return the file's rows, of which those of rounds after `last` may be torn.

        Raises
        ------
        RunFolderError
            When the file is something else, or goes beyond round `furthest`, so that checkpoints must have been lost.
        """
        rows: list[dict[str, str]] = []
        with _readable(self.path, BEGUN):
            if self.path.exists():
                header, rows = _begun(self.path, last)
                if unknown := [column for column in header if column not in self.columns]:
                    raise ValueError(f"its column {unknown[0]} is none of this run's")
            recorded = max((int(row["round"]) for row in rows), default=0)
            if recorded > furthest:
                raise ValueError(f"it goes up to round {recorded}, while the last checkpoint is of round {last}")
        return rows

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Let rows wait, given by their cells."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._waiting.append(text.getvalue())

    def write(self) -> None:
        """Write the rows that wait, all of them or, where the disk does not take them, none.

        Where it was interrupted, it can be called again: rows go to where the last whole ones end.
        """
        if content := "".join(self._waiting).encode():
            write_at(self.path, self._size, content)
            self._size, self._waiting = self._size + len(content), []


def furthest_round(path: Path, last: int, shared_seconds: float) -> int:
    """Return up to which round tables may go by rounds.csv: as far as KEPT checkpoints after that of `last` reach.

    By the seconds that the rounds took: a checkpoint holds rounds of `shared_seconds` together, but for the last one.

    Raises
    ------
    RunFolderError
        When the file is no table of rounds.
    """
    furthest, held, seconds = last + KEPT, 0, 0.0
    with _readable(path, BEGUN):
        later = [row for row in _begun(path, last)[1] if int(row["round"]) > last] if path.exists() else []
        for row in later:
            if held == KEPT:
                break
            furthest = max(furthest, int(row["round"]))
            seconds += float(row.get("seconds") or 0.0)
            if seconds >= shared_seconds:
                held, seconds = held + 1, 0.0
    return furthest


def last_step(path: Path) -> int:
    """Return the last round in a table of rounds that used a reply, 0 where none did.

    Raises
    ------
    RunFolderError
        When the file is no table of rounds.
    """
    with _readable(path, BEGUN):
        rows = _begun(path, 0)[1] if path.exists() else []
        return max((int(row["round"]) for row in rows if int(row["replies_used"] or 0)), default=0)


BEGUN = "Restore what is missing from a copy, or move the table away to begin a new one"
"""What can be done about a table of a run that goes on, where it cannot be read."""


def _begun(path: Path, last: int) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header and the rows of a table whose last line, and rows after round `last`, may be torn."""
    content = path.read_bytes()
    return _parsed(content[: content.rfind(b"\n") + 1], last)


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    """Turn what is wrong with a table into a RunFolderError with the remedy."""
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        fault = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(f"{path} cannot be read: {fault}. {remedy}") from error


def _parsed(content: bytes, last: float = math.inf) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header and the rows of a table, of which those up to round `last` are whole.

    Raises
    ------
    ValueError, csv.Error
        When this is no table of rounds, or a row up to round `last` is torn.
    """
    csv.field_size_limit(sys.maxsize)  # the reasons of many refused clients, in one cell, may exceed the library's
    # Rows after round `last` may end within quotes, which the library takes for torn where it is strict.
    reader = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=last == math.inf)
    header, rows = list(reader.fieldnames or ()), []
    if "round" not in header:
        raise ValueError("its first line has no column round")
    for row in reader:
        if not (row["round"] or "").isdecimal():
            raise ValueError(f"the round in line {reader.line_num} is {row['round']!r}")
        if int(row["round"]) <= last and (None in row or None in row.values()):
            raise ValueError(f"line {reader.line_num} has more or fewer cells than the first")
        rows.append(row)
    return header, rows


def write_at(path: Path, size: int, content: bytes) -> None:
    """Write to a file's end, which is at `size`: all of it or, where the disk does not take it, nothing."""
    with path.open("r+b", buffering=0) as file:
        try:
            file.seek(size)
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def as_csv(columns: tuple[str, ...], rows: Iterable[Row], *, header: bool = False) -> str:
    """Return rows as CSV text with Unix line ends."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
