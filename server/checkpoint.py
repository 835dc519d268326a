"""Arrays and a state of plain values in one safetensors file, replaced whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

Arrays = Mapping[str, NDArray[Any]]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, either the old or the new content is there."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def save_model(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write a model by array name; `about` goes into the file's metadata as JSON."""
    # One entry of metadata, because the library writes several in no fixed order.
    metadata = {"about": json.dumps(about)}
    write_whole(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata=metadata))


def save_checkpoint(path: Path, arrays: Arrays, state: Mapping[str, Any]) -> None:
    """Write the global model and a state made of str, numbers, None, arrays, lists and dicts."""
    tensors = {f"model/{name}": np.asarray(array) for name, array in arrays.items()}
    plain = _detach(state, tensors)
    save_model(path, tensors, {"state": plain, "names": list(arrays)})


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the model and the state that `save_checkpoint` wrote."""
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not iterable)
        about = json.loads(file.metadata()["about"])
    return {name: tensors[f"model/{name}"] for name in about["names"]}, _attach(about["state"], tensors)


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
