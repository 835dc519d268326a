"""The files of a run folder. Each is declared once: its name, and how it is written and read.

A file with `first` is written when a run begins.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from numpy.typing import NDArray

from fairbloom.logs import log
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.system.files import write_whole
from fairbloom.system.values import decode_as
from fairbloom.tasks.preprocessing import PREPROCESSING as PREPROCESSING_NAME, Preprocessing
from fairbloom.tasks.schema import SCHEMA as SCHEMA_NAME

from ..checkpoint import Arrays, load_last, load_model, read_about, save_model
from .errors import explain_read_errors, explain_write_errors
from .group_rows import GROUP_KEYS, Grouped
from .lock import LOCK as LOCK_NAME, is_running
from .metrics import METRIC_COLUMNS
from .tables import Cells, read_table
from .values import Known, RecordedSettings, RunStart

if TYPE_CHECKING:
    from fairbloom.tasks.split import Split

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """A file or a folder in a run folder; docs/data/run-folder.csv says what each holds."""

    name: str

    def path_in(self, folder: Path) -> Path:
        """Return where it lies in a run folder, or would."""
        return folder / self.name

    def exists_in(self, folder: Path) -> bool:
        """Return whether a run folder has it."""
        return self.path_in(folder).exists()


@dataclass(frozen=True, eq=False, kw_only=True)
class File(Entry, Generic[T]):
    """A file of one value, which is written whole or not at all.

    `decode` raises ValueError, KeyError or TypeError for other bytes; `absent` is the value where
    the file is missing; `first` returns what it holds when a run begins, None for no file.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    absent: T
    remedy: str = "Restore it from a copy"
    first: Callable[[RunStart], T | None] = lambda beginning: None

    def read(self, folder: Path) -> T:
        """Return the value, or `absent`; raise RunFolderError when the file is damaged."""
        path = self.path_in(folder)
        with explain_read_errors(path, self.remedy):
            return self.decode(path.read_bytes()) if path.exists() else self.absent

    def write(self, folder: Path, value: T) -> None:
        """Write the value; raise RunFolderError when the disk does not take it."""
        with explain_write_errors(self.name, folder):
            write_whole(self.path_in(folder), self.encode(value))


@dataclass(frozen=True, eq=False, kw_only=True)
class TableFile(Entry):
    """A table to which a `TableWriter` adds rows; the columns `needed` are required."""

    needed: tuple[str, ...]

    def read(self, folder: Path) -> list[Cells]:
        """Return the rows; of an unfinished run the last line may be torn, or the file missing."""
        return read_table(self.path_in(folder), self.needed, finished=is_finished(folder))


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFile(Entry):
    """A model: arrays by name, with a few words about them and a checksum of all."""

    def read(self, folder: Path) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise RunFolderError when the file is not as it was written."""
        return load_model(self.path_in(folder))[0]

    def read_about(self, folder: Path) -> dict[str, Any]:
        """Return the metadata of the arrays, with their checksum `sha256`, without reading them.

        Raise RunFolderError where the file has none.
        """
        return read_about(self.path_in(folder))

    def write(self, folder: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
        """Write the model; an OSError is the caller's to explain."""
        save_model(self.path_in(folder), arrays, about)


