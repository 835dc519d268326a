"""Initial weights from a file: the state of a network of the same kind."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.frozen import digest_arrays

from .registry import arrays_of

# The beginnings of the names of auxiliary outputs, which no model here has.
AUXILIARY = ("aux", "AuxLogits.")

EXPLAINED = "a state dict of this model, as safetensors or torch.save(model.state_dict(), …) write"


def load_initial_weights(model: nn.Module, path: str) -> None:
    """Load a file's arrays into a model; the last layer may have other outputs, and then stays.

    A first convolution of one channel gets the sum over the file's three. Raise FairbloomError if
    the file cannot be read, or an array is missing, unknown, or of another shape.
    """
    stored = read_weights(Path(path).expanduser())
    own = model.state_dict()
    *_, (final, _) = model.named_parameters()
    layer = final.rpartition(".")[0]
    last = {name for name in own if name.rpartition(".")[0] == layer}
    given = dict(stored)
    missing = sorted(own.keys() - given.keys() - last)
    unknown = sorted(given.keys() - own.keys())
    if missing or unknown:
        wrong = f"it lacks {join_names(missing)}" if missing else f"it has {join_names(unknown)}"
        raise FairbloomError(f"initial-weights = {path!r} is of another model: {wrong}")
    for name, array in given.items():
        there = own[name]
        if array.ndim == 4 and array.shape[1] == 3 and there.shape[1] == 1:
            given[name] = array.sum(dim=1, keepdim=True)
        elif array.shape != there.shape and name in last:
            given[name] = there
        if given[name].shape != there.shape:
            raise FairbloomError(
                f"initial-weights = {path!r}: its {name} has shape {tuple(array.shape)}, and the"
                f" model's has {tuple(there.shape)}: take weights of the same model"
            )
    model.load_state_dict({**own, **given})


def digest_weights(path: str) -> str:
    """Return the digest of a file's arrays, which deployed clients compare."""
    return digest_arrays(arrays_of(read_weights(Path(path).expanduser())))


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return a file's arrays, without those of auxiliary outputs."""
    stored = _read(path)
    return {name: each for name, each in stored.items() if not name.startswith(AUXILIARY)}


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FairbloomError(
            f"initial-weights = {str(path)!r} cannot be read: {error.strerror or error}"
        ) from error
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise FairbloomError(
            f"initial-weights = {str(path)!r} cannot be read: it must be {EXPLAINED} it"
        ) from error
    if not isinstance(stored, Mapping) or not all(
        isinstance(each, Tensor) for each in stored.values()
    ):
        raise FairbloomError(
            f"initial-weights = {str(path)!r} holds a {type(stored).__name__}: it must be"
            f" {EXPLAINED} it"
        )
    return stored
