"""One client: its data, its model and its work on a server's terms.

It knows neither Flower nor messages.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import Parameter

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits, Task, find_task, load_task
from fairbloom.tasks.models import frozen_parameters, sendable
from fairbloom.tasks.score import count_classes, has_two_classes

from .device import choose_device
from .frozen import left_as_they_are
from .guard.disclosure import Gate
from .guard.evaluated_model import keep_preprocessing
from .guard.limits import FEWEST_ROWS
from .metrics import (
    ALL_METRICS,
    OF_EVALUATION,
    ON_TESTS,
    PERSONAL,
    TRAIN,
    Measurement,
    WorkDone,
    requested_metrics,
)
from .plan import global_work, personal_works, work_of_client
from .round import ClientRound
from .rules.base import HOOKS, Arrays, Copy, Corrector, GradientOffset, Rule, StepsTaken
from .rules.registry import rules_of
from .rules.rule_round import RuleRound
from .states import RULE, ClientStates, StateDict, Version, folder_of
from .support import Support
from .training import measure, train, with_channels_last
from .work import LocalWork

Metrics = dict[str, int | float]

SUPPORTED = Support(
    hooks=frozenset(HOOKS) | {"shift"},
    work=frozenset(each.name for each in fields(LocalWork)),
    metrics=ALL_METRICS,
)
"""What a LocalClient honours, and all engines that let one client work after the other."""


@dataclass(frozen=True)
class Update:
    """What a client replies to the terms of a round.

    The `arrays` may be those of the client's model itself. A rule may reply a `second` model, in
    the record of this name.
    """

    arrays: StateDict
    metrics: Metrics
    second: StateDict
    record: str = ""


@dataclass(frozen=True)
class LocalClient:
    """One client.

    Attributes
    ----------
    key
        The task's name of its partition, from which its random streams are drawn.
    model
        One model a process, which every client overwrites.
    gate
        What may leave the device; None in one process, where nothing leaves.
    """

    name: str
    key: str
    settings: RunSettings
    task: Task
    splits: Splits
    model: torch.nn.Module
    states: ClientStates
    gate: Gate | None = None

    @classmethod
    def of(
        cls,
        settings: RunSettings | Mapping[str, Any],
        partition: object,
        name: str | None = None,
        states: Mapping[str, Mapping[int, StateDict]] | None = None,
    ) -> "LocalClient":
        """Return the client of a partition, a place among the task's clients from 0.

        The server calls it `name`, or as the task. `states` are the versions of what it keeps, by
        name and round, where they are in memory.
        """
        folder = partial(folder_of, settings)
        settings = RunSettings.of(settings)
        task, model = load_task_and_model(settings)
        key = find_client_key(settings, task, partition, name)
        keep_preprocessing(folder(key), task, key)
        kept = ClientStates(folder(key), states)
        splits = task.splits(key)
        floor = settings.parameters.get(wire.FLOOR, FEWEST_ROWS)
        gate = Gate(int(floor), task, splits) if settings.parameters.get(wire.DEPLOYED) else None
        return cls(name or key, key, settings, task, splits, model, kept, gate)

    def train(
        self,
        received: StateDict,
        terms: Terms,
        sent: Mapping[str, StateDict] = MappingProxyType({}),
    ) -> Update:
        """Train the received model, and the personal one where the terms say so.

        Vectors are `sent` next to it, by record.

        Raises StragglerError when this client is a straggler in this round and stragglers are
        dropped.
        """
        if self.gate is not None:
            self.gate.check_training()
        training = _ClientTraining(self, received, terms, sent)
        training.run()
        return training.update

    def evaluate(self, received: StateDict, terms: Terms) -> Metrics:
        """Measure the received model on the test set, and more where the terms ask for it."""
        self.model.load_state_dict(received)
        metrics = self.describe_tests()
        # the personal model comes last, and stays in the place of the received one
        for each in OF_EVALUATION:
            if each.applies(terms, self.splits):
                if each.model == PERSONAL:
                    self.load_personal(before=terms.server_round + 1)
                metrics |= self.measured(each, terms)
        return metrics

    def describe_tests(self) -> Metrics:
        """Return how many test examples there are and, of two classes, the share of the larger one."""
        counts = count_classes(self.splits.test) if has_two_classes(self.task) else None
        share = {wire.LARGER_CLASS: counts[1] / sum(counts)} if counts else {}
        if share and self.gate is not None:
            share = self.gate.pass_scores(ON_TESTS, share)
        return {wire.NUM_EXAMPLES: len(self.splits.test), **share}

    def report(
        self, measurement: Measurement, scores: Mapping[str, float], terms: Terms
    ) -> dict[str, float]:
        """Return what was measured as this client reports it, by names on the wire."""
        if self.gate is not None:
            scores = self.gate.pass_scores(measurement, scores)
        (reported,) = report_all([self], measurement, [scores], terms)
        return reported

    def measured(self, measurement: Measurement, terms: Terms) -> dict[str, float]:
        """Return what the model, as it is now, has by a measurement."""
        smallest_group = self.smallest_group if measurement.by_group else 0
        scores = measure(self.model, self.task, measurement.of(self.splits), smallest_group)
        return self.report(measurement, scores, terms)

    @property
    def smallest_group(self) -> int:
        """Fewest examples of a group that is reported."""
        return max(self.settings.smallest_group, 0 if self.gate is None else self.gate.floor)

    def start_rule(
        self, rule: Rule, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> RuleRound:
        """Return a rule that corrects steps, in this round."""
        version = self.states.of_rule(terms)
        trainable = {name: received[name] for name, _ in self.trainable()}
        shapes, kept = (
            {name: each.shape for name, each in of.items()} for of in (trainable, version.state)
        )
        if version.made and isinstance(rule, GradientOffset) and kept != shapes:
            log.warning(
                "the state that client %s keeps belongs to another model: the client begins again"
                " without state",
                self.name,
            )
            version = Version(0, {})
        return RuleRound(rule, trainable, version, sent)

    def finish_rule(
        self, started: RuleRound, trained: Arrays, steps: StepsTaken, terms: Terms
    ) -> Arrays:
        """Keep what a rule has the client keep after these steps.

        Return the trainable parameters to reply.
        """
        replied, kept = started.finish(trained, steps)
        self.states.keep(RULE, terms.server_round, kept, started.origin)
        return replied

    def trainable(self) -> list[tuple[str, Parameter]]:
        """Return the trainable parameters and their names."""
        return [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]

    def load_personal(self, before: int) -> None:
        """Load the personal model into the global one.

        Where there is none yet, that is the model as it is.
        """
        self.model.load_state_dict({**self.model.state_dict(), **self.personal(before)})

    def personal(self, before: int) -> StateDict:
        """Return the last personal model of a round before this one, empty where there is none."""
        version = self.states.find(PERSONAL, before)
        return {} if version is None else version.state

    def keep_personal(self, number: int, model: StateDict) -> None:
        """Keep the personal model of a round, without frozen parameters: these are as in the global model."""
        frozen = frozen_parameters(self.model)
        self.states.keep(
            PERSONAL, number, {name: each for name, each in model.items() if name not in frozen}
        )


class _ClientTraining(ClientRound):
    """The round of one client."""

    def __init__(
        self, client: LocalClient, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> None:
        self._client = client
        self._received = received
        self._terms = terms
        self._sent = sent
        self._rules = rules_of(client.settings, terms)
        work = global_work(client.settings, terms, self._rules)
        self._work = work_of_client(work, client.settings, terms, client.key)
        self._scores: dict[str, float] = {}
        self._started: RuleRound | None = None
        self._steps = StepsTaken()
        client.model.load_state_dict(received)

    def before(self) -> None:
        for rule in self._rules:
            self._scores |= rule.before(self._client)

    def measure(self, measurement: Measurement) -> None:
        if measurement.applies(self._terms, self._client.splits):
            self._scores |= self._client.measured(measurement, self._terms)

    def report(self) -> None:
        for rule in self._rules:
            self._scores |= rule.report(self._client)
        for rule in self._rules:
            self._scores |= rule.make_second_model(
                self._client, self._received, self._work.learning_rate
            )

    def start(self) -> None:
        for rule in self._rules:
            if isinstance(rule, Corrector):
                self._started = self._client.start_rule(
                    rule, self._received, self._terms, self._sent
                )

    def take_steps(self) -> None:
        client = self._client
        started = self._started
        correct = None if started is None else started.correct
        watching = [rule for rule in self._rules if "after_step" in rule.hooks()]

        def after_step(step: int, copy: Copy, last: bool) -> None:
            for rule in watching:
                rule.after_step(step, copy, last=last)

        with left_as_they_are(client.model):
            self._steps = train(
                client.model,
                client.task,
                client.splits.train,
                self._work,
                correct=correct,
                after_step=after_step if watching else None,
            )

    def finish(self) -> None:
        client = self._client
        if self._started is None:
            return
        trained = sendable({name: parameter.detach() for name, parameter in client.trainable()})
        replied = client.finish_rule(self._started, trained, self._steps, self._terms)
        if replied is not trained:
            client.model.load_state_dict({**client.model.state_dict(), **replied})

    def reply(self) -> None:
        client = self._client
        terms = self._terms

        def changes() -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(self._received[name], each) for name, each in client.trainable()]

        done = WorkDone(lambda: self._work.learning_rate, changes, lambda: self._steps.rate_sum)
        metrics: Metrics = {wire.NUM_EXAMPLES: len(client.splits.train)}
        metrics |= requested_metrics(terms.measure, self._scores, done)
        if terms.state_round is not None:
            metrics[wire.STATE_ROUND] = 0 if self._started is None else self._started.origin
        seconds = {rule.replies: rule.second() or {} for rule in self._rules if rule.replies}
        record, second = next(iter(seconds.items()), ("", {}))
        self.update = Update(client.model.state_dict(), metrics, second, record)

    def after(self) -> None:
        client = self._client
        terms = self._terms
        works = personal_works(client.settings, terms, self._rules)
        if works:
            arrays = {name: tensor.clone() for name, tensor in self.update.arrays.items()}
            self.update = replace(self.update, arrays=arrays)
        for work in works:
            client.model.load_state_dict(self._received)
            anchor = [each.detach().clone() for _, each in client.trainable()]
            client.load_personal(before=terms.server_round)
            own = work_of_client(work, client.settings, terms, client.key, personal=True)
            train(client.model, client.task, client.splits.train, own, anchor)
            client.keep_personal(terms.server_round, client.model.state_dict())


def report_all(
    clients: Sequence[LocalClient],
    measurement: Measurement,
    found: Sequence[Mapping[str, float]],
    terms: Terms,
) -> list[dict[str, float]]:
    """Return what was measured at clients of one run as each reports it, by names on the wire.

    With `reported-loss` = batches, the loss of n training examples is a total over batches: n / b
    times the mean with batches of b examples, and of all n where there are fewer.
    """
    if measurement.examples == TRAIN and clients and clients[0].settings.reported_loss == "batches":
        of = clients[0].settings.batch_size
        counts = [len(each.splits.train) for each in clients]
        weights = [count / min(of or count, count) for count in counts]
        found = [
            {**each, wire.LOSS: each[wire.LOSS] * w} for each, w in zip(found, weights, strict=True)
        ]
    reports = list[dict[str, float]]()
    names = dict[str, str]()
    measured: Set[str] = set()
    for scores in found:
        if scores.keys() != measured:
            names = measurement.names(scores, terms.measure)
            measured = scores.keys()
        reports.append({name: scores[score] for name, score in names.items()})
    return reports


def find_client_key(settings: RunSettings, task: Task, partition: object, name: str | None) -> str:
    """Return which of the task's clients this one is: by its name where data come with clients, or the only one."""
    info = find_task(settings.task)
    if info.setup(settings).partition in info.natural and name in task.clients:
        return name
    if info.reads or info.is_user_defined:
        info.check_readable(settings.data_dir)
        if name in task.clients:
            return name
        if len(task.clients) == 1:
            return task.clients[0]
    if isinstance(partition, int) and 0 <= partition < len(task.clients):
        return task.clients[partition]
    if info.reads:
        raise ReportableError(
            f"data-dir = {settings.data_dir!r} holds the data of {', '.join(task.clients)}: say"
            " which are this client's, by name in its client.toml, or leave those alone in the"
            " folder",
            f"its data-dir holds the data of {len(task.clients)} clients, and none is called as"
            " this one: name the one that it is in its client.toml, or leave its own data alone in"
            " the folder",
        )
    raise ReportableError(
        f"partition-id = {partition!r} in the node config: with clients = {len(task.clients)} it"
        f" must be an integer from 0 to {len(task.clients) - 1}: set clients higher, or give this"
        " client a partition that is free"
    )


def load_task_and_model(settings: RunSettings) -> tuple[Task, torch.nn.Module]:
    """Return the task and a model on the settings' device, the same ones for both."""
    return _load_for_device(load_task(settings), settings.device)


@lru_cache(maxsize=2)
def _load_for_device(task: Task, name: str) -> tuple[Task, torch.nn.Module]:
    device = choose_device(name)
    there = task.to(device)
    model = task.model().to(device)
    try:
        return there, with_channels_last(model, there.splits(there.clients[0]).train)
    except Exception:  # that client's data cannot be used, which its own reply says
        return there, model
