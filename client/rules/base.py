"""What a rule is: the hooks by which it changes a client's round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Request, Terms

from ..states import RULE, ClientStates, StateDict, Version
from ..work import LocalWork

if TYPE_CHECKING:
    from ..local import LocalClient

Arrays = Mapping[str, Tensor]
"""Tensors by name: those of trainable parameters have their names and shapes, and the dtype in
which they travel."""

Copy = Callable[[], Any]
"""Returns a copy of a model in the midst of its steps, or of the models of several clients."""

Scores = Mapping[str, float]
"""Numbers that a client reports, by their names on the wire."""


@dataclass(frozen=True)
class StepsTaken:
    """The local steps of a round, by the learning rate of each."""

    learning_rates: Sequence[float] = ()

    @property
    def count(self) -> int:
        """K, how many there were."""
        return len(self.learning_rates)

    @property
    def rate_sum(self) -> float:
        """H, the sum of their learning rates."""
        return fsum(self.learning_rates)


class Rule:
    """The client half of a method, made for one round.

    Subclasses override some of the hooks. An engine declares the hooks that it calls, and leaves a
    rule with another one to a client by itself.

    Attributes
    ----------
    reads
        What asks for it in the terms: its keys on the wire. None: nothing does.
    reports
        Names of the metrics that it reports on request; a request alone asks for the rule.
    replies
        The record in which the client replies a second model; "": none.
    keeps
        What the client's kept versions of its state are called; "": it keeps nothing.
    """

    reads: ClassVar[Request | None] = None
    reports: ClassVar[tuple[str, ...]] = ()
    replies: ClassVar[str] = ""
    keeps: ClassVar[str] = ""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def __str__(self) -> str:
        """Return what errors call it: what asks for it, as key = value."""
        if self.reads is not None and self.reads in self.terms.rules:
            return (
                f"{self.reads.asked_by.replace('_', '-')} ="
                f" {getattr(self.terms, self.reads.asked_by)!r}"
            )
        return f"measure = {next(name for name in self.reports if name in self.terms.measure)}"

    @classmethod
    def wire_keys(cls) -> tuple[str, ...]:
        """Return its keys on the wire."""
        return () if cls.reads is None else cls.reads.keys

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """Return the hooks that it has."""
        return frozenset(name for name in HOOKS if getattr(cls, name) is not getattr(Rule, name))

    def check(self, settings: RunSettings) -> None:
        """Raise FairbloomError where it does not go with a run's settings."""

    @classmethod
    def kept_version(cls, states: ClientStates, terms: Terms, *, training: bool) -> Version | None:
        """Return what a client goes on from where it trains, or evaluates, on these terms.

        None: nothing.
        """
        return states.find(cls.keeps, before=terms.server_round) if cls.keeps and training else None

    # Which steps are taken ------------------------------------------------------------------------

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return the steps to take in place of these."""
        return work

    def pull(self) -> float:
        """Return the strength of a pull to the received model, which is part of the gradient: (pull/2)‖x − w‖²."""
        return 0.0

    def loss(self, loss: Tensor) -> Tensor:
        """Return what becomes of the mean loss of a minibatch, or of several, each by itself."""
        return loss

    # The parts of a round, in their order ---------------------------------------------------------

    def before(self, client: "LocalClient") -> Scores:
        """Work before everything else, and return what is reported of that."""
        return {}

    def report(self, client: "LocalClient") -> Scores:
        """Return what is reported of the received model."""
        return {}

    def make_second_model(
        self, client: "LocalClient", received: StateDict, learning_rate: float
    ) -> Scores:
        """Make the second model from the received one; return what is reported of that."""
        return {}

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Return what `correct` and `finish` get as the state of this round.

        `kept` is what `finish` had the client keep when its reply was used last, empty at first;
        `sent` is what the server sent in addition to the trainable parameters, by record.
        """

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return what step number `step`, from 1, goes down in place of the gradients, which may be changed in place.

        A parameter that the loss does not depend on has a gradient of 0.
        """
        return gradients

    def after_step(self, step: int, copy: Copy, *, last: bool) -> None:
        """Look at the model after a step, from 1."""

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return the trainable parameters to reply, which are `trained` for most rules, and what the client keeps."""
        return trained, {}

    def second(self) -> Any:
        """Return the second model to reply."""
        return {}

    def after(self, work: LocalWork) -> LocalWork:
        """Return the work on a model of the client's own, which is pulled to the received one.

        `work` is the run's.

        It starts from the last version that the client keeps, at first from the received model, and
        is kept.
        """
        return work


HOOKS = (
    *("replace_steps", "pull", "loss", "before", "report", "make_second_model"),
    *("start", "correct", "after_step", "finish", "after"),
)
"""The hooks of a rule."""


class Corrector(Rule):
    """A rule that corrects each step by a state which the client keeps between rounds.

    A client follows one of them.
    """

    keeps = RULE

    @classmethod
    def kept_version(cls, states: ClientStates, terms: Terms, *, training: bool) -> Version | None:
        """Return the state of the client's last reply that was used."""
        version = states.of_rule(terms) if training else None
        return version if version is not None and version.made else None


class GradientOffset(Corrector):
    """A rule that adds the same to the gradient of each step of a round, so that many clients' can be added at once."""

    def shift(self, state: Any) -> Arrays:
        """Return what is added."""
        raise NotImplementedError

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return the gradients with the shift."""
        shift = self.shift(state)
        torch._foreach_add_(
            [*gradients.values()], [shift[name].to(each.dtype) for name, each in gradients.items()]
        )
        return gradients

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """Return the hooks that it has.

        `shift` says in place of `correct` what it does to a gradient.
        """
        return super().hooks() - {"correct"} | {"shift"}
