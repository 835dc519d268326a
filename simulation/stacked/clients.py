"""The engine `stacked`: a round's clients trained as one tensor program, a row of a matrix each.

Clients are taken in blocks of similar size. Each meets its examples in the order in which it would by itself, and ends
with the weights that it would have.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairbloom.client.class_weights import class_table
from fairbloom.client.honoured import Honoured
from fairbloom.client.local import LocalClient, Metrics, StartedRule, report_all
from fairbloom.client.metrics import (
    AFTER,
    BEFORE,
    OF_EVALUATION,
    OF_HITS,
    PERSONAL,
    Measurement,
    WorkDone,
    requested_metrics,
)
from fairbloom.client.rules import StepsTaken
from fairbloom.client.states import StateDict
from fairbloom.client.training import measure
from fairbloom.client.work import LocalWork, batch_order, epochs_in_time, global_work, personal_work
from fairbloom.errors import failure_reason
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.schedules import UNCHANGED
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Layout, Model
from fairbloom.tasks import Examples, Task

from ..clients import LocalClients, Reply, answer_of, refuse_failed, store_reply
from .blocks import Member, Step, divide_into_blocks, examples_of, full_batch, minibatches, repeat_step, takes_all
from .optimizers import RowOptimizer
from .programs import Program, StepArrays, UnstackableError, in_tensors, make_program
from .together import Measures, losses_of, measure_clients, score_clients, split_into_passes

HONOURED = Honoured(
    work=frozenset(
        {"epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "gradient_clip", "pull", "steps"}
        | {"snapshot_step", "transform", "random", "optimizer", "schedule", "class_weights", "precision", "rule"}
    ),
    terms=frozenset(
        {"server_round", "measure", "proximal_mu", "personal_lambda", "personal_epochs", "local_only", "local_steps"}
        | {"client_momentum", "full_batch_step", "snapshot_step", "loss_transform", "propfair_baseline"}
        | {"propfair_epsilon", "baseline_patience", "baseline_tolerance", "baseline_epochs", "agreed", "others"}
        | {"control_variates", "dynamic_alpha", "client_rule", "state_round", "state_rounds"}
    ),
    metrics=frozenset(
        {"{}-before", "{}-after", "learning-rate", "update-norm", "step-sum", "{}", "train-{}", "{}-validation"}
        | {"{}-personal", "{}[{}:{}]", "{}-validation-personal", "{}-baseline"}
        | {"disparity", "disparity-hard", "positives-0", "positives-1", "hits-0", "hits-1"}
    ),
)
"""What is honoured side by side: no time budget, which is each client's, and nothing that a model draws. Of optimizers,
`find_unmet` says which are, and which are with a schedule over steps."""

REMEMBERED_BYTES = 2**26
"""Full batches are remembered from round to round up to this size in all."""


def find_unmet(terms: Terms, *works: LocalWork, by_group: bool = False) -> str:
    """Return the first thing that is asked for and is not done side by side, as name = value; "" where all is."""
    apart = [f"optimizer = {work.optimizer}" for work in works if not work.optimizer.is_elementwise]
    apart += [
        f"schedule = {work.schedule} over steps of optimizer = {work.optimizer}"
        for work in works
        if work.schedule != UNCHANGED and not work.optimizer.is_in_proportion
    ]
    apart += [str(work.rule) for work in works if work.rule is not None and not work.rule.is_shift]
    return HONOURED.unmet(terms, *works, by_group=by_group) or (apart[0] if apart else "")


class Rows:
    """The models of k clients: each trainable array of all of them as one tensor; at first all are `received`."""

    def __init__(self, layout: Layout, received: StateDict, count: int) -> None:
        self.arrays = [received[name].expand(count, *received[name].shape).clone() for name in layout.trainable]
        self._layout = layout
        self._received = received

    @property
    def anchor(self) -> list[Tensor]:
        """The received arrays, each of shape (1, *shape)."""
        return [self._received[name].unsqueeze(0) for name in self._layout.trainable]

    def load(self, row: int, model: StateDict) -> None:
        """Set a row to a model."""
        for name, array in zip(self._layout.trainable, self.arrays, strict=True):
            array[row] = model[name]

    def model(self, row: int) -> StateDict:
        """Return the model of a row; what is not trained is as it was received."""
        trained = {name: array[row] for name, array in zip(self._layout.trainable, self.arrays, strict=True)}
        return self._received | trained

    def work_done(self, row: int, work: LocalWork, steps: int) -> WorkDone:
        """Return the work that has made the model of a row, in so many steps, what it is now."""
        changes, rate_sum = partial(self._changes, row), lambda: StepsTaken(work.rates(steps)).rate_sum
        return WorkDone(lambda: work.learning_rate, changes, rate_sum)

    def _changes(self, row: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the trainable arrays of a row, each as received and as it is now."""
        return [(self._received[n], array[row]) for n, array in zip(self._layout.trainable, self.arrays, strict=True)]

    def write(self, matrix: NDArray[Any], places: Sequence[int]) -> None:
        """Write the models into rows of a matrix, their arrays one after the other."""
        for (_, place), array in zip(self._layout.slices, self.arrays, strict=True):
            matrix[places, place] = array.reshape(len(array), -1).cpu().numpy()

    def copy(self) -> "Rows":
        """Return the models as they are now."""
        there = copy.copy(self)
        there.arrays = [array.clone() for array in self.arrays]
        return there


