"""The run folder: settings, a row a round, a row a client, the checkpoint and the models."""

import csv
import io
import json
import os
import platform
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.strategies import FairStrategy, Round

from .checkpoint import Arrays, load_checkpoint, save_checkpoint, save_model, write_whole
from .fairness import percent_improved, summarize
from .settings import Settings, default_config

FORMAT = 1
"""Of the run folder; a folder of a higher one was written by a newer version."""

ACCURACY = "test_accuracy_of_global_model"
"""In percent, of each client on its own test split."""

WITHOUT_EFFECT = {"out", "log-format", "metrics-port", "enrolled-sizes"}
"""Settings that may differ when a run is continued: where it is and what it tells, and which clients have enrolled."""

LIMITS = {"max-growth", "loss-limit"}
"""Settings that may be changed until a run is finished: an honest client may have met one of them."""

LOCK = ".lock"
"""The file that says which process writes to the folder; it is there no longer than that process works."""

FIRST_LAID = (LOCK, "checkpoint", "env.json", ".env.json.draft", ".config.toml.draft")
"""What a folder may hold whose making was interrupted before its settings were written."""

PERSONAL = "test_accuracy_of_personal_model"
"""In percent, of each client's own model, where the method has one."""

MEASURES = tuple(summarize({"anyone": 1.0}))

CLIENT_COLUMNS = (
    "round",
    "client",
    "participated",
    "coefficient",
    "test_examples",
    ACCURACY,
    PERSONAL,
    "test_loss_of_global_model",
    "train_loss_before_round",
    "train_loss_of_global_model",
)

Row = Mapping[str, object]


class RunFolderError(ValueError):
    """A folder that cannot be used or written; the message says why and what would do."""


class RunFolder:
    """What a run leaves on disk, and what it continues from.

    Rows of a round are written before its checkpoint, which is replaced whole; rows of later rounds than the
    checkpoint's are dropped when the run continues. So a run killed at any moment loses at most the round under way.

    Parameters
    ----------
    path
        The folder; made if it is not there.
    settings
        Of the run.

    Raises
    ------
    RunFolderError
        When the folder holds something else: another program's files, a run with other settings, or one of a newer
        version.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self._best: Mapping[str, float] = {}
        strategy = settings.strategy()
        self._columns, self._reports = round_columns(strategy), strategy.reports
        config = settings.run_config()
        check_folder(path, config)
        if not (path / "config.toml").exists():
            self._lay_out(config)
        elif not self.finished and _read(path)[1] != config:
            self._write_settings(config)

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return is_finished(self.path)

    def resume(self) -> tuple[Arrays, Mapping[str, Any]] | None:
        """Return the model and the strategy's state after the last finished round, None where there is none yet."""
        checkpoint = self.path / "checkpoint" / "round.safetensors"
        if not checkpoint.exists():
            arrays, state = None, {"strategy": {"round": 0}, "best": {}}
        else:
            arrays, state = load_checkpoint(checkpoint)
        self._best, last = state["best"], state["strategy"]["round"]
        with written(f"what is there up to round {last}", self.path):
            keep_rows(self.path / "rounds.csv", self._columns, last)
            keep_rows(self.path / "clients.csv", CLIENT_COLUMNS, last)
        return None if arrays is None else (arrays, state["strategy"])

    def record(self, finished: Round, state: Mapping[str, Any], seconds: float) -> Row:
        """Write a finished round: its rows, the best model so far, and the checkpoint; return the round's row.

        Raises
        ------
        RunFolderError
            When the disk does not take it; the last checkpoint is intact.
        """
        row = round_row(finished, seconds, self._reports)
        arrays = {name: array.numpy() for name, array in finished.arrays.items()}
        with written(f"round {finished.number}", self.path):
            append(self.path / "rounds.csv", self._columns, [row])
            append(self.path / "clients.csv", CLIENT_COLUMNS, client_rows(finished))
            mean = row.get(f"{ACCURACY}_mean")
            if isinstance(mean, float) and mean > self._best.get("mean", -1.0):
                self._best = {"mean": mean, "round": finished.number}
                about = {"round": finished.number, f"{ACCURACY}_mean": mean}
                save_model(self.path / "model-best.safetensors", arrays, about)
            checkpoint = self.path / "checkpoint" / "round.safetensors"
            save_checkpoint(checkpoint, arrays, {"strategy": state, "best": self._best})
        return row

    def finish(self, arrays: Arrays) -> None:
        """Write the final model, which marks the run as finished."""
        with written("the final model", self.path):
            save_model(self.path / "model.safetensors", arrays, {})

    def _lay_out(self, config: Mapping[str, object]) -> None:
        with written("the run folder", self.path):
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            about = {"machine": platform.platform(), "processors": os.cpu_count(), "python": platform.python_version()}
            packages = {name: version(name) for name in ("flwr", "torch", "numpy", "cvxopt")}
            write_whole(self.path / "env.json", json.dumps(about | packages, indent=2).encode())
        # The settings come last: a folder without them was killed while it was made, and is made again.
        self._write_settings(config)

    def _write_settings(self, config: Mapping[str, object]) -> None:
        with written("the run folder", self.path):
            write_whole(self.path / "config.toml", tomli_w.dumps({"run-folder-format": FORMAT, **config}).encode())


