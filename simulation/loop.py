"""The engine `loop`: one client after the other, as each would compute by itself."""

from collections.abc import Collection, Sequence

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.updates import Model

from .clients import LocalClients, Reply, failure_reason, store_reply


class LoopClients(LocalClients):
    """All clients of a run, one after the other."""

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        self.begin(names, terms)
        received, trained = self.on_device(model), self.none_trained(names, model, terms)
        replies: dict[str, Reply] = {}
        for row, name in enumerate(names):
            try:
                update = self.local(name).train(received, terms)
                replies[name] = store_reply(trained.updates, trained.snapshots, row, update)
            except Exception as error:  # one client's failure is one refused reply, whatever it is
                trained.refused.add(name, failure_reason(error))
        self.hand_over(trained, replies)
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        received = self.on_device(model)
        return self.evaluate_each(names, terms, participants, lambda local, terms: local.evaluate(received, terms))