class StackedClients(LocalClients):
    """All clients of a run, a block of them at once.

    Parameters
    ----------
    method
        Says which metrics it needs and which arrays are buffers.
    settings
        Of the run, or its run config.
    block
        The most clients that are computed at once.

    Raises
    ------
    FairbloomError
        When the task cannot be loaded, or this machine has no such device.
    """

    def __init__(self, method: Method, settings: RunSettings | Mapping[str, Any], block: int) -> None:
        super().__init__(method, settings)
        self._block = block
        self._known: tuple[nn.Module, Program] | None = None
        self._full: OrderedDict[tuple[str, ...], Step] = OrderedDict()
        self._crew: tuple[object, list[Member]] = (None, [])
        self._reasons: set[str] = set()

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        if self._are_apart(self._why_apart(terms)):
            return self.train_each(names, model, terms, sent)
        self.begin(names, terms)
        trained, received = self.none_trained(names, model, terms), self.on_device(model)
        if self.method.frozen:  # which programs take from the model
            self.task_and_model()[1].load_state_dict(received)
        vectors = {record: self.on_device(arrays) for record, arrays in sent.items()}
        training = _Training(self, received, terms, trained, vectors)
        members = self._members(names, terms, trained.refused)

        def train_block(block: Sequence[Member]) -> None:
            self.on_trained(len(training.replies), len(names))
            training.block(block)

        try:
            self._in_blocks(members, train_block, training.alone, trained.refused)
        except UnstackableError as reason:
            self._are_apart(f"the model cannot be stacked: {reason}")
            return self.train_each(names, model, terms, sent)
        if terms.personal_lambda is not None:
            work = personal_work(self.settings, terms)
            trained_here = (each for each in members if each.local.name in training.replies)
            members = [Member.of(each.local, each.place, work, work.epochs) for each in trained_here]
            self._in_blocks(members, training.personal_block, training.personal_alone, trained.refused)
        unfit = trained.refused.reasons
        self.hand_over(trained, {name: training.replies[name] for name in names if name not in unfit})
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        self.begin(names, terms)
        if self._are_apart(HONOURED.unmet(terms, by_group=self._by_group)):
            return self.evaluate_each(names, model, terms, participants)
        try:
            reports = self._measures(names, self.on_device(model), terms, set(participants))
        except Exception:  # one by one it shows whose fault it is
            return self.evaluate_each(names, model, terms, participants)
        return self.evaluated(reports, Refusals(terms.server_round))

    def _why_apart(self, terms: Terms) -> str:
        """Return what of the terms, or of the work that they make, is not honoured side by side; "" where all is."""
        try:
            works = global_work(self.settings, terms), personal_work(self.settings, terms)
            return find_unmet(terms, *works, by_group=self._by_group)
        except ValueError as reason:  # terms that no client knows
            return str(reason)

    @property
    def _by_group(self) -> bool:
        """Whether clients measure scores by group."""
        return bool(self.task_and_model()[0].groupings)

    def _are_apart(self, why: str) -> bool:
        """Return whether there is a reason to compute clients one by one; each is logged once."""
        if why and why not in self._reasons:
            self._reasons.add(why)
            log.warning("stacked clients are computed one after the other where this is asked: %s", why)
        return bool(why)

    # Parts ------------------------------------------------------------------------------------------------------------

    def program(self, task: Task, model: nn.Module, examples: Examples) -> Program:
        """Return how the model is computed for many clients."""
        if self._known is None or self._known[0] is not model:
            self._known = model, make_program(model, task, examples)
        return self._known[1]

    def steps(self, block: Sequence[Member], work: LocalWork, terms: Terms, *, personal: bool) -> Iterable[Step]:
        """Return the steps of a block."""
        if takes_all(block):
            return repeat_step(self._full_batch(block), block)
        number = terms.server_round
        return minibatches(block, work, lambda m: batch_order(self.settings, number, m.local.key, personal=personal))

    def _full_batch(self, block: Sequence[Member]) -> Step:
        """Return the step that takes all examples; small ones are remembered, since the next rounds take them too."""
        names = tuple(member.local.name for member in block)
        if names in self._full:
            self._full.move_to_end(names)
            return self._full[names]
        step = full_batch(examples_of(block))
        self._full[names] = step
        while sum(each.nbytes for each in self._full.values()) > REMEMBERED_BYTES:
            self._full.popitem(last=False)
        return step

    def _members(self, names: Sequence[str], terms: Terms, refused: Refusals) -> list[Member]:
        """Return the clients that can train, the same ones for the same names and work; the others are refused."""
        work = global_work(self.settings, terms)
        about = (tuple(names), work.batch_size, work.epochs, work.steps, terms.agreed)
        if self._crew[0] == about:
            return self._crew[1]

        def member(place: int, name: str) -> Member:
            in_full = terms.full_batch_step
            epochs = work.epochs if in_full else epochs_in_time(self.settings, terms.server_round, name)
            return Member.of(self.local(name), place, work, epochs)

        found = refuse_failed({name: answer_of(member, place, name) for place, name in enumerate(names)}, refused)
        members = list(found.values())
        if len(members) == len(names) and not self.settings.stragglers:
            self._crew = (about, members)
        return members

    def _in_blocks(
        self,
        members: Sequence[Member],
        together: Callable[[Sequence[Member]], None],
        alone: Callable[[Member], None],
        refused: Refusals,
    ) -> None:
        """Do something with blocks of clients; in halves where memory does not suffice, one by one where one fails."""
        for block in divide_into_blocks(members, self._block):
            try:
                together(block)
            except UnstackableError:
                raise
            except torch.OutOfMemoryError:
                self._block = max(1, len(block) // 2)
                log.warning("%d clients at once need more memory than there is; now %d are", len(block), self._block)
                torch.cuda.empty_cache()
                if len(block) > 1:
                    self._in_blocks(block, together, alone, refused)
                else:
                    self._one_by_one(block, alone, refused)
            except Exception as error:
                if not self._one_by_one(block, alone, refused):
                    log.warning(
                        "%d clients were computed one by one, since together: %s", len(block), failure_reason(error)
                    )

    def _one_by_one(self, block: Sequence[Member], alone: Callable[[Member], None], refused: Refusals) -> int:
        """Do something with one client after the other; refuse those that fail, and return how many did."""
        answers = {member.local.name: answer_of(alone, member) for member in block}
        return len(block) - len(refuse_failed(answers, refused))

    def _measures(
        self, names: Sequence[str], received: StateDict, terms: Terms, participants: Collection[str]
    ) -> dict[str, Metrics]:
        """Return what each client measures of the received model, and of its personal one."""
        clients = [self.local(name) for name in names]
        task, model = clients[0].task, clients[0].model
        asked = [each for each in clients if each.name in participants]
        reports = {each.name: each.describe_tests() for each in clients}
        model.load_state_dict(received)
        for measurement in OF_EVALUATION:
            if not measurement.is_asked(terms):
                continue
            requested = measurement.requested
            there = [(each, measurement.of(each.splits)) for each in (asked if requested else clients)]
            some = [(each, part) for each, part in there if requested or part]
            measuring = [each for each, _ in some]
            if measurement.model == PERSONAL:
                before = terms.server_round + 1
                found = [self._measure_personal(each, measurement, received, before) for each in measuring]
            else:
                smallest_group = self.settings.smallest_group if measurement.by_group else 0
                found = measure_clients(model, task, in_tensors([part for _, part in some]), smallest_group)
            for local, reported in zip(measuring, report_all(measuring, measurement, found, terms), strict=True):
                reports[local.name] |= reported
        return {each.name: each.conclude(reports[each.name]) for each in clients}

    def _measure_personal(
        self, local: LocalClient, measurement: Measurement, received: StateDict, before: int
    ) -> Measures:
        """Return what is measured of a client's personal model of rounds before this one, at first the received one."""
        local.model.load_state_dict({**received, **(local.personal.before(before) or {})})
        return measure(local.model, local.task, measurement.of(local.splits), self.settings.smallest_group)


class _Training:
    """One round's training.

    Parameters
    ----------
    engine
        Whose clients train.
    received
        The global model on the device.
    terms
        Of the work.
    trained
        Takes the models, in the rows of its matrices.
    sent
        What each client is sent beside the model, by record.
    """

    def __init__(
        self,
        engine: StackedClients,
        received: StateDict,
        terms: Terms,
        trained: Trained,
        sent: Mapping[str, StateDict],
    ) -> None:
        self.replies: dict[str, Reply] = {}
        self._engine, self._received, self._terms, self._trained = engine, received, terms, trained
        self._sent = sent
        self._layout = trained.updates.layout

    def block(self, block: Sequence[Member]) -> None:
        """Train the global model on a block of clients."""
        terms, task, model = self._terms, block[0].local.task, block[0].local.model
        parts = examples_of(block)
        scores: list[Metrics] = [{} for _ in block]
        if terms.baseline_epochs is not None:
            scores = [{**member.local.find_baseline(self._received, terms)} for member in block]
        program = self._engine.program(task, model, parts[0])
        rows, work = Rows(self._layout, self._received, len(block)), global_work(self._engine.settings, terms)
        rules = self._start_rules(block, work)
        halfway, first = rows, None
        if not terms.local_only:
            steps = self._engine.steps(block, work, terms, personal=False)
            counts = [member.steps for member in block]
            halfway, first = train_together(program, task, rows, steps, work, parts, counts, self._shift(rules))
        self._finish_rules(block, rules, rows, work)
        self._measure_received(scores, block, parts, first)
        if AFTER.requests(terms.measure):
            self._note(scores, block, AFTER, measure_trained(program, task, rows, parts))
        places = [member.place for member in block]
        rows.write(self._trained.updates.matrix, places)
        if self._trained.second is not None:
            halfway.write(self._trained.second.matrix, places)
        self._store_replies(block, scores, rows, work, rules)

    def _measure_received(
        self, scores: Sequence[Metrics], block: Sequence[Member], parts: Sequence[Examples], first: Tensor | None
    ) -> None:
        """Add what is asked for of the received model; `first` has each client's loss in the first step, if known."""
        terms, task, model = self._terms, block[0].local.task, block[0].local.model
        if asked := BEFORE.requests(terms.measure):
            if first is not None and takes_all(block) and [*asked] == [wire.LOSS_BEFORE]:
                self._note(scores, block, BEFORE, [{wire.LOSS: loss} for loss in first.tolist()])
            else:
                model.load_state_dict(self._received)
                self._note(scores, block, BEFORE, measure_clients(model, task, parts))
        if set(OF_HITS).intersection(terms.measure):
            model.load_state_dict(self._received)
            for noted, member in zip(scores, block, strict=True):
                noted.update(member.local.count_hits(terms))

    def _store_replies(
        self,
        block: Sequence[Member],
        scores: Sequence[Metrics],
        rows: Rows,
        work: LocalWork,
        rules: Sequence[StartedRule],
    ) -> None:
        """Store what each client replies beside its model."""
        terms = self._terms
        others = {name: self._layout.arrays[name] for name in (*self._layout.buffers, *self._layout.integers)}
        keeps_states = bool(terms.state_rounds) or terms.state_round is not None
        for row, member in enumerate(block):
            metrics: Metrics = {wire.NUM_EXAMPLES: member.size}
            if terms.measure:
                done = rows.work_done(row, work, 0 if terms.local_only else member.steps)
                metrics |= requested_metrics(terms.measure, scores[row], done)
            if keeps_states and terms.of_client(member.local.name).state_round is not None:
                metrics[wire.STATE_ROUND] = rules[row].origin if rules else 0
            self.replies[member.local.name] = Reply(member.place, metrics, others, others)

    def _start_rules(self, block: Sequence[Member], work: LocalWork) -> list[StartedRule]:
        """Return the rule of each client in this round; none where the work has no rule."""
        if work.rule is None:
            return []
        found = [
            each.local.start_rule(work, self._received, self._terms.of_client(each.local.name), self._sent)
            for each in block
        ]
        return [rule for rule in found if rule is not None]

    def _shift(self, rules: Sequence[StartedRule]) -> list[Tensor]:
        """Return what rules add to the gradients of each trainable array, shape (k, *shape); nothing without rules."""
        shifts = [started.rule.shift for started in rules]
        return [torch.stack([shift[name] for shift in shifts]) for name in self._layout.trainable] if shifts else []

    def _finish_rules(self, block: Sequence[Member], rules: Sequence[StartedRule], rows: Rows, work: LocalWork) -> None:
        """Keep what the rules have each client keep."""
        for row, (member, rule) in enumerate(zip(block, rules, strict=False)):
            count = 0 if self._terms.local_only else member.steps
            trained = {name: array[row] for name, array in zip(self._layout.trainable, rows.arrays, strict=True)}
            member.local.finish_rule(rule, trained, StepsTaken(work.rates(count)), self._terms)

    def _note(
        self, scores: Sequence[Metrics], block: Sequence[Member], which: Measurement, found: Sequence[Measures]
    ) -> None:
        """Add what was measured on the training examples to the scores of the clients, as these report it."""
        clients = [member.local for member in block]
        for noted, reported in zip(scores, report_all(clients, which, found, self._terms), strict=True):
            noted |= reported

    def alone(self, member: Member) -> None:
        """Train the global model on one client, as it would by itself."""
        terms = replace(self._terms, personal_lambda=None).of_client(member.local.name)
        update = member.local.train(self._received, terms, self._sent)
        trained = self._trained
        self.replies[member.local.name] = store_reply(trained.updates, trained.second, member.place, update)

    def personal_block(self, block: Sequence[Member]) -> None:
        """Train the personal models of a block of clients, pulled to the received model."""
        terms, task, model = self._terms, block[0].local.task, block[0].local.model
        parts = examples_of(block)
        program = self._engine.program(task, model, parts[0])
        rows, work = Rows(self._layout, self._received, len(block)), personal_work(self._engine.settings, terms)
        for row, member in enumerate(block):
            if (last := member.local.personal.before(terms.server_round)) is not None:
                rows.load(row, last)
        steps, counts = self._engine.steps(block, work, terms, personal=True), [member.steps for member in block]
        train_together(program, task, rows, steps, work, parts, counts)
        for row, member in enumerate(block):
            member.local.keep_personal(terms.server_round, rows.model(row))

    def personal_alone(self, member: Member) -> None:
        """Train the personal model of one client, as it would by itself."""
        member.local.train_personal(self._received, self._terms)


def train_together(
    program: Program,
    task: Task,
    rows: Rows,
    steps: Iterable[Step],
    work: LocalWork,
    parts: Sequence[Examples],
    counts: Sequence[int],
    shift: Sequence[Tensor] = (),
) -> tuple[Rows, Tensor | None]:
    """Take the local steps of many clients in place, as `fairbloom.client.training.train` does for one.

    `parts` are the training examples of each, `counts` how many steps each takes, and `shift` is what a rule adds to
    their gradients, shape (k, *shape).

    Returns
    -------
    The models after `snapshot_step`, or at the end; and the mean loss of each client's first batch.
    """
    anchor = rows.anchor if work.pull > 0.0 else []
    optimizer = None if work.optimizer.is_plain_sgd else RowOptimizer(rows.arrays, work)
    has_velocity = optimizer is None and work.momentum > 0.0
    velocity = [torch.zeros_like(array) for array in rows.arrays] if has_velocity else []
    tables = stack_tables(work, task, parts)
    halfway, first = rows, None
    take = program.step_of(work)
    for number, step in enumerate(steps, start=1):
        weights, moving, added = (
            [array[: step.shape[0]] for array in arrays] for arrays in (rows.arrays, velocity, shift)
        )
        factors = None
        if work.schedule != UNCHANGED:
            taking = counts[: step.shape[0]]
            shares = [work.schedule.factor(number - 1, count) for count in taking]
            factors = torch.tensor(shares, dtype=torch.float64, device=weights[0].device)
        arrays = StepArrays(weights, moving, anchor, optimizer, added, factors)
        losses = take(arrays, step.inputs, partial(minimised_loss, task, step, work, tables))
        if first is None:
            first = step.means(losses.double())
        if number == work.snapshot_step:
            halfway = rows.copy()
    return halfway, first


def stack_tables(work: LocalWork, task: Task, parts: Sequence[Examples]) -> Tensor | None:
    """Return the weights of the classes at each client, shape (k, classes); None where no weights are wanted."""
    if not work.class_weights:
        return None
    tables = [class_table(work.class_weights, task, part) for part in parts]
    return pad_sequence([table for table in tables if table is not None], batch_first=True)


def minimised_loss(
    task: Task, step: Step, work: LocalWork, tables: Tensor | None, outputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of each example of a step, shape (k, b), and the sum of what its clients minimise."""
    losses = losses_of(task, outputs.flatten(0, 1), step.targets.flatten(0, 1)).view(step.shape)
    weights = None if tables is None else tables[: step.shape[0]].gather(1, step.targets).to(losses.dtype)
    return losses, work.transform(step.means(losses, weights)).sum()


@torch.no_grad()
def measure_trained(program: Program, task: Task, rows: Rows, parts: Sequence[Examples]) -> list[Measures]:
    """Return what is measured of each client's own model on its examples."""
    found: list[Measures] = []
    for some, counts in split_into_passes(parts):
        step = full_batch(some)
        weights = [array[len(found) : len(found) + len(some)] for array in rows.arrays]
        outputs = program(weights, step.inputs)
        real = torch.arange(step.shape[1], device=outputs.device) < torch.tensor(counts, device=outputs.device)[:, None]
        found += score_clients(task, outputs[real], step.targets[real], counts)
    return found
