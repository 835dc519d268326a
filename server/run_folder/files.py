"""The files of a run folder: each is declared once, with its name and how it is written and read.

A file with `initial` is written when a run begins.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from numpy.typing import NDArray

from fairbloom.logs import log
from fairbloom.protocol.names import MODEL_MADE_FILE, ROWS_MISSING, ROWS_VERSION
from fairbloom.protocol.scores import ACCURACY, NO_UNIT, Score
from fairbloom.rounds.round import Round
from fairbloom.rounds.screening import LARGEST_COUNT
from fairbloom.system.files import write_whole
from fairbloom.system.lock import is_held
from fairbloom.system.sealed import read_about
from fairbloom.system.values import decode_as
from fairbloom.tables.preprocessing import PREPROCESSING as PREPROCESSING_NAME, Preprocessing
from fairbloom.tables.schema import SCHEMA_NAME
from fairbloom.text import join_first, text_if

from ..checkpoint import Arrays, load_last, load_model, save_model
from .errors import (
    RunFolderError,
    explain_access_errors,
    explain_read_errors,
    explain_write_errors,
)
from .group_rows import GROUP_KEYS, Grouped
from .metrics import METRIC_COLUMNS
from .tables import Cells, read_table
from .values import Known, RecordedSettings, RunStart

if TYPE_CHECKING:
    from fairbloom.tasks.models.made import Made
    from fairbloom.tasks.split import Split

T = TypeVar("T")

# The file that marks the folder of a study.
STUDY = "study.json"

# The keys in data.json of the clients that are left out, and of the columns on which a question has
# no answer; all other keys are files.
LEFT_OUT = "left-out"
QUESTIONS = "questions"
NO_FILES = (LEFT_OUT, QUESTIONS)


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """A file or a folder in a run folder; docs/data/run-folder.csv describes their content."""

    name: str

    def path_in(self, folder: Path) -> Path:
        """Return its path in a run folder, whether or not it exists."""
        return folder / self.name

    def exists_in(self, folder: Path) -> bool:
        """Return whether a run folder has it."""
        return self.path_in(folder).exists()


@dataclass(frozen=True, eq=False, kw_only=True)
class File(Entry, Generic[T]):
    """A file of one value, which is written whole or not at all.

    `decode` raises ValueError, KeyError or TypeError for other bytes; `default` is the value if the
    file is missing; `initial` returns the value when a run begins, None for no file.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    default: T
    remedy: str = "Restore it from a copy"
    initial: Callable[[RunStart], T | None] = lambda start: None

    def read(self, folder: Path) -> T:
        """Return the value, or `default`; raise RunFolderError if the file is damaged."""
        path = self.path_in(folder)
        with explain_read_errors(path, self.remedy):
            return self.decode(path.read_bytes()) if path.exists() else self.default

    def write(self, folder: Path, value: T) -> None:
        """Write the value; raise RunFolderError if it cannot be written."""
        with explain_write_errors(self.name, folder):
            write_whole(self.path_in(folder), self.encode(value))


@dataclass(frozen=True, eq=False, kw_only=True)
class TableFile(Entry):
    """A table to which a `TableWriter` adds rows; the columns `needed` are required."""

    needed: tuple[str, ...]

    def read(self, folder: Path) -> list[Cells]:
        """Return the rows; an unfinished run's last line may be torn, or its file missing."""
        return read_table(self.path_in(folder), self.needed, finished=is_finished(folder))


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFile(Entry):
    """A model: arrays by name, with metadata and a checksum of all."""

    def read(self, folder: Path) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise DamagedFileError if the file is damaged."""
        return load_model(self.path_in(folder))[0]

    def read_about(self, folder: Path) -> dict[str, Any]:
        """Return the metadata, with the checksum `blake3`, without reading the arrays.

        Raise DamagedFileError if the file has none.
        """
        return read_about(self.path_in(folder))

    def write(self, folder: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
        """Write the model; the caller handles an OSError."""
        save_model(self.path_in(folder), arrays, about)


# How values are written ---------------------------------------------------------------------------


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def _decode_object(content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _decode_scores(content: bytes) -> tuple[Score, ...]:
    written = [{**NO_UNIT, **each} for each in json.loads(content)]
    columns = [each.pop("column") for each in written]
    scores = decode_as(tuple[Score, ...], written)
    if columns != [score.column() for score in scores]:
        raise ValueError(f"its columns are {columns}, which are not those of its scores")
    return scores


def _describe_data(start: RunStart) -> dict[str, Any]:
    """Return the files' checksums, which clients are left out, and what has not been answered."""
    columns = [each.column for each in start.task.ask()]
    found = {**start.data, LEFT_OUT: start.task.left_out, QUESTIONS: columns}
    return {key: value for key, value in found.items() if value}


def _splits() -> "type[Split]":
    from fairbloom.tasks.split import Split  # imported late: it needs PyTorch

    return Split


