"""The base class of rules: the hooks with which a method changes a client's round."""

from collections.abc import Callable, Mapping
from inspect import isfunction
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Request, Terms

from ..local import LocalClient
from ..states import StateDict
from ..work import Copy, LocalWork, StepsTaken

# Tensors by name. Trainable parameters have their names, shapes and dtypes on the wire.
Arrays = Mapping[str, Tensor]

# Numbers that a client reports, by their names on the wire.
Scores = Mapping[str, float]


class Rule:
    """The client half of a method, made for one round.

    Subclasses override some of the hooks. An engine declares the hooks that it calls. A rule with
    any other hook falls back to training client by client.

    Attributes
    ----------
    reads
        The request in the terms that asks for this rule; None: no request does.
    reports
        Names of the metrics that it reports. Asking for one of them also asks for the rule.
    replies
        The record in which the client replies a second model; "": no second model.
    """

    reads: ClassVar[Request | None] = None
    reports: ClassVar[tuple[str, ...]] = ()
    replies: ClassVar[str] = ""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def __str__(self) -> str:
        """Return the term that asks for this rule, as key = value, for error messages."""
        if self.reads is not None and self.reads in self.terms.rules:
            field = self.reads.asked_by
            return f"{field.replace('_', '-')} = {getattr(self.terms, field)!r}"
        return f"measure = {next(name for name in self.reports if name in self.terms.measure)}"

    @classmethod
    def wire_keys(cls) -> tuple[str, ...]:
        """Return its keys on the wire."""
        return () if cls.reads is None else cls.reads.keys

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """Return the names of the hooks that it overrides."""
        return frozenset(name for name in HOOKS if getattr(cls, name) is not getattr(Rule, name))

    def check(self, settings: RunSettings) -> None:
        """Raise FairbloomError if it is incompatible with a run's settings."""

    # Which steps are taken ------------------------------------------------------------------------

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return the steps to take instead of these."""
        return work

    def pull(self) -> float:
        """Return the strength of the term (pull/2)‖x − w‖² in the loss, w the received model."""
        return 0.0

    def loss(self, loss: Tensor) -> Tensor:
        """Return the transformed mean loss of a minibatch, elementwise for several minibatches."""
        return loss

    def personal_arrays(self, model: nn.Module, output: str) -> tuple[str, ...]:
        """Return the names of the model's arrays that the client keeps for itself.

        `output` is the task's.
        """
        return ()

    def work_on_own(self, work: LocalWork) -> LocalWork | None:
        """Return the work on these arrays before the others are trained, with these fixed then.

        None: all are trained together. `work` is that of the round.
        """
        return None

    def adapt(self, work: LocalWork) -> LocalWork:
        """Return the training of the evaluated model before it is scored as a personal one.

        `work` is the run's. The trained model is not stored.
        """
        return work

    # The parts of a round, in their order ---------------------------------------------------------

    def before(self, client: LocalClient) -> Scores:
        """Do work before everything else in the round; return the numbers to report of it."""
        return {}

    def report(self, client: LocalClient) -> Scores:
        """Return the numbers to report of the received model."""
        return {}

    def make_second_model(
        self, client: LocalClient, received: StateDict, learning_rate: float
    ) -> Scores:
        """Make the second model from the received one; return the numbers to report of it."""
        return {}

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Return this round's state, which `correct` and `finish` get.

        `kept` is the stored result of the last `finish` with a reply that was used, at first empty.
        `sent` holds the server's further vectors, by record.
        """

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return the corrected gradients of step number `step`, from 1; may change them in place.

        A parameter that the loss does not depend on has a gradient of 0.
        """
        return gradients

    def after_step(self, step: int, copy: Copy, *, last: bool) -> None:
        """Look at the model after a step, from 1."""

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return the trainable parameters to reply, and the state to store.

        Most rules reply `trained`.
        """
        return trained, {}

    def second_model(self) -> Any:
        """Return the second model to reply."""
        return {}

    def after(self, work: LocalWork) -> LocalWork:
        """Return the training of a model of the client's own, which is pulled to the received one.

        `work` is the run's. The model starts from the last stored version, at first from the
        received model, and is stored afterwards.
        """
        return work


# The hooks of a rule: all its methods but `check`, which does no work.
HOOKS = tuple(
    name
    for name, each in vars(Rule).items()
    if isfunction(each) and not name.startswith("_") and each is not Rule.check
)


def hooks_of(*methods: Callable[..., Any]) -> frozenset[str]:
    """Return the names of methods of rules, which an engine calls."""
    return frozenset(method.__name__ for method in methods)


class Corrector(Rule):
    """A rule that corrects each step by a state which the client stores between rounds.

    A client follows at most one of them.
    """


class GradientOffset(Corrector):
    """A rule that adds the same offset to the gradient of each step of a round.

    The offsets of many clients can therefore be added at once.
    """

    def shift(self, state: Any) -> Arrays:
        """Return the offset."""
        raise NotImplementedError

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return the gradients plus the offset."""
        shift = self.shift(state)
        torch._foreach_add_(
            [*gradients.values()],
            [shift[name].to(gradient.dtype) for name, gradient in gradients.items()],
        )
        return gradients

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """Return the names of the hooks that it overrides, with `shift` instead of `correct`."""
        return super().hooks() - {"correct"} | {"shift"}
