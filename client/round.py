"""A round of training of one client, or of several at once: its order, and what both have."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from fairbloom.protocol import names as wire
from fairbloom.protocol.terms import Terms

from .local import LocalClient, Metrics
from .metrics import AFTER, BEFORE, Measurement, WorkDone, requested_metrics
from .rules.base import Corrector
from .rules.registry import rules_of
from .rules.rule_round import RuleRound, start_rule
from .states import StateDict
from .work import Copy


class ClientRound(ABC):
    """A round of training of one client, or of several at once; `run` defines its order.

    The clients share their model. `sent` has the further vectors of the message, by record.
    """

    def __init__(
        self,
        clients: Sequence[LocalClient],
        received: StateDict,
        terms: Terms,
        sent: Mapping[str, StateDict],
    ) -> None:
        self._clients = clients
        self._model = clients[0].model
        self._received = received
        self._terms = terms
        self._sent = sent
        self._rules = rules_of(clients[0].settings, terms)
        self._own = tuple(
            name for rule in self._rules for name in rule.personal_arrays(self._model)
        )
        self._watching = [rule for rule in self._rules if "after_step" in rule.hooks()]
        self._scores: list[Metrics] = [{} for _ in clients]
        self._started: list[RuleRound] = []  # of each client, if a rule corrects its steps

    def run(self) -> None:
        """Call the parts of the round in their order."""
        self.before()
        self.measure(BEFORE)
        self.report()
        self.start()
        self.take_steps()
        self.finish()
        self.measure(AFTER)
        self.reply()
        self.after()

    def before(self) -> None:
        """Call the rules that work before everything else, with the received model."""
        self._call("before")

    @abstractmethod
    def measure(self, measurement: Measurement) -> None:
        """Measure the current model, if the terms ask for it."""

    def report(self) -> None:
        """Call the rules that report on the received model, or make a second one from it."""
        self._call("report")

    def start(self) -> None:
        """Start the rules that correct steps."""
        for rule in self._rules:
            if isinstance(rule, Corrector):
                self._started = [
                    start_rule(
                        client,
                        rule,
                        self._received,
                        self._terms.of_client(client.name),
                        self._sent,
                    )
                    for client in self._clients
                ]

    @abstractmethod
    def take_steps(self) -> None:
        """Train the received model."""

    @abstractmethod
    def finish(self) -> None:
        """Finish these rules: they may change the trained model, and store state."""

    @abstractmethod
    def reply(self) -> None:
        """Make the reply: the trained model, and the metrics that the terms ask for."""

    @abstractmethod
    def after(self) -> None:
        """Train models of the client's own, which change nothing in the reply."""

    def _call(self, hook: str) -> None:
        """Call a hook of the rules with the received model; note the numbers that they report."""
        for rule in self._rules:
            if hook in rule.hooks():
                self._model.load_state_dict(self._received)
                for client, scores in zip(self._clients, self._scores, strict=True):
                    if self._own:
                        client.load_personal(self._terms.server_round, self._own)
                    scores.update(getattr(rule, hook)(client))

    def _after_step(self, step: int, copy: Copy, last: bool) -> None:
        """Call the rules that look at the model after a step."""
        for rule in self._watching:
            rule.after_step(step, copy, last=last)

    def _metrics(self, row: int, done: Callable[[], WorkDone]) -> Metrics:
        """Return the metrics that one of the clients replies."""
        client = self._clients[row]
        terms = self._terms.of_client(client.name)
        scores = client.gate.pass_numbers("train", self._scores[row], terms, client.states)
        metrics: Metrics = {wire.NUM_EXAMPLES: len(client.splits.train)}
        metrics |= requested_metrics(terms.measure, scores, done)
        if terms.state_round is not None:
            metrics[wire.STATE_ROUND] = self._started[row].origin if self._started else 0
        return metrics
