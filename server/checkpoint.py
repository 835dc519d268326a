"""Checkpoints: arrays and a state of plain values in one safetensors file, sealed by a checksum."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.logs import log
from fairbloom.system.sealed import (
    Arrays as Arrays,
    DamagedFileError,
    load_model as load_model,
    save_model as save_model,
)

from .run_folder.errors import RunFolderError

# How many checkpoints a run continues from: the last one, and the one before it in case the last is
# damaged.
KEPT = 2


def save_round(
    folder: Path, number: int, arrays: Arrays, state: Mapping[str, Any], before: int
) -> None:
    """Write a round's checkpoint, then delete all but that of round `before`."""
    save_checkpoint(folder / f"{number}.safetensors", arrays, state)
    for path in list_checkpoints(folder):
        if int(path.stem) not in (number, before):
            path.unlink()


def load_last(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return model and state of the newest intact checkpoint, or None if there are no checkpoints.

    Raise RunFolderError if all are damaged.
    """
    faults: list[str] = []
    for path in list_checkpoints(folder):
        try:
            loaded = load_checkpoint(path)
        except DamagedFileError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            log.warning("%s; the run continues from the checkpoint before it, %s", fault, path.name)
        return loaded
    if faults:
        raise RunFolderError(
            f"the run cannot be continued: {'; '.join(faults)}. Put back a copy, or choose another"
            " folder (--out) to begin again"
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
    """Return model and state from a checkpoint; raise DamagedFileError for a damaged file."""
    tensors, about = load_model(path)
    return (
        {name: tensors[f"model/{name}"] for name in about["names"]},
        _attach(about["state"], tensors),
    )


def _detach(value: Any, tensors: dict[str, NDArray[Any]]) -> Any:
    """Return `value` as JSON knows it, its arrays moved to `tensors` and referred to by name."""
    if isinstance(value, np.ndarray):
        name = f"state/{len(tensors)}"
        tensors[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        return {"dict": {key: _detach(item, tensors) for key, item in value.items()}}
    return [_detach(item, tensors) for item in value] if isinstance(value, list) else value


def _attach(value: Any, tensors: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_attach(item, tensors) for item in value]
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]]
    if isinstance(value, dict):
        return {key: _attach(item, tensors) for key, item in value["dict"].items()}
    return value
