"""Client-side rules: how something that a client keeps between rounds corrects each of its local steps.

A rule sees a round in three places: where it starts, at each step, and where it is finished. SCAFFOLD's and FedDyn's
local work are two of them; a user's own is one small class, named by the setting `client-rule`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.names import CONTROL
from fairbloom.protocol.rules import check_rule
from fairbloom.protocol.settings import RunSettings, SettingsError
from fairbloom.protocol.terms import Terms

from .device import in_double

Arrays = Mapping[str, Tensor]
"""Tensors by name: those of trainable parameters have their names and shapes, and the dtype in which they travel."""


@dataclass(frozen=True)
class StepsTaken:
    """The local steps of a round.

    Attributes
    ----------
    learning_rates
        That of each step.
    """

    learning_rates: Sequence[float] = ()

    @property
    def count(self) -> int:
        """K, how many there were."""
        return len(self.learning_rates)

    @property
    def rate_sum(self) -> float:
        """H, the sum of their learning rates."""
        return fsum(self.learning_rates)


class ClientRule(Protocol):
    """What corrects a client's local steps; every round makes another one, which remembers nothing by itself.

    The steps are those of plain SGD; weight decay and a proximal term are part of the gradient.
    """

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Return what the two other functions get as the state of this round.

        Parameters
        ----------
        received
            The trainable parameters that the client was sent.
        kept
            What `finish` had the client keep when its reply was used last; empty where there is nothing.
        sent
            What the server sent beside the model, by the name of its record.
        """

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return what step number `step`, from 1, goes down in place of the gradients, which may be changed in place.

        A parameter that the loss does not depend on has a gradient of 0.
        """

    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken) -> tuple[Arrays, Arrays]:
        """Return the trainable parameters to reply, which are `trained` for most rules, and what the client keeps."""


class Shift(ABC):
    """A rule that adds the same to the gradient of each step of a round."""

    @abstractmethod
    def shift(self, state: Any) -> Arrays:
        """Return what is added."""

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return the gradients with the shift."""
        shift = self.shift(state)
        torch._foreach_add_([*gradients.values()], [shift[name].to(each.dtype) for name, each in gradients.items()])
        return gradients


class ControlVariates(Shift):
    """SCAFFOLD's local work: y ← y − η (g(y) − c_k + c), and then c_k ← c_k − c + u_k / H with H = Σ η.

    c is the server's control variate, sent as the record `control` (zero where there is none), and c_k the client's.

    Source: Karimireddy et al., ICML 2020, Algorithm 1, option II.
    """

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> "Control":
        """Return c_k, c and their difference."""
        own = {name: _like(kept.get(name), array) for name, array in received.items()}
        control = sent.get(CONTROL, {})
        if control:
            check_arrays(control, received, f"the record {CONTROL!r}")
        of_server = {name: _like(control.get(name), array) for name, array in received.items()}
        return Control(own, of_server, {name: of_server[name] - own[name] for name in received})

    def shift(self, state: "Control") -> Arrays:
        """Return c − c_k."""
        return state.shift

    def finish(self, received: Arrays, trained: Arrays, state: "Control", steps: StepsTaken) -> tuple[Arrays, Arrays]:
        """Return the trained parameters and the new c_k, which is the old one where no step went anywhere."""
        if not steps.rate_sum:
            return trained, state.own
        updates = update_of(received, trained)
        kept = {
            name: (in_double(own) - in_double(state.of_server[name]) + updates[name] / steps.rate_sum).to(own)
            for name, own in state.own.items()
        }
        return trained, kept


class Control(NamedTuple):
    """The control variates of a round.

    Attributes
    ----------
    own
        c_k, the client's.
    of_server
        c.
    shift
        c − c_k, which is added to each gradient.
    """

    own: Arrays
    of_server: Arrays
    shift: Arrays


