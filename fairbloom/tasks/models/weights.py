"""Initial weights from a file: the state of a network of the same kind.

A file of ours says which rows trained the model, and a run that begins with it has the same split:
its test rows are no training rows of the model. After a model of all rows there are none, until
others come.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fairbloom.errors import FairbloomError, join_names
from fairbloom.logs import log
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.patterns import without_wrappers
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import expand_home
from fairbloom.system.sealed import DamagedFileError, read_about

from ..loading import find_task
from .registry import arrays_of, shared_parameters

# The beginnings of the names of auxiliary outputs, which torchvision's models here do not have.
AUXILIARY = ("aux", "AuxLogits.")

# The ending of BatchNorm's numbers of batches, which files from before 2018 do not have.
COUNTS = "num_batches_tracked"

# The names of DenseNet's layers in published files: denselayer1.norm.1, now denselayer1.norm1.
DENSE = re.compile(r"(denselayer[0-9]+\.(?:norm|relu|conv))\.([12]\.)")

# The settings of a split, of which the last one is of devices only.
SPLIT = ("seed", "test-share", "validation-share", "after-all-rows")

EXPLAINED = "a state dict of this model, as safetensors or torch.save(model.state_dict(), …) write"


def load_initial_weights(model: nn.Module, path: str) -> None:
    """Load a file's arrays into a model; the last layer may have other outputs, and then stays.

    A first convolution of one channel gets the sum over the file's three. Counts of batches may be
    missing, as `load_state_dict` allows, and so may a second name of a shared parameter. Raise
    FairbloomError if the file cannot be read, or an array is missing, unknown, of another shape, or
    not finite.
    """
    own = model.state_dict()
    *_, (final, _) = model.named_parameters()
    layer = final.rpartition(".")[0]
    last = {name for name in own if name.rpartition(".")[0] == layer}
    given: dict[str, Tensor] = {}
    for stored, array in read_weights(expand_home(path)).items():
        name = _name_in(own, stored)
        if name in own or not name.startswith(AUXILIARY):
            given[name] = array
    for name, first in shared_parameters(model).items():
        for one, other in ((name, first), (first, name)):
            if one in given:
                given.setdefault(other, given[one])
    counts = {name for name in own if name.endswith(COUNTS)}
    anew = {name for name in last - counts if name not in given}
    missing = sorted(own.keys() - given.keys() - last - counts)
    unknown = sorted(given.keys() - own.keys())
    if missing or unknown:
        wrong = f"it has {join_names(unknown)}"
        if missing:
            wrong = f"it lacks {join_names(missing)}"
        raise FairbloomError(f"initial-weights = {path!r} is of another model: {wrong}")
    for name, array in given.items():
        there = own[name]
        if not bool(array.isfinite().all()):
            raise FairbloomError(
                f"initial-weights = {path!r}: its {name} is not finite: take weights without NaN"
            )
        if array.ndim == 4 and array.shape[1] == 3 and there.shape[1] == 1:
            given[name] = array.sum(dim=1, keepdim=True)
        elif array.shape != there.shape and name in last:
            given[name] = there
            anew.add(name)
        if given[name].shape != there.shape:
            raise FairbloomError(
                f"initial-weights = {path!r}: its {name} has shape {tuple(array.shape)}, and the"
                f" model's has {tuple(there.shape)}: take weights of the same model"
            )
    model.load_state_dict({**own, **given})
    if anew:
        log.warning(
            "initial-weights = %r has no %s: it begins anew", path, join_names(sorted(anew))
        )


def _name_in(own: Collection[str], name: str) -> str:
    """Return the model's name of a file's array: one without wrappers, or of an old DenseNet."""
    names = (name, without_wrappers(name), DENSE.sub(r"\1\2", name))
    return next((each for each in names if each in own), name)


def digest_weights(path: str) -> str:
    """Return the digest of a file's arrays, which deployed clients compare."""
    weights = read_weights(expand_home(path))
    return digest_arrays(arrays_of(weights))


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return a file's arrays; a checkpoint's are under `state_dict`."""
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
    if isinstance(stored, Mapping):
        stored = stored.get("state_dict", stored)
    if not isinstance(stored, Mapping) or not all(
        isinstance(array, Tensor) for array in stored.values()
    ):
        raise FairbloomError(
            f"initial-weights = {str(path)!r} holds a {type(stored).__name__}: it must be"
            f" {EXPLAINED} it"
        )
    return stored


# Rows -------------------------------------------------------------------------------------------


def describe_rows(
    settings: RunSettings, schema: str, data: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return which rows train a run's model, for the key `rows` of what its file says.

    `schema` is a text. `data` has the checksum of each file that the clients read in this process;
    None on devices.
    """
    return {
        "task": settings.task,
        "schema": sha256(schema.encode()).hexdigest(),
        "data": sorted((data or {}).values()),
        **{key: settings.run_config()[key] for key in SPLIT},
    }


def find_all_rows(weights: str) -> str:
    """Return the digest of the model of all rows that a file's goes back to, "" without one."""
    rows = _read_rows(weights)
    is_of_all = rows.get("test-share") == 0.0
    return digest_weights(weights) if is_of_all else str(rows.get("after-all-rows", ""))


def check_rows(settings: RunSettings, schema: str, data: Mapping[str, str] | None) -> None:
    """Raise FairbloomError if a run would test on rows that trained its initial weights.

    For `schema` and `data` see `describe_rows`.
    """
    weights = settings.initial_weights
    before = _read_rows(weights)
    now = describe_rows(settings, schema, data)
    is_other = any(before.get(key) != now[key] for key in ("task", "schema"))
    if before.get("data") and now["data"]:
        is_other = is_other or {*before["data"]}.isdisjoint(now["data"])
    is_split = find_task(settings.task).tests_by_seed(settings.run_config()) == "split"
    if is_other or not is_split or not settings.test_share:
        return
    wanted = {key: before[key] for key in (SPLIT[:3] if data is not None else SPLIT)}
    if not before["test-share"]:
        wanted = {SPLIT[3]: digest_weights(weights)}
        if data is not None:
            raise FairbloomError(
                f"initial-weights = {weights!r} was trained on all rows of these data, so that none"
                " can test it: set test-share = 0, or take other data"
            )
    if any(now[key] != value for key, value in wanted.items()):
        there = ", ".join(f"{key} = {value!r}" for key, value in wanted.items())
        here = ", ".join(f"{key} = {now[key]!r}" for key in wanted)
        raise FairbloomError(
            f"initial-weights = {weights!r} goes with {there}, and the run has {here}, so that rows"
            f" that trained it would test it: set {there}"
        )


def _read_rows(weights: str) -> Mapping[str, Any]:
    """Return what `describe_rows` said of a model, {} for a file that is not ours."""
    with suppress(DamagedFileError):
        rows: Mapping[str, Any] = read_about(expand_home(weights)).get("rows", {})
        return rows
    return {}
