"""A round of training on a server's terms, with the rules that the terms ask for.

It knows neither Flower nor messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from fairbloom.protocol import names as wire
from fairbloom.protocol.terms import Terms
from fairbloom.tasks.models import sendable

from .capture import NO_CAPTURE, Capture
from .frozen import check_frozen_unchanged, fix_parameters
from .local import LocalClient, Metrics
from .metrics import (
    AFTER,
    ALL_METRICS,
    BEFORE,
    OF_EVALUATION,
    OWN,
    PERSONAL,
    RECEIVED,
    Measurement,
    WorkDone,
    requested_metrics,
)
from .plan import global_work, personal_works, work_of_client
from .rules.base import HOOKS, Corrector, GradientOffset, hooks_of
from .rules.registry import kinds_of, rules_of
from .rules.rule_round import RuleRound, finish_rules, start_rule
from .states import StateDict
from .support import Support
from .training import AfterStep, CorrectStep, train
from .work import Copy, Kind, LocalWork, StepsTaken, fields_of, run_work

# Everything: each engine that computes clients one by one supports it.
SUPPORTED = Support(
    hooks=frozenset(HOOKS) | hooks_of(GradientOffset.shift),
    work=fields_of(*Kind),
    metrics=ALL_METRICS,
)


@dataclass(frozen=True)
class Update:
    """A client's reply to the terms of a round.

    `arrays` may share memory with the client's model. A rule may reply a `second` model, in the
    record of the name `record`. Neither has what the client keeps for itself.
    """

    arrays: StateDict
    metrics: Metrics
    second: StateDict
    record: str = ""


def train_client(
    client: LocalClient,
    received: StateDict,
    terms: Terms,
    sent: Mapping[str, StateDict] = MappingProxyType({}),
) -> Update:
    """Train the received model on a client, and its personal model if the terms ask for one.

    `sent` has the further vectors of the message, by record.

    Raise ReportableError if this client is a straggler in this round and stragglers are dropped.
    """
    training = _SingleRound(client, received, terms, sent)
    training.run()
    return training.update


def evaluate_client(client: LocalClient, received: StateDict, terms: Terms) -> Metrics:
    """Measure the received model on the test set, and more if the terms ask for it."""
    client.model.load_state_dict(received)
    metrics = client.describe_tests()
    own: Metrics = {}
    # In this order, because each model overwrites the one before.
    for model in (RECEIVED, OWN, PERSONAL):
        measurements = [
            each
            for each in OF_EVALUATION
            if each.model_of(terms) == model and each.applies(terms, client.splits)
        ]
        if measurements and model != RECEIVED:
            metrics |= load_to_measure(client, model, terms)
        measured = metrics if model == RECEIVED else own
        for measurement in measurements:
            measured |= client.measured(measurement, terms)
    return metrics | client.gate.pass_numbers("evaluate", own, terms, client.states)


def load_to_measure(client: LocalClient, model: str, terms: Terms) -> Metrics:
    """Make the received model OWN or PERSONAL; return the metric that says when it was trained."""
    kinds = kinds_of(terms)
    kept = [
        name
        for kind in kinds
        for name in kind(terms).personal_arrays(client.model, client.task.output)
    ]
    made = client.load_personal(before=terms.server_round + 1, names=kept)
    for kind in kinds:
        if model == PERSONAL and "adapt" in kind.hooks():
            work = kind(terms).adapt(run_work(client.settings, terms.server_round))
            train_here(client, own_work(client, work, terms, "fine-tune"))
    return {wire.PERSONAL_ROUND: made} if terms.keeps_personal_models else {}


def own_work(client: LocalClient, work: LocalWork, terms: Terms, training: str = "") -> LocalWork:
    """Return the work of a client, in its own batches; see `work_of_client`.

    On a device, raise ReportableError if its model could show single rows.
    """
    order = client.order
    if isinstance(order, str):  # so that no two works of a round differ by one known step
        order = f"{order} {work.epochs} {work.steps}"
    planned = replace(
        work_of_client(work, client.settings, terms, client.key, training, order),
        smallest_batch=client.smallest_batch(work),
    )
    client.gate.check_training()
    client.gate.check_work(planned, terms)
    return planned


def train_here(
    client: LocalClient,
    work: LocalWork,
    anchor: Sequence[torch.Tensor] | None = None,
    *,
    correct: CorrectStep | None = None,
    after_step: AfterStep | None = None,
    capture: Capture = NO_CAPTURE,
) -> StepsTaken:
    """Train the client's model on its examples, as `train` does; return the steps.

    On a device, raise ReportableError if they are of too few rows: if the model does not leave, its
    losses and scores do.
    """
    steps = train(
        client.model,
        client.task,
        client.splits.train,
        work,
        anchor,
        correct=correct,
        after_step=after_step,
        capture=capture,
    )
    client.gate.check_steps(work, steps.count, client.model)
    return steps


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
            name
            for rule in self._rules
            for name in rule.personal_arrays(self._model, clients[0].task.output)
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
                self._started = []
                for client in self._clients:
                    terms = self._terms.of_client(client.name)
                    started = start_rule(client, rule, self._received, terms, self._sent)
                    self._started.append(started)

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
            metrics[wire.STATE_ROUND] = self._origin(row)
        return metrics

    def _origin(self, row: int) -> int:
        """Return the round of the state that a client continued from, 0 without one."""
        return self._started[row].origin if self._started else 0


class _SingleRound(ClientRound):
    """The round of one client."""

    def __init__(
        self, client: LocalClient, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> None:
        super().__init__([client], received, terms, sent)
        self._client = client
        self._work = own_work(client, global_work(client.settings, terms, self._rules), terms)
        client.model.load_state_dict(received)
        if self._own:
            client.load_personal(terms.server_round, self._own)

    def measure(self, measurement: Measurement) -> None:
        client = self._client
        if not measurement.applies(self._terms, client.splits):
            return
        if client.gate.shows_loss(self._work):
            self._scores[0] |= client.measured(measurement, self._terms)
        elif client.load_personal(self._terms.server_round):
            self._scores[0] |= client.measured(measurement, self._terms)
            client.model.load_state_dict(self._received)

    def report(self) -> None:
        super().report()
        for rule in self._rules:
            self._scores[0] |= rule.make_second_model(
                self._client, self._received, self._work.learning_rate
            )

    def take_steps(self) -> None:
        client = self._client
        works = [rule.work_on_own(self._work) for rule in self._rules]
        first = [work for work in works if work is not None]
        others = {name for name, _ in client.trainable()}.difference(self._own)
        for work in first:  # on the arrays that the client keeps
            with fix_parameters(client.model, others):
                train_here(client, own_work(client, work, self._terms, PERSONAL))
        with (
            check_frozen_unchanged(client.model),
            fix_parameters(client.model, self._own if first else ()),
        ):
            self._steps = train_here(
                client,
                self._work,
                correct=self._started[0].correct if self._started else None,
                after_step=self._after_step if self._watching else None,
                capture=client.capture,
            )

    def finish(self) -> None:
        client = self._client
        if not self._started:
            return
        trained = sendable({name: parameter.detach() for name, parameter in client.trainable()})
        (replied,) = finish_rules([(client, self._started[0], trained, self._steps)], self._terms)
        if replied is not trained:
            client.model.load_state_dict({**client.model.state_dict(), **replied})

    def reply(self) -> None:
        client = self._client
        done = WorkDone(
            lambda: self._work.learning_rate,
            lambda: [
                (self._received[name], parameter)
                for name, parameter in client.trainable()
                if name not in self._own
            ],
            lambda: self._steps.rate_sum,
        )
        record = ""
        second: StateDict = {}
        for rule in self._rules:
            if rule.replies:  # one rule at most, see rules_of
                record = rule.replies
                made = rule.second_model() or {}
                second = {name: each for name, each in made.items() if name not in self._own}
        trained = client.model.state_dict()
        if self._own:
            client.keep_personal(self._terms.server_round, trained, self._own)
        self.update = Update(
            {name: tensor for name, tensor in trained.items() if name not in self._own},
            self._metrics(0, lambda: done),
            second,
            record,
        )

    def after(self) -> None:
        client = self._client
        terms = self._terms
        works = personal_works(client.settings, terms, self._rules)
        if works:
            # the personal models overwrite the one that the reply shares memory with
            self.update = replace(
                self.update,
                arrays={name: tensor.clone() for name, tensor in self.update.arrays.items()},
            )
        for work in works:
            client.model.load_state_dict(self._received)
            anchor = [parameter.detach().clone() for _, parameter in client.trainable()]
            client.load_personal(before=terms.server_round)
            train_here(
                client, own_work(client, work, terms, PERSONAL), anchor, capture=client.capture
            )
            client.keep_personal(terms.server_round, client.model.state_dict())
