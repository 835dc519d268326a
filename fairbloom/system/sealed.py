"""Save and load named arrays with metadata in one safetensors file, sealed by a checksum."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fairbloom.errors import FairbloomError

from .files import write_whole

Arrays = Mapping[str, NDArray[Any]]


class DamagedFileError(FairbloomError):
    """A file with another content than was written to it."""


def save_model(
    path: Path, arrays: Arrays, about: Mapping[str, Any], mode: int | None = None
) -> None:
    """Write a model's arrays by name; `about` and a checksum go into the metadata.

    `mode` has the file's permissions; None applies the umask.
    """
    tensors = {
        name: np.asarray(array, array.dtype.newbyteorder("="), order="C")
        for name, array in arrays.items()
    }
    # The checksum is inside the JSON: the library writes several metadata entries in no fixed
    # order, and equal models must have equal files.
    write_whole(
        path,
        save(
            tensors,
            metadata={"about": json.dumps({**about, "blake3": _checksum(tensors, about)})},
        ),
        mode,
    )


def read_about(path: Path) -> dict[str, Any]:
    """Return a model's metadata, with its checksum `blake3`, without reading its arrays."""
    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = json.loads(file.metadata()["about"])
            return {**about, "blake3": str(about["blake3"])}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read as a model: {error}") from error


def load_model(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a model's arrays and their metadata; raise DamagedFileError for a damaged file."""
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not iterable)
            about = json.loads(file.metadata()["about"])
        intact = about.pop("blake3") == _checksum(tensors, about)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # the errors that flipped bits cause
        fault = "no whole file" if path.stat().st_size else "empty"
        raise DamagedFileError(f"{path} is damaged: it is {fault}") from error
    if not intact:
        raise DamagedFileError(f"{path} is damaged: its content does not match its checksum")
    return tensors, about


def _checksum(tensors: Arrays, about: Mapping[str, Any]) -> str:
    """Return a checksum of the arrays, in the order of their names, and of their metadata."""
    total = blake3(json.dumps(about).encode())
    for name, array in sorted(tensors.items()):
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