# How values are written ---------------------------------------------------------------------------


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def _decode_object(content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _decode_scores(content: bytes) -> tuple[Score, ...]:
    written = json.loads(content)
    columns = [each.pop("column") for each in written]
    scores = decode_as(tuple[Score, ...], written)
    if columns != [score.column() for score in scores]:
        raise ValueError(f"its columns are {columns}, which are not those of its scores")
    return scores


def _splits() -> "type[Split]":
    from fairbloom.tasks.split import Split  # imported late, as PyTorch is with it

    return Split


# Files --------------------------------------------------------------------------------------------

CONFIG = File[RecordedSettings](
    name="config.toml",
    encode=RecordedSettings.encode,
    decode=RecordedSettings.decode,
    absent=RecordedSettings(),
    remedy="Correct it, restore it from a copy, or choose another folder (--out)",
)

ENVIRONMENT = File[Mapping[str, Any]](
    name="env.json", encode=_encode_json, decode=_decode_object, absent={}
)

SCORES = File[Sequence[Score]](
    name="scores.json",
    encode=lambda scores: _encode_json(
        [{"column": score.column(), **asdict(score)} for score in scores]
    ),
    decode=_decode_scores,
    absent=(ACCURACY,),
)

DATA = File[Mapping[str, str]](
    name="data.json",
    encode=_encode_json,
    decode=_decode_object,
    absent={},
    first=lambda beginning: beginning.data or None,
)

SCHEMA = File[str](
    name=SCHEMA_NAME,
    encode=str.encode,
    decode=bytes.decode,
    absent="",
    remedy="Restore it from a copy, or choose another folder (--out)",
    first=lambda beginning: beginning.task.schema or None,
)

PREPROCESSING = File[Preprocessing | None](
    name=PREPROCESSING_NAME,
    encode=lambda preprocessing: b"" if preprocessing is None else preprocessing.encode(),
    decode=Preprocessing.decode_file,
    absent=None,
    first=lambda beginning: (
        beginning.task.preprocessing("") if beginning.task.preprocessing else None
    ),
)

MODULES = File[Mapping[str, str]](
    name="modules.json",
    encode=_encode_json,
    decode=_decode_object,
    absent={},
    remedy="Restore it from a copy, or choose another folder (--out)",
)

SPLIT = File["Split | None"](
    name="split.npz",
    encode=lambda split: b"" if split is None else split.to_bytes(),
    decode=lambda content: _splits().from_bytes(content),
    absent=None,
    first=lambda beginning: (
        None if beginning.deployed or beginning.task.dealt is None else _splits().of(beginning.task)
    ),
)

ENGINE = File["Mapping[str, Any] | None"](
    name="engine.json",
    encode=_encode_json,
    decode=_decode_object,
    absent=None,
    remedy="Restore it from a copy, or delete it",
    first=lambda beginning: beginning.engine or None,
)

KNOWN = File[Known](
    name="known.json",
    encode=lambda known: _encode_json(asdict(known)),
    decode=lambda content: decode_as(Known, json.loads(content)),
    absent=Known(),
    remedy="Restore it from a copy, or delete it",
)

ROUNDS = TableFile(name="rounds.csv", needed=("round",))

CLIENTS = TableFile(name="clients.csv", needed=("round", "client"))

COEFFICIENTS = TableFile(name="coefficients.csv", needed=("round", "client", "coefficient"))

METRICS = TableFile(name="metrics.csv", needed=METRIC_COLUMNS)

GROUPED = File["Grouped | None"](
    name="groups.json",
    encode=lambda grouped: b"" if grouped is None else grouped.encode(),
    decode=Grouped.decode,
    absent=None,
    remedy="Restore it from a copy, or choose another folder (--out)",
    first=lambda beginning: Grouped.of(beginning.task),
)

GROUPS = TableFile(name="groups.csv", needed=GROUP_KEYS)

CHECKPOINTS = Entry(name="checkpoint")

BEST = ModelFile(name="model-best.safetensors")

MODEL = ModelFile(name="model.safetensors")

PERSONAL = Entry(name="clients")

EXPORTS = Entry(name="exports")

LOCK = Entry(name=LOCK_NAME)

# All that a run folder may hold: every file and folder that is declared above, in that order.
ENTRIES = tuple(value for value in list(globals().values()) if isinstance(value, Entry))


def read_stop(folder: Path) -> str:
    """Return why a finished run has stopped before its last round, "" for all others."""
    if is_finished(folder):
        return str(MODEL.read_about(folder).get("stopped", ""))
    return ""


def log_finished(folder: Path) -> None:
    """Log that a run is finished, why it ended early if it did, and how to extend it."""
    reason = ""
    extends = "more num-rounds"
    if stopped := read_stop(folder):
        reason = f", since {stopped}"
        extends = "more num-rounds, and a larger early-stopping if that was the reason,"
    log.info(
        "%s is finished%s; nothing to run: %s extend it, and another folder begins a new run",
        folder,
        reason,
        extends,
    )


def runs_of_study(folder: Path) -> list[str]:
    """Return the names of the run folders in a study's folder, in ascending order.

    None where it is no study's.
    """
    return sorted(each.parent.name for each in folder.glob(f"runs/*/{CONFIG.name}"))


def is_run_folder(folder: Path) -> bool:
    """Return whether a run has begun in a folder."""
    return CONFIG.exists_in(folder)


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is over."""
    return MODEL.exists_in(folder)


def state_of(folder: Path) -> str:
    """Return the state of the run in a folder: finished, running or interrupted."""
    # Looked at first: a run that ends in between is finished, not interrupted.
    running = is_running(folder)
    if is_finished(folder):
        return "finished"
    return "running" if running else "interrupted"


def read_model(folder: Path) -> dict[str, NDArray[Any]] | None:
    """Return the model after the last finished round, or None.

    Raise if it is damaged.
    """
    if is_finished(folder):
        return MODEL.read(folder)
    last = load_last(CHECKPOINTS.path_in(folder))
    return None if last is None else last[0]


def write_first_files(folder: Path, beginning: RunStart) -> None:
    """Write what the files of a run hold when it begins, those that are missing or empty."""
    for entry in ENTRIES:
        if not isinstance(entry, File) or (
            entry.exists_in(folder) and entry.path_in(folder).stat().st_size
        ):
            continue
        if (value := entry.first(beginning)) is not None:
            entry.write(folder, value)


def record_known(folder: Path, names: Iterable[str]) -> Known:
    """Write which clients the run knows, where some of these are new, and return them all."""
    before = KNOWN.read(folder)
    names = sorted(names)
    known = Known(before.began or tuple(names), tuple(sorted({*before.known, *names})))
    if known != before:
        KNOWN.write(folder, known)
    return known
