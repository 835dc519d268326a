"""Frozen parameters of a client's model: messages leave them out if the client has them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from fairbloom.errors import ReportableError
from fairbloom.protocol.codec import digest_arrays
from fairbloom.tasks.models import arrays_of, frozen_parameters

from .local import LocalClient
from .states import INITIAL, StateDict


@contextmanager
def check_frozen_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise FairbloomError if a model's frozen parameters are written to in this block.

    The change would never be sent.
    """
    before = _versions(model)
    yield
    changed = [name for name, version in _versions(model).items() if before.get(name) != version]
    if changed:
        raise ReportableError(
            f"the frozen parameter {changed[0]!r} of the model is written to, and frozen parameters"
            " must not change: make it a buffer (register_buffer), as buffers are averaged over the"
            " clients; a test function may write to a copy"
        )


@contextmanager
def fix_parameters(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Leave these trained parameters of a model as they are in this block."""
    fixed = [
        each for name, each in model.named_parameters() if name in names and each.requires_grad
    ]
    for parameter in fixed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in fixed:
            parameter.requires_grad_(True)


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the address of each frozen parameter's values, and how often they were written."""
    return {
        name: (parameter.data_ptr(), parameter._version)
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }


def arrays_sent_once(client: LocalClient, own: Sequence[str]) -> StateDict:
    """Return the arrays that a server need not send to this client again, {} if it lacks some.

    They are the frozen parameters, and the initial values of `own`, the arrays that the client
    keeps for itself.
    """
    initial = client.states.at(INITIAL, 0) or {}
    state = client.model.state_dict()
    frozen = {name: state[name] for name in frozen_parameters(client.model)}
    return {**frozen, **initial} if initial.keys() == set(own) else {}


def complete(arrays: StateDict, sent_once: StateDict, digest: str) -> StateDict:
    """Return the whole state of a model: the received arrays, and those that are sent once.

    Raise ReportableError if the digest of the latter is not `digest`, the server's.
    """
    if digest_arrays(arrays_of(sent_once)) != digest:
        raise ReportableError(
            "the frozen parameters here are not the server's, which its next message will bring"
        )
    return {**sent_once, **arrays}