@contextmanager
def written(what: str, folder: Path) -> Iterator[None]:
    """Say what a disk did not take, and what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{what} cannot be written to {folder}: {error.strerror}. Everything up to the last checkpoint is "
            "intact: make room there, or mend its permissions, and run the same command again"
        ) from error


def is_finished(path: Path) -> bool:
    """Return whether the run in a folder is over."""
    return (path / "model.safetensors").exists()


def check_folder(path: Path, config: Mapping[str, object]) -> None:
    """Raise RunFolderError when a run with these settings cannot be, or go on, in `path`; nothing is changed."""
    if not (path / "config.toml").exists():
        if path.exists() and not (path.is_dir() and all(entry.name in FIRST_LAID for entry in path.iterdir())):
            raise RunFolderError(f"{path} is there already and is no run folder: choose another --out")
        return
    number, there = _read(path)
    if number > FORMAT:
        raise RunFolderError(
            f"{path} was written by a newer version (run-folder-format = {number}, this version knows {FORMAT}): "
            "upgrade fairbloom or choose another --out"
        )
    # A setting that is newer than the folder had its default.
    there = {key: value for key, value in default_config().items() if key in config} | there
    free = WITHOUT_EFFECT if is_finished(path) else WITHOUT_EFFECT | LIMITS
    differing = sorted(k for k in (config.keys() | there.keys()) - free if config.get(k) != there.get(k))
    if differing:
        shown = ", ".join(f"{key} = {there.get(key)!r} there and {config.get(key)!r} here" for key in differing)
        raise RunFolderError(f"{path} belongs to a run with other settings ({shown}): choose another --out")


def _read(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the number of a run folder's format, and its settings."""
    there = tomllib.loads((path / "config.toml").read_text())
    return there.pop("run-folder-format", 0), there


def round_columns(strategy: FairStrategy) -> tuple[str, ...]:
    """Return the columns of rounds.csv: those of personal models, and the method's own, only where there are any."""
    accuracies = (ACCURACY, PERSONAL) if "personal-lambda" in strategy.objective(1) else (ACCURACY,)
    return (
        *("round", "participants", "replies_used", "refused", "missing", "decided_by"),
        "percent_of_participants_improved",
        *(f"{accuracy}_{measure}" for accuracy in accuracies for measure in MEASURES),
        *(report.replace("-", "_") for report in strategy.reports),
        *("bytes_sent", "bytes_received", "seconds"),
    )


def round_row(finished: Round, seconds: float, reports: Iterable[str] = ()) -> dict[str, object]:
    """Return a round's row of rounds.csv."""
    row: dict[str, object] = {
        "round": finished.number,
        "participants": len(finished.participants),
        "replies_used": len(finished.coefficients),
        "refused": " | ".join(f"{name}: {reason}" for name, reason in finished.refused.items()),
        "missing": " ".join(finished.missing),
        "decided_by": finished.decided_by,
        "bytes_sent": finished.bytes_sent,
        "bytes_received": finished.bytes_received,
        "seconds": round(seconds, 6),
    }
    before = {n: m["loss-before"] for n, m in finished.train_metrics.items() if "loss-before" in m}
    after = {n: m["train-loss"] for n, m in finished.evaluations.items() if n in before and "train-loss" in m}
    if after:
        row["percent_of_participants_improved"] = percent_improved({name: before[name] for name in after}, after)
    for column, metric in ((ACCURACY, "accuracy"), (PERSONAL, "accuracy-personal")):
        accuracies = {name: 100.0 * m[metric] for name, m in finished.evaluations.items() if metric in m}
        if accuracies:
            row |= {f"{column}_{measure}": value for measure, value in summarize(accuracies).items()}
    return row | {report.replace("-", "_"): finished.metrics.get(report) for report in reports}


def client_rows(finished: Round) -> list[Row]:
    """Return a row of clients.csv for each client that evaluated."""
    return [
        {
            "round": finished.number,
            "client": name,
            "participated": int(name in finished.coefficients),
            "coefficient": finished.coefficients.get(name),
            "test_examples": measured["num-examples"],
            ACCURACY: 100.0 * measured["accuracy"] if "accuracy" in measured else None,
            PERSONAL: 100.0 * measured["accuracy-personal"] if "accuracy-personal" in measured else None,
            "test_loss_of_global_model": measured.get("loss"),
            "train_loss_before_round": finished.train_metrics.get(name, {}).get("loss-before"),
            "train_loss_of_global_model": measured.get("train-loss"),
        }
        for name, measured in sorted(finished.evaluations.items())
    ]


def keep_rows(path: Path, columns: tuple[str, ...], last: int) -> None:
    """Rewrite a table with the rows up to round `last`, or start it; a line without its end was torn."""
    content = path.read_bytes() if path.exists() else b""
    whole_lines = io.StringIO(content[: content.rfind(b"\n") + 1].decode(), newline="")
    rows = [row for row in csv.DictReader(whole_lines) if int(row["round"]) <= last]
    write_whole(path, as_csv(columns, rows, header=True).encode())


def append(path: Path, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    """Add rows to a table, all of them or, where the disk does not take them, none."""
    content = as_csv(columns, rows).encode()
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except OSError:
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
