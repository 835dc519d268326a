"""One client: its data, its model, its stored states, and how it measures a model.

It knows neither Flower nor messages, and no rules of methods: see `fairbloom.client.local_round`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch.nn import Parameter

from fairbloom.errors import ReportableError, join_names
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.system.versions import Versions
from fairbloom.tasks import Splits, Task, find_task, load_task
from fairbloom.tasks.models import frozen_parameters
from fairbloom.tasks.models.made import Made, check_made, describe_made
from fairbloom.tasks.score import count_classes, has_two_classes

from .capture import NO_CAPTURE, Capture
from .device import choose_device
from .gate import OpenGate
from .metrics import ON_TESTS, TRAIN, Measurement
from .states import (
    PERSONAL,
    ClientStates,
    StateDict,
    Version,
    explain_disk_errors,
    folder_of,
    keep_preprocessing,
)
from .training import check_hidden_state, measure, with_channels_last
from .work import LocalWork

Metrics = dict[str, int | float]


@dataclass(frozen=True)
class LocalClient:
    """One client.

    Attributes
    ----------
    key
        The task's name of its partition, from which its random streams are drawn.
    model
        One model per process, which every client overwrites.
    order
        The seed of the order of its examples: the run's, or on a device a secret of the device.
    gate
        Decides what may leave a device; in one process, everything.
    capture
        Records the local steps on a CUDA device, if they are recorded.
    """

    name: str
    key: str
    settings: RunSettings
    task: Task
    splits: Splits
    model: torch.nn.Module
    states: ClientStates
    order: int | str
    gate: OpenGate = field(default_factory=OpenGate)
    capture: Capture = NO_CAPTURE

    @classmethod
    def of(
        cls,
        settings: RunSettings | Mapping[str, Any],
        partition: object,
        name: str | None = None,
        states: Mapping[str, Mapping[int, StateDict]] | None = None,
    ) -> "LocalClient":
        """Return the client of a partition of the task's data, as it is in one process.

        Parameters
        ----------
        partition
            Its index among the task's clients, from 0.
        name
            The server's name of it; None: the task's.
        states
            The versions of its states that are in memory, by name and round.
        """
        settings = RunSettings.of(settings)
        task, model = load_task_and_model(settings)
        key = find_client_key(settings, task, partition, name)
        folder = folder_of(settings, key)
        keep_preprocessing(folder, task, (key,))
        with explain_disk_errors("written to"):
            splits = task.splits(key)
        files: Versions | None = None
        if folder is not None:
            with explain_disk_errors("read from"):
                files = Versions(folder)
        return cls(
            name or key,
            key,
            settings,
            task=task,
            splits=splits,
            model=model,
            states=ClientStates(files, in_memory=states),
            order=settings.seed,
        )

    def describe_tests(self) -> Metrics:
        """Return the number of test examples and, of two classes, the share of the larger one."""
        share = self._larger_class
        return {
            **self.gate.pass_count(ON_TESTS.examples, self.splits.test),
            **(self.gate.pass_scores(ON_TESTS, share) if share else share),
        }

    @cached_property  # reading it waits for the device
    def _larger_class(self) -> dict[str, float]:
        if not has_two_classes(self.task):
            return {}
        counts = count_classes(self.splits.test)
        return {wire.LARGER_CLASS: counts[1] / sum(counts)} if counts else {}

    def report(
        self, measurement: Measurement, scores: Mapping[str, float], terms: Terms
    ) -> dict[str, float]:
        """Return measured scores as this client reports them, by their names on the wire."""
        passed = self.gate.pass_scores(measurement, scores)
        (reported,) = report_all([self], measurement, [passed], terms)
        return reported

    def measured(self, measurement: Measurement, terms: Terms) -> dict[str, float]:
        """Measure the current model; return what this client reports of it."""
        smallest_group = self.smallest_group * measurement.by_group
        return self.report(
            measurement,
            measure(self.model, self.task, measurement.of(self.splits), smallest_group),
            terms,
        )

    @property
    def smallest_group(self) -> int:
        """Fewest examples of a group that is reported, or fewest units if they have units."""
        return max(self.settings.smallest_group, self.gate.min_rows)

    def smallest_batch(self, work: LocalWork) -> int:
        """Return the fewest examples of a last batch: with fewer, it joins the one before it."""
        asked = (self.settings.smallest_batch, self.gate.min_rows)
        return self.splits.train.rows_of_units(
            max((each for each in asked if each <= work.batch_size), default=1)
        )

    def trainable(self) -> list[tuple[str, Parameter]]:
        """Return the trainable parameters and their names."""
        return [
            (name, parameter)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]

    def load_personal(self, before: int, names: Collection[str] = ()) -> int:
        """Load what `personal` returns; return its round."""
        version = self.personal(before, names)
        if version.state:
            self.model.load_state_dict({**self.model.state_dict(), **version.state})
        return version.made

    def personal(self, before: int, names: Collection[str] = ()) -> Version:
        """Return the last personal model of a round before this one, an empty one of round 0.

        With `names`, the reply leaves out these arrays. A model with others is not taken, nor are
        arrays in place of a whole model: a server that changes its terms must not receive what the
        client kept by the earlier ones.
        """
        found = self.states.find(PERSONAL, before) or Version(0, {})
        kept = found.state.keys()
        is_taken = kept <= set(names) if names else kept >= dict(self.trainable()).keys()
        return found if is_taken else Version(0, {})

    def keep_personal(self, number: int, model: StateDict, names: Collection[str] = ()) -> None:
        """Store these arrays of a round's model, by default all that are not frozen."""
        names = names or model.keys() - set(frozen_parameters(self.model))
        self.states.keep(
            PERSONAL, number, {name: each for name, each in model.items() if name in names}
        )


