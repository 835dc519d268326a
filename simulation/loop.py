"""The engine `loop`: one client after the other, as each would compute by itself."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ParamSpec, TypeVar

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Replies, Trained
from fairbloom.rounds.updates import Model

from .clients import LocalClients

P = ParamSpec("P")
T = TypeVar("T")


class LoopClients(LocalClients):
    """All clients of a run, one after the other."""

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        return self.train_each(names, model, terms, sent)

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        return self.evaluate_each(names, model, terms, participants)


class DebuggedClients(LoopClients):
    """The same, where the first error of a client ends the run with its traceback, and a debugger works."""

    def _answer(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | str:
        return compute(*args, **kwargs)
