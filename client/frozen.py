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
            f"the model changes its frozen parameter {changed[0]!r} as it trains, and frozen parameters stay as they "
            "are: make it a buffer (register_buffer), whose values are averaged over the clients"
        )


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return where the values of each frozen parameter lie, and how often these were written."""
    frozen = ((name, each) for name, each in model.named_parameters() if not each.requires_grad)
    return {name: (each.data_ptr(), each._version) for name, each in frozen}


def digest_frozen(model: nn.Module) -> str:
    """Return the digest of the frozen parameters of a model, as it holds them now."""
    return digest_arrays(arrays_of(frozen_of(model)))


def complete(arrays: StateDict, model: nn.Module, digest: str, sent: StateDict | None) -> StateDict | None:
    """Return the whole model with these changing arrays.

    None where the frozen parameters of this `digest` are not here.

    They may have been `sent` with the message, or be those of the client's `model`.
    """
    if sent is None:
        return {**frozen_of(model), **arrays} if digest_frozen(model) == digest else None
    ours = frozenset(frozen_parameters(model))
    if other := sorted(ours.symmetric_difference(sent)):
        where = "here, and not on the server" if other[0] in ours else "on the server, and not here"
        raise ReportableError(
            f"the parameter {other[0]!r} of the model is frozen {where}: the task must be the same code on both"
        )
    return {**sent, **arrays}
