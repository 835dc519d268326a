"""Arrays and a state of plain values in one safetensors file, sealed by a checksum; the last two are kept."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fairbloom.files import write_whole

from .files import RunFolderError

Arrays = Mapping[str, NDArray[Any]]

KEPT = 2
"""How many checkpoints a run keeps: the last one, and the one before it in case the last is damaged."""

log = logging.getLogger("flwr").getChild("fairbloom")


def save_round(folder: Path, number: int, arrays: Arrays, state: Mapping[str, Any], before: int) -> None:
    """Write the checkpoint of a round into a folder, then remove all others but that of round `before`."""
    save_checkpoint(folder / f"{number}.safetensors", arrays, state)
    for path in checkpoints(folder):
        if int(path.stem) not in (number, before):
            path.unlink()


def load_last(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return the model and the state of the newest checkpoint in a folder that is whole, None where there is none.

    Raises
    ------
    RunFolderError
        When there are checkpoints and all of them are damaged.
    """
    faults: list[str] = []
    for path in checkpoints(folder):
        try:
            loaded = load_checkpoint(path)
        except RunFolderError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            log.warning("%s; the run continues from the checkpoint before it, %s", fault, path.name)
        return loaded
    if faults:
        raise RunFolderError(
            f"the run cannot be continued: {'; '.join(faults)}. Put back a copy, or choose another folder (--out) to "
            "begin again"
        )
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    return sorted(folder.glob("[0-9]*.safetensors"), key=lambda path: int(path.stem), reverse=True)


def save_checkpoint(path: Path, arrays: Arrays, state: Mapping[str, Any]) -> None:
    """Write the global model and a state made of str, numbers, None, arrays, lists and dicts."""
    tensors = {f"model/{name}": np.asarray(array) for name, array in arrays.items()}
    plain = _detach(state, tensors)
    save_model(path, tensors, {"state": plain, "names": list(arrays)})


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the model and the state that `save_checkpoint` wrote.

    Raises
    ------
    RunFolderError
        When the file is not as it was written.
    """
    tensors, about = load_model(path)
    return {name: tensors[f"model/{name}"] for name in about["names"]}, _attach(about["state"], tensors)


def save_model(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write a model by array name; `about` and a checksum of all go into the file's metadata, as one JSON object."""
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # The checksum is an entry of the JSON, because the library writes several entries of metadata in no fixed order.
    metadata = {"about": json.dumps({**about, "sha256": _checksum(tensors, about)})}
    write_whole(path, save(tensors, metadata=metadata))


def checksum_of(path: Path) -> str:
    """Return the checksum that a model was saved with, without reading its arrays.

    Raises
    ------
    RunFolderError
        When the file is no model that `save_model` wrote.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return str(json.loads(file.metadata()["about"])["sha256"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read as a model: {error}") from error


def load_model(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays that `save_model` wrote, and what it was told about them.

    Raises
    ------
    RunFolderError
        When the file is not as it was written.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not iterable)
            about = json.loads(file.metadata()["about"])
        intact = about.pop("sha256") == _checksum(tensors, about)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:  # all that flipped bits lead to
        fault = "no whole file" if path.stat().st_size else "empty"
        raise RunFolderError(f"{path} is damaged: it is {fault}") from error
    if not intact:
        raise RunFolderError(f"{path} is damaged: its content does not match its checksum")
    return tensors, about


def _checksum(tensors: Arrays, about: Mapping[str, Any]) -> str:
    """Return a checksum of the arrays, in the order of their names, and of what is said about them."""
    total = hashlib.sha256(json.dumps(about).encode())
    for name, array in sorted(tensors.items()):
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        total.update(array.tobytes())
    return total.hexdigest()


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
    """Return what `_detach` was given."""
    if isinstance(value, list):
        return [_attach(item, tensors) for item in value]
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]]
    if isinstance(value, dict):
        return {key: _attach(item, tensors) for key, item in value["dict"].items()}
    return value
