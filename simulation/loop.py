"""The engine `loop`: one client after the other, as each would compute by itself."""

from collections.abc import Collection, Sequence

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.screening import usable_metrics
from fairbloom.rounds.updates import Model

from .clients import LocalClients, arrays_of, in_words


class LoopClients(LocalClients):
    """All clients of a run, one after the other."""

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        method = self.method
        self.begin(names, terms)
        received, trained = self.on_device(model), self.none_trained(names, model, terms)
        for name in names:
            try:
                update = self.local(name).train(received, terms)
                report = usable_metrics(update.metrics, method.weighted_by_key, method.needs)
                trained.add(name, report, arrays_of(update.arrays), arrays_of(update.snapshot))
            except Exception as error:  # one client's failure is one refused reply, whatever it is
                trained.refused.add(name, error if isinstance(error, ValueError) else in_words(error))
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        received = self.on_device(model)
        return self.evaluate_each(names, terms, participants, lambda local, terms: local.evaluate(received, terms))