def _decode_made(content: bytes) -> "Made":
    from fairbloom.tasks.models.made import Made  # imported late: it needs PyTorch

    return Made.decode(content)


def _encode_optional(value: "Preprocessing | Grouped | Made | None") -> bytes:
    return b"" if value is None else value.encode()


# Files --------------------------------------------------------------------------------------------

CONFIG = File[RecordedSettings](
    name="config.toml",
    encode=RecordedSettings.encode,
    decode=RecordedSettings.decode,
    default=RecordedSettings(),
    remedy="Correct it, restore it from a copy, or choose another folder (--out)",
)

ENVIRONMENT = File[Mapping[str, Any]](
    name="env.json", encode=_encode_json, decode=_decode_object, default={}
)

SCORES = File[Sequence[Score]](
    name="scores.json",
    encode=lambda scores: _encode_json(
        [{"column": score.column(), **asdict(score)} for score in scores]
    ),
    decode=_decode_scores,
    default=(ACCURACY,),
)

DATA = File[Mapping[str, Any]](
    name="data.json",
    encode=_encode_json,
    decode=_decode_object,
    default={},
    initial=lambda start: _describe_data(start) or None,
)

# The key in EXAMPLES of the numbers of examples of each client, see `Splits.count`.
COUNTS = "clients"

EXAMPLES = File[Mapping[str, Any]](
    name="examples.json",
    encode=_encode_json,
    decode=_decode_object,
    default={},
    remedy="Restore it from a copy, or delete it",
    # what seeds do to the data of a user's own task, and that no client has trained
    initial=lambda start: {"seeds": start.task.seeds, "trained": {}} if start.is_own else None,
)

SCHEMA = File[str](
    name=SCHEMA_NAME,
    encode=str.encode,
    decode=bytes.decode,
    default="",
    remedy="Restore it from a copy, or choose another folder (--out)",
    initial=lambda start: start.task.schema or None,
)

PREPROCESSING = File[Preprocessing | None](
    name=PREPROCESSING_NAME,
    encode=_encode_optional,
    decode=Preprocessing.decode_file,
    default=None,
    initial=lambda start: start.task.preprocessing and start.task.preprocessing(""),
)

MODULES = File[Mapping[str, str]](
    name="modules.json",
    encode=_encode_json,
    decode=_decode_object,
    default={},
    remedy="Restore it from a copy, or choose another folder (--out)",
)

SPLIT = File["Split | None"](
    name="split.npz",
    encode=lambda split: b"" if split is None else split.to_bytes(),
    decode=lambda content: _splits().from_bytes(content),
    default=None,
    initial=lambda start: (
        None if start.deployed or start.task.dealt is None else _splits().of(start.task)
    ),
)

MADE = File["Made | None"](
    name=MODEL_MADE_FILE,
    encode=_encode_optional,
    decode=_decode_made,
    default=None,
    remedy="Restore it from a copy, or delete it",
    initial=lambda start: start.made,
)

ENGINE = File["Mapping[str, Any] | None"](
    name="engine.json",
    encode=_encode_json,
    decode=_decode_object,
    default=None,
    remedy="Restore it from a copy, or delete it",
    initial=lambda start: start.engine or None,
)

PRIVACY = File[Mapping[str, Any]](
    name="privacy.json",
    encode=_encode_json,
    decode=_decode_object,
    default={},
    remedy="Restore it from a copy, or delete it",
)

# Of each device, a round, the number of the table that it had from then on, and how many fewer rows
# that table has than the one before it, by the device's word.
ROWS = File[Mapping[str, Sequence[Sequence[int]]]](
    name="rows.json",
    encode=_encode_json,
    decode=_decode_object,
    default={},
    remedy="Restore it from a copy, or delete it",
)

# How results call clients that are not in training.
NOT_IN_TRAINING = "not in training"

HELD_OUT = File[Mapping[str, Mapping[str, Mapping[str, float | None]]]](
    name="held-out.json", encode=_encode_json, decode=_decode_object, default={}
)

KNOWN = File[Known](
    name="known.json",
    encode=lambda known: _encode_json(asdict(known)),
    decode=lambda content: decode_as(Known, json.loads(content)),
    default=Known(),
    remedy="Restore it from a copy, or delete it",
)

ROUNDS = TableFile(name="rounds.csv", needed=("round",))

CLIENTS = TableFile(name="clients.csv", needed=("round", "client"))

COEFFICIENTS = TableFile(name="coefficients.csv", needed=("round", "client", "coefficient"))

METRICS = TableFile(name="metrics.csv", needed=METRIC_COLUMNS)

GROUPED = File["Grouped | None"](
    name="groups.json",
    encode=_encode_optional,
    decode=Grouped.decode,
    default=None,
    remedy="Restore it from a copy, or choose another folder (--out)",
    initial=lambda start: Grouped.of(start.task),
)

GROUPS = TableFile(name="groups.csv", needed=GROUP_KEYS)