def report_all(
    clients: Sequence[LocalClient],
    measurement: Measurement,
    measured: Sequence[Mapping[str, float]],
    terms: Terms,
) -> list[dict[str, float]]:
    """Return what each of a run's clients reports of its scores, by their names on the wire.

    With `reported-loss` = batches, the reported training loss is a total over batches: n / b times
    the mean over n examples, with the batch size b or n if that is smaller.
    """
    if measurement.examples == TRAIN and clients and clients[0].settings.reported_loss == "batches":
        measured = [
            {**scores, wire.LOSS: scores[wire.LOSS] * count_batches(client)}
            for client, scores in zip(clients, measured, strict=True)
        ]
    # Most clients have the same scores: their names are found once, not for each client.
    names = {
        kinds: measurement.names(kinds, terms.measure).items() for kinds in {*map(tuple, measured)}
    }
    return [{name: scores[score] for name, score in names[tuple(scores)]} for scores in measured]


def count_batches(client: LocalClient) -> float:
    """Return n / b, the number of batches in an epoch; the last batch counts as a fraction."""
    count = len(client.splits.train)
    return count / min(client.settings.batch_size or count, count)


def find_client_key(settings: RunSettings, task: Task, partition: object, name: str | None) -> str:
    """Return the task's key of a client.

    It is the client's name if the data come with clients, else the only client of the data, else
    the client with the index `partition`.
    """
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
        names = join_names(task.clients)
        remedy = (
            "none with this client's name: set `name` in client.toml, or keep only this client's"
            " data there"
        )
        raise ReportableError(
            f"data-dir = {settings.data_dir!r} holds the data of {names}, {remedy}",
            f"data-dir holds the data of {len(task.clients)} clients, {remedy}",
        )
    raise ReportableError(
        f"partition-id = {partition!r} in the node config: with clients = {len(task.clients)} it"
        f" must be an integer from 0 to {len(task.clients) - 1}: set clients higher, or give this"
        " client a partition that is free"
    )


def load_task_and_model(settings: RunSettings) -> tuple[Task, torch.nn.Module]:
    """Return the task and a model on the settings' device; equal settings share both."""
    return _load_for_device(load_task(settings), settings.device)


def check_described(task: Task, text: str) -> None:
    """Raise ReportableError unless a model is made here as a server's `text` describes it.

    A server that is not ours describes none: "".
    """
    if not text:
        return
    try:
        there = Made.decode(text)
    except (ValueError, LookupError, TypeError) as error:
        raise ReportableError(
            "the server describes its model in words that this client does not know: upgrade"
            " fairbloom on the older one"
        ) from error
    check_made(describe_made(task), there, "the run's server")


@lru_cache(maxsize=1)  # on a card, another run's data and model would stay beside this run's
def _load_for_device(task: Task, name: str) -> tuple[Task, torch.nn.Module]:
    device = choose_device(name)
    on_device = task.to(device)
    model = task.model().to(device)
    try:
        examples = on_device.splits(on_device.clients[0]).train
    except Exception:  # the first client's data cannot be used: its own reply says so
        return on_device, model
    check_hidden_state(model, on_device, examples)
    return on_device, with_channels_last(model, examples)
