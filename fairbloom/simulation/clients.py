"""The base class of the engines: all clients of a run in this process, without messages."""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch.nn import Module

from fairbloom.client.capture import NO_CAPTURE, Capture
from fairbloom.client.device import check_device, choose_device
from fairbloom.client.local import LocalClient, Metrics, load_task_and_model
from fairbloom.client.local_round import Update
from fairbloom.client.private.opening import check_schema
from fairbloom.client.private.simulated import Account, SimulatedAccount, with_account
from fairbloom.client.rules.rounded import round_updates
from fairbloom.client.states import (
    ClientStates,
    StateDict,
    keep_preprocessing,
    state_folder,
    store,
)
from fairbloom.errors import FairbloomError, ReportableError, failure_reason
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.attacks import attack_of
from fairbloom.protocol.bfloat16 import BITS, widen
from fairbloom.protocol.error_codes import code_of
from fairbloom.protocol.names import HITS, LOSS_BEFORE, POSITIVES, STEP_SUM
from fairbloom.protocol.private import SIMULATED
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.sums import SharedNoise
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.aggregation import screen_updates
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.clients import (
    NOTHING,
    Replies,
    Reports,
    TrainReplies,
    check_names,
    layout_of_second,
)
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.rounds.screening import usable_evaluation, usable_metrics
from fairbloom.rounds.sums import SumReplies
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Matrix
from fairbloom.system.versions import Versions
from fairbloom.tasks import Examples, Task, load_task
from fairbloom.tasks.generators import all_seeded
from fairbloom.tasks.inputs import move
from fairbloom.tasks.models import arrays_of
from fairbloom.tasks.models.made import Form, form_of
from fairbloom.tasks.permit import TASK
from fairbloom.tasks.task import MAX_CACHED_CLIENTS

from .attack import check_attackers, falsify_losses, scale_updates
from .memory import empty_matrix, rows_on_card, write_models

# Metrics that are usable at 0 and beyond a bound, or by what others are.
OF_NO_INTERVAL = frozenset({STEP_SUM, *POSITIVES, *HITS})

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Failed:
    """The error of a client in place of its result, with its code in a message."""

    reason: str
    code: int


class StoredReply(NamedTuple):
    """A client's reply, with its models already in their rows of the update matrices.

    `others` and `second` are the buffers and integer arrays of its model and its second model.
    """

    row: int
    metrics: Metrics
    others: Model
    second: Model


