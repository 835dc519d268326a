"""Arrays and a state of plain values in one safetensors file, sealed by a checksum; the last ones are kept."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.logs import log
from fairbloom.system import sealed
from fairbloom.system.sealed import Arrays as Arrays
from fairbloom.system.sealed import save_model as save_model

from .run_folder.errors import RunFolderError

KEPT = 2
"""How many checkpoints a run continues from: the last one, and the one before it in case the last is damaged."""

EARLIER, BEST, SPREAD = "earlier", 2, 2
"""Folder of earlier checkpoints, to which a run may be taken back; how many are kept for their scores, and how many
others at growing distance."""


@dataclass(frozen=True)
class Merit:
    """What decides whether an earlier checkpoint is kept.

    `score` is the mean score, higher is better, None if not evaluated; `crossed` is n where the rounds since the
    previous checkpoint crossed a multiple of 2^(n-1).
    """

    score: float | None
    crossed: int

    @classmethod
    def of(cls, number: int, before: int, score: float | None) -> Self:
        """Return that of the checkpoint of round `number`, which follows the one of round `before`."""
        return cls(score, (number ^ before).bit_length())


def select_kept(merits: Mapping[int, Merit]) -> set[int]:
    """Return which of these rounds' checkpoints are kept: the best by score, and of the others those farthest apart."""
    scored = [(merit.score, number) for number, merit in merits.items() if merit.score is not None]
    best = {number for _, number in sorted(scored)[-BEST:]}
    others = [(merit.crossed, number) for number, merit in merits.items() if number not in best]
    return best | {number for _, number in sorted(others)[-SPREAD:]}


def save_round(
    folder: Path,
    number: int,
    arrays: Arrays,
    state: Mapping[str, Any],
    before: int,
    merits: Mapping[int, Merit] = MappingProxyType({}),
) -> None:
    """Write a round's checkpoint, then delete all but that of round `before` and a few earlier ones."""
    save_checkpoint(folder / f"{number}.safetensors", arrays, state)
    earlier = {round_: merit for round_, merit in merits.items() if round_ < before}
    there = list_reachable(folder) & earlier.keys()
    wanted = select_kept({round_: earlier[round_] for round_ in there})
    for path in list_checkpoints(folder):
        if int(path.stem) in wanted:
            (folder / EARLIER).mkdir(exist_ok=True)
            path.replace(folder / EARLIER / path.name)
        elif int(path.stem) not in (number, before):
            path.unlink()
    remove_checkpoints(folder / EARLIER, lambda round_: round_ not in {number, before, *wanted})


def remove_checkpoints(folder: Path, goes: Callable[[int], bool]) -> None:
    """Remove the checkpoints of rounds that are to go from a folder, and the best models up to them."""
    for path in folder.glob("*.safetensors"):
        name = re.fullmatch(r"(?:best-)?(\d+)", path.stem)
        if name and goes(int(name[1])):
            path.unlink()


def path_of_best(folder: Path, number: int) -> Path:
    """Return where the best model up to the checkpoint of a round lies, if that is the model of another round."""
    return folder / EARLIER / f"best-{number}.safetensors"


def list_reachable(folder: Path) -> set[int]:
    """Return the rounds whose checkpoints are in a folder or among its earlier ones."""
    return {int(path.stem) for path in (*list_checkpoints(folder), *list_checkpoints(folder / EARLIER))}


def format_rounds(rounds: Iterable[int]) -> str:
    """Return numbers of rounds as a text lists them."""
    *first, last = map(str, sorted(rounds))
    return f"rounds {', '.join(first)} and {last}" if first else f"round {last}"


def find_checkpoint(folder: Path, number: int) -> Path:
    """Return where the checkpoint of a round lies, or would."""
    path = folder / f"{number}.safetensors"
    return path if path.exists() else folder / EARLIER / path.name


def make_last(folder: Path, number: int) -> None:
    """Make a round's checkpoint the last one and delete later ones; round 0 deletes all. It may be called again."""
    if number and (path := find_checkpoint(folder, number)).parent != folder:
        path.replace(folder / path.name)
    for each in (folder, folder / EARLIER):
        remove_checkpoints(each, lambda round_: round_ > number)


def load_last(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return model and state of the newest intact checkpoint, None if there is none; raise if all are damaged."""
    faults: list[str] = []
    for path in list_checkpoints(folder):
        try:
            loaded = load_checkpoint(path)
        except RunFolderError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            log.warning("%s; the run continues from the checkpoint before it, %s", fault, path.name)
        return loaded
    if faults:
        earlier = [int(path.stem) for path in list_checkpoints(folder / EARLIER)]
        way = f"take it back to one of {format_rounds(earlier)} by --from-round, " if earlier else ""
        raise RunFolderError(
            f"the run cannot be continued: {'; '.join(faults)}. Put back a copy, {way}or choose another folder (--out) "
            "to begin again"
        )
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    return sorted(folder.glob("[0-9]*.safetensors"), key=lambda path: int(path.stem), reverse=True)


def save_checkpoint(path: Path, arrays: Arrays, state: Mapping[str, Any]) -> None:
    """Write the global model and a state made of str, numbers, None, arrays, lists and dicts."""
    tensors = {f"model/{name}": np.asarray(array) for name, array in arrays.items()}
    plain = _detach(state, tensors)
    save_model(path, tensors, {"state": plain, "names": list(arrays)})


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return model and state from a checkpoint; raise RunFolderError when the file is damaged."""
    tensors, about = load_model(path)
    return {name: tensors[f"model/{name}"] for name in about["names"]}, _attach(about["state"], tensors)


def read_about(path: Path) -> dict[str, Any]:
    """Return what was written about a model, with its checksum `sha256`, without reading its arrays."""
    with _explain_damage():
        return sealed.read_about(path)


def load_model(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a model's arrays and what was written about them; raise RunFolderError when the file is damaged."""
    with _explain_damage():
        return sealed.load_model(path)


@contextmanager
def _explain_damage() -> Iterator[None]:
    try:
        yield
    except sealed.DamagedFileError as error:
        raise RunFolderError(str(error)) from error


def _detach(value: Any, tensors: dict[str, NDArray[Any]]) -> Any:
    """Return `value` as JSON knows it, its arrays moved to `tensors` and referred to by name."""
    if isinstance(value, np.ndarray):
        name = f"state/{len(tensors)}"
        tensors[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        return {"dict": {key: _detach(item, tensors) for key, item in value.items()}}
    if isinstance(value, list):
        return [_detach(item, tensors) for item in value]
    return value


def _attach(value: Any, tensors: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_attach(item, tensors) for item in value]
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]]
    if isinstance(value, dict):
        return {key: _attach(item, tensors) for key, item in value["dict"].items()}
    return value
