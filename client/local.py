"""One client: its data, its model and its work on a server's terms. It knows neither Flower nor messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol import names as wire
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits, Task, load_task

from .device import choose
from .personal import PersonalModels, StateDict, folder_of
from .training import global_work, measure, personal_work, train

Metrics = dict[str, int | float]


@dataclass(frozen=True)
class Update:
    """What a client replies to the terms of a round.

    Attributes
    ----------
    arrays
        The trained model; its tensors are those of the client's model where that trains nothing else in the round.
    metrics
        The number of training examples, and what was asked for.
    snapshot
        The model in the midst of the work, where that was asked for; else empty.
    """

    arrays: StateDict
    metrics: Metrics
    snapshot: StateDict


@dataclass(frozen=True)
class Local:
    """One client.

    Attributes
    ----------
    name
        What the server calls it.
    key
        The task's name of its partition, from which its random streams are drawn.
    settings
        The run config.
    task, splits
        The task, and this client's examples, on the device.
    model
        One model a process, which every client overwrites.
    personal
        Its personal models.
    """

    name: str
    key: str
    settings: Mapping[str, Any]
    task: Task
    splits: Splits
    model: torch.nn.Module
    personal: PersonalModels

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        partition: object,
        name: str | None = None,
        last: tuple[int, StateDict] | None = None,
    ) -> "Local":
        """Return the client of a partition.

        Parameters
        ----------
        settings
            The run config.
        partition
            Its place among the task's clients, from 0.
        name
            What the server calls it; None: as the task does.
        last
            Its last personal model and the round that made it, where somebody else kept it.

        Raises
        ------
        FairbloomError
            When there is no such partition, or the task cannot be loaded.
        """
        task, model = loaded(settings)
        if not isinstance(partition, int) or not 0 <= partition < len(task.clients):
            raise FairbloomError(
                f"partition-id = {partition!r} in the node config: with clients = {len(task.clients)} it must be an "
                f"integer from 0 to {len(task.clients) - 1}"
            )
        key = task.clients[partition]
        personal = PersonalModels(folder_of(settings, key), last)
        return cls(name or key, key, settings, task, task.splits(key), model, personal)

    def train(self, received: StateDict, terms: Terms) -> Update:
        """Train the received model, and the personal one where the terms say so.

        Raises
        ------
        StragglerError
            When this client is a straggler in this round and stragglers are dropped.
        """
        examples = self.splits.train
        work = global_work(self.settings, terms, self.key)
        self.model.load_state_dict(received)
        available: dict[str, float] = {wire.LEARNING_RATE: work.learning_rate}
        if _asks(terms, wire.LOSS_BEFORE, wire.ACCURACY_BEFORE):
            available[wire.LOSS_BEFORE], available[wire.ACCURACY_BEFORE] = measure(self.model, self.task, examples)
        snapshot = {} if terms.local_only else train(self.model, self.task, examples, work)
        if _asks(terms, wire.LOSS_AFTER, wire.ACCURACY_AFTER):
            available[wire.LOSS_AFTER], available[wire.ACCURACY_AFTER] = measure(self.model, self.task, examples)
        asked = {name: available[name] for name in terms.measure if name in available}
        arrays = self.model.state_dict()
        if terms.personal_lambda is not None:
            arrays = {name: tensor.clone() for name, tensor in arrays.items()}
            self._train_personal(received, terms)
        return Update(arrays, {wire.NUM_EXAMPLES: len(examples), **asked}, snapshot)

    def evaluate(self, received: StateDict, terms: Terms) -> Metrics:
        """Measure the received model on the test set, and more where the terms ask for it."""
        self.model.load_state_dict(received)
        test = self.splits.test
        loss, accuracy = measure(self.model, self.task, test)
        metrics: Metrics = {wire.NUM_EXAMPLES: len(test), wire.LOSS: loss, wire.ACCURACY: accuracy}
        if wire.TRAIN_LOSS in terms.measure:
            metrics[wire.TRAIN_LOSS] = measure(self.model, self.task, self.splits.train)[0]
        if terms.personal_lambda is not None:
            self._load_personal(before=terms.server_round + 1)
            metrics[wire.LOSS_PERSONAL], metrics[wire.ACCURACY_PERSONAL] = measure(self.model, self.task, test)
        return metrics

    def _load_personal(self, before: int) -> None:
        """Load the personal model; where there is none yet, that is the model as it is."""
        model = self.personal.before(before)
        if model is not None:
            self.model.load_state_dict(model)

    def _train_personal(self, received: StateDict, terms: Terms) -> None:
        """Train the personal model, pulled to the received one, and keep it."""
        self.model.load_state_dict(received)
        anchor = [parameter.detach().clone() for parameter in self.model.parameters() if parameter.requires_grad]
        self._load_personal(before=terms.server_round)
        work = personal_work(self.settings, terms, self.key)
        train(self.model, self.task, self.splits.train, work, anchor)
        self.personal.keep(terms.server_round, self.model.state_dict())


def loaded(settings: Mapping[str, Any]) -> tuple[Task, torch.nn.Module]:
    """Return the task and a model on the device that the run config names; the same ones for the same settings."""
    return _loaded(tuple(sorted(settings.items())))


@lru_cache(maxsize=2)
def _loaded(settings: tuple[tuple[str, Any], ...]) -> tuple[Task, torch.nn.Module]:
    config = dict(settings)
    device = choose(config["device"])
    task = load_task(config).to(device)
    return task, task.model().to(device)


def _asks(terms: Terms, *names: str) -> bool:
    return any(name in terms.measure for name in names)