class LocalClients:
    """All clients of a run, computed on this machine one by one, the engine `loop`.

    Other engines are subclasses. The reply of a client that raises an exception is refused, with
    its error as the reason.
    """

    def __init__(self, method: Method, settings: RunSettings) -> None:
        if settings.privacy__mode == SIMULATED:
            check_simulated(settings)
        self.method = method
        self.settings = settings
        self.device = choose_device(self.settings.device)
        self._names = load_task(self.settings).ascending
        check_names("training-clients", method.training_clients, self._names)
        check_names("enrolled-sizes", tuple(method.enrolled_sizes), self._names)
        check_names("prior", tuple(method.prior_weights), self._names)
        self._attack = attack_of(self.settings, self._names)
        check_attackers(self._attack, method, self._names)
        self._loaded: tuple[Task, Module] | None = None
        self._locals: OrderedDict[str, LocalClient] = OrderedDict()
        self._accounts: dict[str, Account] = {}
        self._states_folder = state_folder(self.settings)
        self._files = None if self._states_folder is None else Versions(self._states_folder)
        self._states: OrderedDict[str, ClientStates] = OrderedDict()
        self._cache_size = MAX_CACHED_CLIENTS
        self._kept_preprocessing = False
        self.capture: Capture = NO_CAPTURE
        # The last model on the device, with the arrays that it is of.
        self._moved: tuple[Model, StateDict] = ({}, {})

    # ClientPool, except train and evaluate --------------------------------------------------------

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of all clients, in ascending order: they are always online."""
        return self._names

    def free(self) -> Sequence[str]:
        """Return the names of all clients, in ascending order: no reply is pending."""
        return self._names

    def wait_until_free(self, fewest: int) -> None:
        """Return at once: all clients are free."""

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the number of training examples of each client; leave out unusable clients."""

        def count(name: str) -> int:
            self.evict_idle(())  # else all clients would be in memory
            return len(self.local(name).splits.train)

        sizes = {name: self._answer(count, name) for name in names}
        return {name: float(size) for name, size in sizes.items() if not isinstance(size, Failed)}

    @property
    def accounts(self) -> Mapping[str, AccountStatus]:
        """The simulated privacy accounts before the next round, by client."""
        return self._statuses(self._names, self.method.run_state.finished_rounds, spent=0.0)

    def _statuses(
        self, names: Iterable[str], last: int, **known: float
    ) -> Mapping[str, AccountStatus]:
        """Return the status of these clients' accounts after a round, with these known numbers."""
        if self.settings.privacy__mode != SIMULATED:
            return {}
        statuses: dict[str, AccountStatus] = {}
        for client in map(self.local, names):
            account = self._accounts[client.name]
            if isinstance(account, SimulatedAccount):
                statuses[client.name] = account.status_of(client, last + 1)._replace(**known)
        return statuses

    def keep(self, since: int) -> None:
        """Store the clients' states before the run's checkpoint is written.

        The run may later go back to round `since`.
        """
        if not self._kept_preprocessing:
            self._kept_preprocessing = True
            task = load_task(self.settings)
            # Preprocessing that is the same for all clients is in the run folder.
            if task.preprocessing is not None and task.preprocessing("").per_client:
                keep_preprocessing(self._states_folder, task, self._names)
        store(self._files, self._states.values(), since)
        while len(self._states) > self._cache_size:
            self._states.popitem(last=False)  # it is on disk

    def close(self) -> None:
        """Free the engine's graphs."""
        self.capture.release()

    @property
    def form(self) -> Form:
        """The shape and the type of an example's inputs by name, {} if the first has no data."""
        task, _ = self.task_and_model()
        try:
            train = task.splits(task.clients[0]).train
            with all_seeded(0):  # a Dataset may draw random numbers when it is read
                inputs, _ = train[slice(0, 1)]
        except Exception:  # a client's own reply says why its data cannot be used
            return {}
        return form_of(inputs)

    def announce(self, made: str) -> None:
        """Say nothing: these clients share this process, which makes the model."""

    # For engines ----------------------------------------------------------------------------------

    def local(self, name: str) -> LocalClient:
        """Return one of the clients."""
        # A client and its states are asked for together, so that they are evicted together.
        states = self.states(name)
        if name not in self._locals:
            task, model = self.task_and_model()
            client = LocalClient(
                name,
                name,
                self.settings,
                task=task,
                splits=task.splits(name),
                model=model,
                states=states,
                order=self.settings.seed,
                capture=self.capture,
            )
            self._locals[name], self._accounts[name] = with_account(client, self.settings)
        self._locals.move_to_end(name)
        return self._locals[name]

    def task_and_model(self) -> tuple[Task, Module]:
        """Return the task and a model on the device, loaded once for the whole run."""
        if self._loaded is None:
            self._loaded = load_task_and_model(self.settings)
        return self._loaded

    def states(self, name: str) -> ClientStates:
        """Return the states that a client keeps between rounds."""
        if name not in self._states:
            self._states[name] = ClientStates(self._files, name, at_once=False)
        self._states.move_to_end(name)
        return self._states[name]

    def evict_idle(self, names: Sequence[str]) -> None:
        """Make the cache large enough for `names`, and drop the least recently used others."""
        self._cache_size = max(self._cache_size, len(names))
        while len(self._locals) > self._cache_size:
            self._locals.popitem(last=False)

    def empty_replies(
        self,
        names: Sequence[str],
        model: Model,
        terms: Terms,
        sent: Mapping[str, Model],
    ) -> TrainReplies:
        """Return an empty object for a round's training replies, with the bytes of the messages.

        The bytes are those that Flower's messages would have. Models are written into the rows of
        matrices on the card, in memory or in files.
        """
        layout = self.method.layout_of(model)
        second = self.method.second
        layouts = [layout]
        if second:
            layouts.append(layout_of_second(layout, second))
        matrices: Sequence[Matrix] = rows_on_card(layouts, len(names), self.device)
        if not matrices:
            memory = self.settings.memory
            of = len(layouts)
            matrices = [
                empty_matrix(len(names), each.size, each.dtype, memory, of=of) for each in layouts
            ]
        trained = TrainReplies.empty(
            layout,
            refused=Refusals(terms.server_round),
            second=second,
            matrices=matrices,
        )
        vectors = sum(
            size_on_the_wire(array) for arrays in sent.values() for array in arrays.values()
        )
        size = self._size_of(model, layout.rounded if terms.codec.rounds_model else ())
        rounded = layout.rounded if terms.codec.rounds_updates else ()
        reply_size = self._size_of(model, rounded)
        if trained.second is not None:
            reply_size += self._size_of(trained.second.layout.arrays, rounded)
        return replace(
            trained,
            bytes_sent=len(names) * (size + vectors),
            sizes=dict.fromkeys(names, reply_size),
        )

    def _size_of(self, model: Model, rounded: Collection[str] = ()) -> int:
        frozen = frozenset(self.method.frozen)
        return sum(
            size_on_the_wire(array, BITS if name in rounded else array.dtype)
            for name, array in model.items()
            if name not in frozen
        )

    def collect(
        self, trained: TrainReplies, replies: Mapping[str, StoredReply], terms: Terms
    ) -> None:
        """Add the replies, by client in the order of names and rows; refuse unusable ones."""
        method = self.method
        if terms.codec.rounds_updates:
            self._round_updates(trained, replies, terms)
        reports = screen_reports(
            {name: reply.metrics for name, reply in replies.items()},
            partial(usable_metrics, needs=method.needs),
            method.weighted_by_key,
            trained.refused,
        )
        usable = [replies[name] for name in reports]
        for updates in (trained.updates, trained.second):
            for row, reply in enumerate(usable):
                if updates is not None and row != reply.row:
                    updates.matrix[row] = updates.matrix[reply.row]
        trained.add_rows(
            reports, [reply.others for reply in usable], [reply.second for reply in usable]
        )
        # Before the updates are screened, which caches their norms and inner products.
        falsify_losses(trained.metrics, self._attack)
        scale_updates(trained, self._attack)
        screen_updates(method, trained, trained.refused.round)

    def _round_updates(
        self, trained: TrainReplies, replies: Mapping[str, StoredReply], terms: Terms
    ) -> None:
        """Round the updates of models in the rows as messages would, in place."""
        for updates in (each for each in (trained.updates, trained.second) if each is not None):
            layout = updates.layout
            received = self.received(layout.arrays, terms)
            flat = {name: received[name].ravel() for name in layout.trainable}
            for name, reply in replies.items():
                row = updates.matrix[reply.row]
                states = self.states(name) if updates is trained.updates else ClientStates()
                sent = round_updates(
                    states, terms, flat, {array: row[place] for array, place in layout.slices}
                )
                for array, place in layout.slices:
                    np.subtract(layout.flat[place], widen(sent[array]), out=row[place])
                updates.matrix[reply.row] = row  # that of a matrix on a card is a copy

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Train the model at these clients on the terms, each on its own data."""
        self.evict_idle(names)
        received = self.on_device(self.received(model, terms))
        trained = self.empty_replies(names, model, terms, sent)
        vectors = {record: self.on_device(arrays) for record, arrays in sent.items()}

        def train(row: int, name: str) -> StoredReply:
            client = self.local(name)
            return store_reply(
                trained.updates,
                trained.second,
                row,
                self._accounts[name].train(client, received, terms.of_client(name), vectors),
            )

        replies = refuse_failed(
            {name: self._answer(train, row, name) for row, name in enumerate(names)},
            trained.refused,
        )
        self.collect(trained, replies, terms)
        return replace(trained, accounts=self._statuses(replies, terms.server_round))

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Evaluate the model at these clients, one by one.

        Only `participants` report the metrics in `terms.measure`.
        """
        received = self.on_device(self.received(model, terms))
        refused = Refusals(terms.server_round)
        terms_of_others = replace(terms, measure=())
        asked = set(participants)
        self.evict_idle(names)

        def evaluate(name: str) -> Metrics:
            own = terms if name in asked else terms_of_others
            client = self.local(name)  # it opens the account
            return self._accounts[name].evaluate(client, received, own)

        reports = refuse_failed({name: self._answer(evaluate, name) for name in names}, refused)
        return replace(
            self.evaluated(reports, refused, names, model, terms),
            accounts=self._statuses(reports, terms.server_round, spent=0.0),
        )

    def report_losses(
        self, names: Sequence[str], model: Model, terms: Terms, asked: SharedNoise
    ) -> Replies:
        """Return the clients' mean training losses at a model, by their simulated accounts."""
        received = self.on_device(model)
        refused = Refusals(terms.server_round)

        def report(name: str) -> float:
            client, account = self._partner(name)
            return account.report_loss(client, received, terms, asked)

        losses = refuse_failed({name: self._answer(report, name) for name in names}, refused)
        return Replies(
            metrics={name: {LOSS_BEFORE: loss} for name, loss in losses.items()},
            refused=refused,
            bytes_sent=len(names) * self._size_of(model),
            accounts=self._statuses(losses, terms.server_round),
        )

    def add_up(
        self, names: Sequence[str], model: Model, terms: Terms, asked: SharedNoise
    ) -> SumReplies:
        """Return the sum of the clients' parts: what masks would leave of them."""
        received = self.on_device(model)
        refused = Refusals(terms.server_round)
        total = np.zeros(self.method.layout_of(model).size, np.int64)

        def add(name: str) -> None:
            client, account = self._partner(name)
            np.add(total, account.add(client, received, terms, asked), out=total)

        added = refuse_failed({name: self._answer(add, name) for name in names}, refused)
        return SumReplies(
            metrics={name: {} for name in added},
            refused=refused,
            bytes_sent=len(names) * self._size_of(model),
            sizes=dict.fromkeys(added, size_on_the_wire(total)),
            accounts=self._statuses(added, terms.server_round),
            total=total,
        )

    def _partner(self, name: str) -> tuple[LocalClient, SimulatedAccount]:
        client = self.local(name)  # it opens the account
        account = self._accounts[name]
        if not isinstance(account, SimulatedAccount):
            raise ReportableError("it has no privacy account, and adds no noise to a sum")
        return client, account

    def probe(self, names: Sequence[str], model: Model, terms: Terms) -> Replies:
        """Return the training losses of these clients at a model, which the method reads."""
        replies = self.evaluate(names, model, terms, names)
        falsify_losses(replies.metrics, self._attack)
        return replies

    def evaluated(
        self,
        reports: Mapping[str, Metrics],
        refused: Refusals,
        names: Sequence[str],
        model: Model,
        terms: Terms,
    ) -> Replies:
        """Return the usable evaluations in the order of names; refuse the others."""
        usable = screen_reports(reports, usable_evaluation, self.method.weighted_by_key, refused)
        rounded = self.method.layout_of(model).rounded if terms.codec.rounds_model else ()
        return Replies(
            metrics=usable,
            refused=refused,
            bytes_sent=len(names) * self._size_of(model, rounded),
        )

    def _answer(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Failed:
        return call_client(compute, *args, **kwargs)

    def received(self, model: Model, terms: Terms) -> Model:
        """Return a model as clients receive it."""
        if not terms.codec.rounds_model:
            return model
        sent = terms.codec.send_model(model, self.method.layout_of(model).rounded)
        return terms.codec.receive_model(sent, {name: each.dtype for name, each in model.items()})

    def on_device(self, model: Model) -> StateDict:
        """Return a copy of a model as tensors on the device, which nobody changes.

        Of the model that it got last, which is evaluated and then trained, it is the same copy.
        """
        if self._moved[0] is not model:
            tensors = {
                name: move(torch.tensor(array), self.device) for name, array in model.items()
            }
            self._moved = model, tensors
        return self._moved[1]


class DebuggedClients(LocalClients):
    """The engine `loop` for debugging: a client's first error ends the run with its traceback."""

    def _answer(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Failed:
        return compute(*args, **kwargs)


class HeldOutClients(LocalClients):
    """The clients that are not in training, each with only its first `few` training examples.

    They have neither accounts nor attackers, and their states begin empty, in memory.
    """

    def __init__(self, method: Method, settings: RunSettings, few: int) -> None:
        plain = {"state_dir": "", "pooled": False, "attack": "", "privacy__mode": "none"}
        super().__init__(method, settings.model_copy(update=plain))
        self._few = few

    def local(self, name: str) -> LocalClient:
        """Return one of the clients."""
        client = super().local(name)
        train = Examples(*client.splits.train[slice(0, self._few)])
        return replace(client, splits=replace(client.splits, train=train))


def check_simulated(settings: RunSettings) -> None:
    """Raise FairbloomError unless devices could open privacy accounts for the run's data."""
    if settings.task != TASK:
        raise FairbloomError(
            f"task = {settings.task!r}: a privacy account is for tables, also a simulated one: set"
            f" task = {TASK}"
        )
    if not settings.schema_:
        raise FairbloomError(
            "a privacy account, also a simulated one, is opened with a schema: fairbloom data DIR"
            " --write-schema FILE infers one: set schema = FILE"
        )
    check_schema(settings.schema_)


def call_client(compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Failed:
    """Return a client's result or its error, which refuses its reply; a lost GPU is raised."""
    try:
        return compute(*args, **kwargs)
    except Exception as error:
        check_device(error)
        return Failed(failure_reason(error), code_of(error))


def refuse_failed(answers: Mapping[str, T | Failed], refused: Refusals) -> dict[str, T]:
    """Return the clients' results by name; refuse clients with an error instead of a result."""
    results: dict[str, T] = {}
    for name, answer in answers.items():
        if isinstance(answer, Failed):
            refused.add(name, answer.reason, answer.code)
        else:
            results[name] = answer
    return results


def screen_reports(
    records: Mapping[str, Metrics],
    usable: Callable[[Metrics, str], dict[str, float]],
    weight: str,
    refused: Refusals,
) -> Reports:
    """Return the usable metrics of each client; refuse clients with an unusable report.

    Usable is what has the right type and lies in an interval, so that the least and the largest
    number of each metric show whether all reports are.
    """
    ends = _find_ends([*records.values()])
    with suppress(ValueError):
        if ends and all(usable(end, weight) == end for end in ends):
            return {**records}
    reports: Reports = {}
    for name, record in records.items():
        try:
            reports[name] = usable(record, weight)
        except ValueError as reason:
            refused.add(name, reason)
    return reports


def _find_ends(reports: Sequence[Metrics]) -> list[Metrics]:
    """Return the reports with the least and the largest number of each metric.

    Return [] if reports differ in their metrics or types, have a number that is not finite, or a
    metric that is usable in no interval.
    """
    ends: list[Metrics] = []
    alike = len({*map(tuple, reports)}) == 1 and OF_NO_INTERVAL.isdisjoint(reports[0])
    for name in reports[0] if alike else ():
        column = [report[name] for report in reports]
        if len({*map(type, column)}) > 1 or not math.isfinite(sum(column)):
            return []
        ends += [reports[column.index(end)] for end in (min(column), max(column))]
    return ends


def store_reply(updates: Updates, second: Updates | None, row: int, update: Update) -> StoredReply:
    """Write a client's trained models into a row of the matrices.

    Return its reply, with copies of all other arrays.
    """
    others_of_second = {} if second is None else _write(second, row, update.second)
    return StoredReply(row, update.metrics, _write(updates, row, update.arrays), others_of_second)


def _write(updates: Updates, row: int, state: StateDict) -> Model:
    """Write a model's trainable arrays into a row; return copies of its other arrays."""
    layout = updates.layout
    trained = {name: state[name].unsqueeze(0) for name in layout.trainable}
    write_models(updates.matrix, [row], layout.slices, trained)
    others = arrays_of({name: state[name] for name in (*layout.buffers, *layout.integers)})
    return {name: array.copy() for name, array in others.items()}