CHECKPOINTS = Entry(name="checkpoint")

BEST = ModelFile(name="model-best.safetensors")

MODEL = ModelFile(name="model.safetensors")

PERSONAL = Entry(name="clients")

CONTEXTS = Entry(name="contexts")

# The clients' data frames as Parquet files; a study's folder has them, too.
FRAMES = Entry(name="data")

# Names the process that writes to the folder, while that process works.
LOCK = Entry(name=".lock")

# All that a run folder may have: every file and folder that is declared above, in this order.
ENTRIES = tuple(value for value in list(globals().values()) if isinstance(value, Entry))


def read_stop(folder: Path) -> str:
    """Return why a finished run has stopped before its last round, "" for all other runs."""
    return str(MODEL.read_about(folder).get("stopped", "")) if is_finished(folder) else ""


def log_finished(folder: Path) -> None:
    """Log that a run is finished, why it ended early if it did, and how to extend it."""
    stopped = read_stop(folder)
    log.info(
        "%s is finished%s; nothing to run: more num-rounds%s extend it, and another folder begins a"
        " new run",
        folder,
        text_if(stopped, f", since {stopped}"),
        text_if(stopped, ", and a larger early-stopping if that was the reason,"),
    )


def refuse_study(folder: Path) -> None:
    """Raise RunFolderError if a folder holds a study, which has a model for each of its runs."""
    with explain_access_errors(folder):
        if not (folder / STUDY).exists():
            return
    runs = sorted(each.parent.name for each in folder.glob(f"runs/*/{CONFIG.name}"))
    raise RunFolderError(
        f"{folder} holds several runs: name one in {folder / 'runs'}: {join_first(runs)}; or train"
        f" one on all rows by fairbloom refit {shlex.quote(str(folder))} --method METHOD"
    )


def is_run_folder(folder: Path) -> bool:
    """Return whether a run has begun in a folder."""
    return CONFIG.exists_in(folder)


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is over."""
    return MODEL.exists_in(folder)


def state_of(folder: Path) -> str:
    """Return the state of the run in a folder: finished, running or interrupted."""
    # The lock is checked first: a run that ends in between is finished, not interrupted.
    running = is_held(LOCK.path_in(folder))
    if is_finished(folder):
        return "finished"
    return "running" if running else "interrupted"


def read_model(folder: Path) -> dict[str, NDArray[Any]] | None:
    """Return the model after the last finished round, or None before it.

    Raise FairbloomError if it is damaged.
    """
    if is_finished(folder):
        return MODEL.read(folder)
    model, _ = load_last(CHECKPOINTS.path_in(folder)) or (None, {})
    return model


def write_initial_files(folder: Path, start: RunStart) -> None:
    """Write the files that a run has from its start, if they are missing or empty."""
    for entry in [each for each in ENTRIES if isinstance(each, File)]:
        is_written = entry.exists_in(folder) and entry.path_in(folder).stat().st_size
        if not is_written and (value := entry.initial(start)) is not None:
            entry.write(folder, value)


def record_trained(folder: Path, counts: Mapping[str, float]) -> None:
    """Add clients' numbers of training examples to those of a user's own task."""
    about = EXAMPLES.read(folder)
    trained = about.get("trained", {})
    new = {name: int(count) for name, count in counts.items() if name not in trained}
    if "seeds" in about and new:
        EXAMPLES.write(folder, {**about, "trained": {**trained, **new}})


def record_rows(folder: Path, finished: Round) -> list[str]:
    """Note what devices say of their tables; return the clients with others than before a round."""
    before = ROWS.read(folder)
    tables = {
        name: [change for change in changes if change[0] < finished.number]  # it may be repeated
        for name, changes in before.items()
    }
    changed = []
    for name, report in {**finished.train_metrics, **finished.evaluations}.items():
        if ROWS_VERSION not in report:
            continue
        number = int(report[ROWS_VERSION])
        last = [each for _, each, _ in tables.get(name, [])][-1:]
        if last != [number]:
            missing = int(min(max(report.get(ROWS_MISSING, 0), 0), LARGEST_COUNT))
            tables[name] = [*tables.get(name, []), [finished.number, number, missing]]
            changed += [name] * len(last)
    if tables != before:
        ROWS.write(folder, tables)
    return sorted(changed)


def describe_missing(missing: int) -> str:
    """Return in words that a device has this many fewer rows than before, and the remedy."""
    return (
        f"{missing} fewer rows, or units, than before its data last changed: if a file was cut off"
        " or a table is missing, its owner puts it back"
    )


def record_known(folder: Path, names: Iterable[str]) -> Known:
    """Add these clients to those that the run knows, on disk too, and return all of them."""
    before = KNOWN.read(folder)
    names = sorted(names)
    known = Known(before.began or tuple(names), tuple(sorted({*before.known, *names})))
    if known != before:
        KNOWN.write(folder, known)
    return known