class DynamicRegularizer(Shift):
    """FedDyn's local work on F_k(x) − ⟨h_k, x⟩ + (alpha/2)‖x − w‖², and then h_k ← h_k + alpha u_k.

    The quadratic term is part of the gradient, as that of a proximal term is (`LocalWork.pull`).

    Source: Acar et al., ICLR 2021, Algorithm 1.

    Parameters
    ----------
    alpha
        Strength of the regularizer.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Arrays:
        """Return −h_k, which is added to each gradient."""
        return {name: -_like(kept.get(name), array) for name, array in received.items()}

    def shift(self, state: Arrays) -> Arrays:
        """Return −h_k."""
        return state

    def finish(self, received: Arrays, trained: Arrays, state: Arrays, steps: StepsTaken) -> tuple[Arrays, Arrays]:
        """Return the trained parameters and the new h_k."""
        updates = update_of(received, trained)
        return trained, {n: (self._alpha * updates[n] - in_double(minus_h)).to(minus_h) for n, minus_h in state.items()}


def update_of(received: Arrays, trained: Arrays) -> dict[str, Tensor]:
    """Return u_k = w − w_k in float64, of both as they travel: so it is the update that the server sees."""
    return {name: in_double(array) - in_double(trained[name]) for name, array in received.items()}


def _like(array: Tensor | None, other: Tensor) -> Tensor:
    """Return an array in the dtype, and on the device, of another one; zeros of its shape where there is none."""
    return torch.zeros_like(other) if array is None else array.to(other)


# A rule in one round --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedRule:
    """A rule with what errors call it.

    Attributes
    ----------
    name
        The setting or the term that asks for it, as key = value.
    rule
        What is called.
    """

    name: str
    rule: ClientRule

    def __str__(self) -> str:
        """Return what errors call it."""
        return self.name

    @property
    def is_shift(self) -> bool:
        """Whether it adds the same to the gradient of each step."""
        return isinstance(self.rule, Shift)


def rule_of(settings: RunSettings, terms: Terms) -> NamedRule | None:
    """Return the rule that a run's settings or the server's terms ask for, None where they ask for none.

    Raises
    ------
    FairbloomError
        When they ask for what cannot be, as `check_rule` says, or there is no such rule.
    """
    name = check_rule(settings, terms)
    if not name:
        return None
    if terms.control_variates:
        return NamedRule(name, ControlVariates())
    if terms.dynamic_alpha is not None:
        return NamedRule(name, DynamicRegularizer(terms.dynamic_alpha))
    return own_rule(settings.client_rule)


def own_rule(name: str) -> NamedRule:
    """Return a user's own rule, by its import string.

    Raises
    ------
    FairbloomError
        When there is no such class, it needs arguments, or lacks one of a rule's functions.
    """
    said = f"client-rule = {name!r}"
    if not is_import_string(name):
        raise SettingsError(f"{said}: it must be a class of yours, as in my_module:MyRule")
    found = imported("client-rule", name)
    if not isinstance(found, type):
        raise SettingsError(f"{said}: it is a {type(found).__name__}; a rule is a class")
    if lacking := [each for each in ("start", "correct", "finish") if not callable(getattr(found, each, None))]:
        raise SettingsError(f"{said}: it has no function {lacking[0]}; a rule has start, correct and finish")
    try:
        return NamedRule(said, found())
    except Exception as error:
        raise FairbloomError(
            f"{said}: it cannot be made without arguments ({type(error).__name__}: {error}): give them defaults"
        ) from error


class RuleAtWork:
    """A rule in one round of one client.

    Parameters
    ----------
    named
        The rule.
    received
        The trainable parameters as the client was sent them, in the model's order.
    kept
        What the client has kept.
    sent
        What the server sent beside the model.
    """

    def __init__(self, named: NamedRule, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> None:
        self._named, self._rule, self._received = named, named.rule, received
        vectors = {record: copies(arrays) for record, arrays in sent.items()}  # the other clients are sent them, too
        self._state = self._rule.start(copies(received), copies(kept), vectors)

    @property
    def shift(self) -> Arrays:
        """What is added to the gradient of each step, empty where the rule corrects it in another way."""
        return self._rule.shift(self._state) if isinstance(self._rule, Shift) else {}

    def correct(self, gradients: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the corrected gradients, both in the model's order.

        Raises
        ------
        FairbloomError
            When the rule returns something else than a gradient of each parameter.
        """
        by_name = dict(zip(self._received, gradients, strict=True))
        corrected = self._rule.correct(by_name, self._state, step)
        if corrected is not by_name:
            check_arrays(corrected, self._received, f"{self._named}: what correct returns")
        return [corrected[name] for name in self._received]

    def finish(self, trained: Arrays, steps: StepsTaken) -> tuple[Arrays, dict[str, Tensor]]:
        """Return the trainable parameters to reply, and what is kept.

        Raises
        ------
        FairbloomError
            When the rule returns something else, or it is not finite.
        """
        finished = self._rule.finish(copies(self._received), trained, self._state, steps)
        if not (isinstance(finished, tuple) and len(finished) == 2):
            raise ReportableError(f"{self._named}: finish must return two, the arrays to reply and those to keep")
        replied, kept = finished
        if replied is not trained:
            check_arrays(replied, self._received, f"{self._named}: what finish has the client reply")
            check_finite(replied, f"{self._named}: what finish has the client reply")
        if not isinstance(kept, Mapping) or not all(isinstance(each, Tensor) for each in kept.values()):
            raise ReportableError(f"{self._named}: what finish has the client keep must be tensors by name")
        if not all(isinstance(name, str) for name in kept):
            raise ReportableError(f"{self._named}: what finish has the client keep must have words for names")
        check_finite(kept, f"{self._named}: what finish has the client keep")
        return replied, dict(kept)


def copies(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays that a user's rule may change: copies."""
    return {name: array.clone() for name, array in arrays.items()}


def check_arrays(arrays: object, like: Arrays, what: str) -> None:
    """Raise ReportableError unless these are tensors by the names, and of the shapes, of trainable parameters."""
    if not isinstance(arrays, Mapping):
        raise ReportableError(f"{what} must be tensors by name, got {type(arrays).__name__}")
    if differing := sorted(map(str, arrays.keys() ^ like.keys())):
        raise ReportableError(
            f"{what} must have the names of the trainable parameters: {differing[0]!r} is "
            f"{'missing' if differing[0] in like else 'none of them'}"
        )
    for name, array in like.items():
        found = arrays[name]
        if not isinstance(found, Tensor) or found.shape != array.shape or not found.is_floating_point():
            got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ReportableError(f"{what} must be floats of shape {tuple(array.shape)} for {name!r}, got {got}")


def check_finite(arrays: Arrays, what: str) -> None:
    """Raise ReportableError when an array is not finite."""
    for name, array in arrays.items():
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise ReportableError(f"{what} is not finite: {name!r} is not; lower learning-rate")
