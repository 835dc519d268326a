"""Frozen parameters of a client's model: a message leaves them out where the client has the very same ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fairbloom.errors import ReportableError
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.tasks.models import arrays_of, frozen_parameters

from .states import StateDict


def frozen_of(model: nn.Module) -> StateDict:
    """Return the frozen parameters of a model, as it holds them now."""
    state = model.state_dict()
    return {name: state[name] for name in frozen_parameters(model)}


@contextmanager
def left_as_they_are(model: nn.Module) -> Iterator[None]:
    """Raise FairbloomError where a model writes to its frozen parameters meanwhile: the change would never be sent."""
    before = _versions(model)
    yield
    changed = [name for name, version in _versions(model).items() if before.get(name) != version]
    if changed:
        raise ReportableError(
            f"the model changes its frozen parameter {changed[0]!r} as it trains, and frozen"
            " parameters stay as they are: make it a buffer (register_buffer), whose values are"
            " averaged over the clients"
        )


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return where the values of each frozen parameter lie, and how often these were written."""
    frozen = ((name, each) for name, each in model.named_parameters() if not each.requires_grad)
    return {name: (each.data_ptr(), each._version) for name, each in frozen}


def digest_frozen(model: nn.Module) -> str:
    """Return the digest of the frozen parameters of a model, as it holds them now."""
    return digest_arrays(arrays_of(frozen_of(model)))


def complete(arrays: StateDict, model: nn.Module, digest: str) -> StateDict:
    """Return the whole model with these changing arrays, and the frozen parameters that are here.

    ReportableError says that the server's, of this `digest`, are others.
    """
    if digest_frozen(model) != digest:
        raise ReportableError(
            "the frozen parameters here are not the server's, which its next message will bring"
        )
    return {**frozen_of(model), **arrays}
