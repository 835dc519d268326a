"""A device's part in private rounds: its identity, what it keeps on disk between exchanges, and its work."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError
from fairbloom.private.client import PrivateClient, State, Work, change_of
from fairbloom.private.errors import RefusedError
from fairbloom.private.keys import Authority, Identity, key_of_device, read_identity
from fairbloom.private.packing import pack, unpack
from fairbloom.private.weighing import MeanWeighing
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.terms import Terms
from fairbloom.system.files import write_private
from fairbloom.tasks.models import arrays_of

from .local import LocalClient
from .record import note_own
from .states import StateDict

STATE = "private-round"
"""The file in a device's state-dir with what belongs to the round that it is in, and which rounds it answered."""


class FileStore:
    """A state in a file that its owner alone may read; it is on disk before an answer leaves."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> State:
        """Return the last state, an empty one at first."""
        try:
            state: State = unpack(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ReportableError("its private state cannot be read: without it, it could answer twice") from error
        return state

    def save(self, state: State) -> None:
        """Keep a state."""
        write_private(self._path, pack(state))


def identity_of(node: Mapping[str, Any]) -> tuple[Identity, Authority]:
    """Return a device's identity in private rounds and its federation's authority; ReportableError without one."""
    remedy = "unpack a new bundle, of its federation's operator, beside its key (fairbloom deploy enroll)"
    if not (place := str(node.get("private", ""))):
        raise ReportableError(f"it has no identity for private rounds: {remedy}")
    key = Path(place)
    try:
        return read_identity(key.with_name("identity").read_bytes(), key_of_device(key.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ReportableError(
            f"its identity for private rounds cannot be read or belongs to another key: {remedy}"
        ) from error


def private_client(node: Mapping[str, Any], tiers: Sequence[str], run: str) -> PrivateClient:
    """Return the client of a device in a run that opens this, and with this name if it is known already.

    ReportableError where the device has no identity or nowhere to keep what it answered.
    """
    found, folder = identity_of(node), node.get("state-dir")
    if not folder:
        raise ReportableError("it has no state-dir, in which it notes what it has answered: set one")
    Path(str(folder)).mkdir(parents=True, exist_ok=True)
    return PrivateClient(*found, FileStore(Path(str(folder), STATE)), tiers, torchjd_weights, run)


def torchjd_weights(name: str, arguments: Mapping[str, float], gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what TorchJD's weighting of a name makes of a Gram matrix, shape (m,)."""
    import torch

    try:
        from torchjd import aggregation
    except ImportError:
        raise RefusedError(f"it lacks TorchJD, whose weighting {name} the terms ask for: pip install torchjd") from None
    weightings = {key.lower(): kind for key, kind in vars(aggregation).items()}
    weights = weightings[f"{name}weighting"](**arguments)(torch.from_numpy(gram))
    return np.asarray(weights.detach().numpy(), np.float64)


def work_in_private(local: LocalClient, received: StateDict, content: Mapping[str, Any]) -> tuple[bytes, Work]:
    """Do the work of a private round's terms; return the received model's digest with what became of it."""
    model, terms = arrays_of(received), Terms.of(content["work"])
    digest = bytes.fromhex(digest_arrays(model))
    if content["weighing"]["kind"] == MeanWeighing.kind:
        return digest, Work(_noted("test-examples", terms, local.evaluate(received, terms)))
    trainable, others = content["trainable"], content["others"]
    parameters = {name for name, _ in local.model.named_parameters(remove_duplicate=False)}
    if wrong := parameters.intersection(others):  # of what is averaged beside the update, no cap hides a client
        raise RefusedError(f"the terms have {min(wrong)}, which is trained, averaged beside the update")
    done = local.train(received, terms)
    trained = arrays_of(done.arrays)
    update = _flat(model, trainable) - _flat(trained, trainable)
    changes = [change_of(model[name], trained[name]) for name in others]
    return digest, Work(_noted("training-examples", terms, done.metrics), update, changes)


def _noted(examples: str, terms: Terms, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers of this device as floats, and note them in its log, with its number of examples by this name."""
    numbers = {name: float(value) for name, value in metrics.items()}
    others = {name: value for name, value in numbers.items() if name != NUM_EXAMPLES}
    note_own(terms.server_round, {examples: int(numbers[NUM_EXAMPLES]), **others})
    return numbers


def _flat(model: Mapping[str, NDArray[Any]], names: list[str]) -> NDArray[np.float64]:
    return np.concatenate([model[name].ravel().astype(np.float64) for name in names])
