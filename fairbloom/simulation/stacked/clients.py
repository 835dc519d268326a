"""The engine `stacked`: a round's clients trained as one tensor program, a row of a matrix each.

Clients are computed in blocks of similar size. A client takes its examples in the same order as
when it is computed by itself, and ends with the same weights up to rounding.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from fairbloom.client.capture import NO_CAPTURE, Capture
from fairbloom.client.device import read_scalars
from fairbloom.client.local import Metrics, report_all
from fairbloom.client.local_round import ClientRound, load_to_measure, train_client
from fairbloom.client.metrics import (
    ALL_METRICS,
    BEFORE,
    OF_EVALUATION,
    PERSONAL,
    RECEIVED,
    TRAINED,
    Measurement,
    WorkDone,
    requested_metrics,
)
from fairbloom.client.plan import epochs_in_time, global_work, personal_works
from fairbloom.client.rules.base import GradientOffset, Rule, hooks_of
from fairbloom.client.rules.registry import Rules, rules_of
from fairbloom.client.rules.rule_round import finish_rules
from fairbloom.client.states import StateDict
from fairbloom.client.support import Support
from fairbloom.client.training import measure
from fairbloom.client.work import (
    NO_AUGMENTATION,
    Copy,
    Kind,
    LocalWork,
    StepsTaken,
    batch_order,
    draws_seed,
    fields_of,
)
from fairbloom.errors import failure_reason
from fairbloom.imports import is_import_string
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.clients import NOTHING, Replies, TrainReplies
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.vectors import Matrix
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.optimizers import OF_PYTORCH

from ..clients import LocalClients, StoredReply, call_client, refuse_failed, store_reply
from ..memory import write_models
from .arrays import BlockArrays, find_recorded
from .batched_metrics import (
    Measures,
    join,
    losses_of,
    measure_clients,
    score_clients,
    split_into_passes,
)
from .blocks import (
    StackedClient,
    StepBatch,
    Stretch,
    augment_steps,
    divide_into_blocks,
    examples_of,
    full_batch,
    minibatches,
    repeat_step,
    takes_all,
)
from .programs import Program, UnstackableError, in_tensors, make_program

# The rules, work and metrics that stacked clients support. A rule may correct gradients only by
# `shift`, which is added to all clients' gradients at once. Left out are the time budget, which is
# each client's own, and random draws of models other than dropout. `find_unsupported` checks the
# optimizer: a user's own may use a whole array, which here belongs to several clients. A user's own
# augmentation draws from PyTorch's global generators, which belong to one client at a time.
SUPPORTED = Support(
    hooks=hooks_of(
        *(Rule.replace_steps, Rule.pull, Rule.loss, Rule.personal_arrays, Rule.adapt),
        *(Rule.before, Rule.report, Rule.start, GradientOffset.shift, Rule.after_step),
        *(Rule.finish, Rule.second_model, Rule.after),
    ),
    work=fields_of(Kind.CHAIN, Kind.STEP, Kind.PLAN),
    metrics=ALL_METRICS,
)


def find_unsupported(terms: Terms, rules: Rules, *works: LocalWork, by_group: bool = False) -> str:
    """Return the first request that stacked clients do not support, as name = value, or ""."""
    unsupported = SUPPORTED.find_unsupported(terms, rules, *works, by_group=by_group)
    optimizers = (f"optimizer = {w.optimizer}" for w in works if w.optimizer not in OF_PYTORCH)
    own = (f"augment = {w.augment}" for w in works if is_import_string(w.augment))
    return unsupported or next(optimizers, "") or next(own, "")


class StackedModels:
    """The models of k clients, at first all equal to `received`.

    Each array that clients train is one tensor of shape (k, *shape): the layout's arrays, and the
    `own` ones, which clients keep.
    """

    def __init__(
        self, layout: Layout, received: StateDict, count: int, own: Collection[str] = ()
    ) -> None:
        trained = {*layout.trainable, *own}
        self._names = [name for name in received if name in trained]
        self.arrays = [
            received[name].expand(count, *received[name].shape).clone() for name in self._names
        ]
        self._layout = layout
        self._received = received

    @property
    def anchor(self) -> list[Tensor]:
        """What the steps are pulled to: received arrays as one row, own ones as they are now."""
        return [
            self._received[name].unsqueeze(0) if name in self._layout.trainable else array.clone()
            for name, array in zip(self._names, self.arrays, strict=True)
        ]

    def load(self, row: int, model: StateDict) -> None:
        """Set a row to a model, or to some of its arrays."""
        for name, array in zip(self._names, self.arrays, strict=True):
            if name in model:
                array[row] = model[name]

    def trained(self, row: int) -> StateDict:
        """Return the trained arrays of a row."""
        return {name: array[row] for name, array in zip(self._names, self.arrays, strict=True)}

    def model(self, row: int) -> StateDict:
        """Return the model of a row; arrays that are not trained stay as received."""
        return self._received | self.trained(row)

    def work_done(self, row: int, work: LocalWork, steps: int) -> WorkDone:
        """Return the finished work behind the model of a row."""
        trained = self.trained(row)
        changes = [(self._received[name], trained[name]) for name in self._layout.trainable]
        return WorkDone(
            lambda: work.learning_rate,
            lambda: changes,
            lambda: StepsTaken((work.learning_rate,) * steps).rate_sum,
        )

    def write(self, matrix: Matrix, places: Sequence[int]) -> None:
        """Write the models into rows of a matrix, their arrays one after the other."""
        write_models(
            matrix, places, self._layout.slices, dict(zip(self._names, self.arrays, strict=True))
        )

    def copy(self) -> "StackedModels":
        """Return the models as they are now."""
        copied = copy.copy(self)
        copied.arrays = [array.clone() for array in self.arrays]
        return copied


class StackedClients(LocalClients):
    """All clients of a run, a block of them at once."""

    def __init__(self, method: Method, settings: RunSettings, block: int) -> None:
        super().__init__(method, settings)
        self.block = block
        self._known: tuple[nn.Module, Program] | None = None
        self._full: dict[tuple[str, ...], StepBatch] = {}
        self._cached_blocks: tuple[object, list[list[StackedClient]]] = (None, [])
        self._reasons: set[str] = set()

    def close(self) -> None:
        """Free the engine's graphs, and the clients' joined examples."""
        super().close()
        join.cache_clear()

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Train the model at these clients on the terms, each on its own data."""
        work = self._plan(terms)
        if work is None:
            return super().train(names, model, terms, sent)
        self.evict_idle(names)
        trained = self.empty_replies(names, model, terms, sent)
        received = self.on_device(self.received(model, terms))
        if self.method.frozen:  # programs take frozen arrays from the model
            self.task_and_model()[1].load_state_dict(received)
        training = _RoundTraining(
            self,
            received,
            terms,
            work,
            trained,
            {record: self.on_device(arrays) for record, arrays in sent.items()},
        )
        try:
            for block in self._blocks(names, terms, work, trained.refused):
                self._train_block(training, block)
        except UnstackableError as reason:
            self._falls_back(f"the model cannot be stacked: {reason}")
            return super().train(names, model, terms, sent)
        failed = trained.refused.reasons
        self.collect(
            trained, {name: training.replies[name] for name in names if name not in failed}, terms
        )
        return trained

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Evaluate the model at these clients.

        Only `participants` report the metrics in `terms.measure`.
        """
        self.evict_idle(names)
        if self._falls_back(SUPPORTED.find_unsupported(terms, (), by_group=self._by_group)):
            return super().evaluate(names, model, terms, participants)
        try:
            reports = self._measures(
                names, self.on_device(self.received(model, terms)), terms, set(participants)
            )
        except Exception:  # computed one by one, only the failing client is refused
            return super().evaluate(names, model, terms, participants)
        return self.evaluated(reports, Refusals(terms.server_round), names, model, terms)

    def _plan(self, terms: Terms) -> LocalWork | None:
        """Return the work on the global model, None if clients must be computed one by one."""
        try:
            rules = rules_of(self.settings, terms)
            work = global_work(self.settings, terms, rules)
            others = personal_works(self.settings, terms, rules)
        except ValueError as reason:  # unknown terms
            self._falls_back(str(reason))
            return None
        if self._falls_back(find_unsupported(terms, rules, work, *others, by_group=self._by_group)):
            return None
        return work

    @property
    def _by_group(self) -> bool:
        return bool(self.task_and_model()[0].reported_groupings)

    def _falls_back(self, why: str) -> bool:
        """Return whether there is a reason to compute clients one by one; log each reason once."""
        if why and why not in self._reasons:
            self._reasons.add(why)
            log.warning("computing clients one by one: stacking does not support %s", why)
        return bool(why)

    # Parts ----------------------------------------------------------------------------------------

    def program(self, task: Task, model: nn.Module, examples: Examples) -> Program:
        """Return how the model is computed for many clients."""
        if self._known is None or self._known[0] is not model:
            self._known = model, make_program(model, task, examples)
        return self._known[1]

    def steps(
        self, block: Sequence[StackedClient], work: LocalWork, terms: Terms, training: str
    ) -> Iterable[Stretch]:
        """Return the steps of a block."""
        if takes_all(block):
            steps = repeat_step(self._full_batch(block), block)
        else:
            steps = minibatches(
                block,
                lambda m: batch_order(m.local.order, terms.server_round, m.local.key, training),
            )
        if work.augment == NO_AUGMENTATION:
            return steps
        return augment_steps(steps, work.augment, self.seeds(block, terms, training))

    def seeds(self, block: Sequence[StackedClient], terms: Terms, training: str) -> list[int]:
        """Return the seed of each client's dropout and augmentation."""
        return [
            draws_seed(member.local.order, terms.server_round, member.local.key, training)
            for member in block
        ]

    def _full_batch(self, block: Sequence[StackedClient]) -> StepBatch:
        """Return the step that takes all examples; small ones are cached for the next rounds."""
        names = tuple([member.local.name for member in block])
        if names not in self._full:
            if sum(array.nbytes for array in self._full.values()) > 2**26:  # bytes
                self._full.clear()
            self._full[names] = full_batch(examples_of(block))
        return self._full[names]

    def _blocks(
        self, names: Sequence[str], terms: Terms, work: LocalWork, refused: Refusals
    ) -> list[list[StackedClient]]:
        """Return the clients that can train in blocks, the same for the same names and work.

        Clients that cannot train are refused.
        """
        about = (tuple(names), work.batch_size, work.epochs, work.steps, work.idle, self.block)
        if self._cached_blocks[0] == about:
            return self._cached_blocks[1]

        def member(place: int, name: str) -> StackedClient:
            epochs = (
                work.epochs
                if work.in_full
                else epochs_in_time(self.settings, terms.server_round, name)
            )
            return StackedClient.of(self.local(name), place, work, epochs)

        answers = {name: call_client(member, place, name) for place, name in enumerate(names)}
        members = list(refuse_failed(answers, refused).values())
        blocks = [*divide_into_blocks(members, self.block)]
        if len(members) == len(names) and not self.settings.stragglers:
            self._cached_blocks = (about, blocks)
        return blocks

    def _train_block(self, training: "_RoundTraining", block: Sequence[StackedClient]) -> None:
        """Train a block of clients: in halves if memory is too small, one by one if one fails."""
        try:
            _BlockRound(training, block).run()
        except UnstackableError:
            raise
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) and len(block) > 1:
                self.block = len(block) // 2
                log.warning(
                    "%d clients at once need more memory than is free: now %d are stacked",
                    len(block),
                    self.block,
                )
                self.capture.release()
                torch.cuda.empty_cache()
                for half in divide_into_blocks(block, self.block):
                    self._train_block(training, half)
                return
            answers = {
                member.local.name: call_client(training.train_alone, member) for member in block
            }
            # If each client succeeds by itself, stacking was the reason for the failure.
            if len(refuse_failed(answers, training.trained.refused)) == len(block):
                log.warning(
                    "%d clients were computed one by one, because together they failed: %s",
                    len(block),
                    failure_reason(error),
                )

    def _measures(
        self, names: Sequence[str], received: StateDict, terms: Terms, participants: Collection[str]
    ) -> dict[str, Metrics]:
        clients = [self.local(name) for name in names]
        task, model = self.task_and_model()
        asked = [client for client in clients if client.name in participants]
        reports = {client.name: client.describe_tests() for client in clients}
        for measurement in OF_EVALUATION:
            if not measurement.is_asked(terms):
                continue
            # A client without such examples only answers a measurement that was requested.
            measuring = asked
            if not measurement.requested:
                measuring = [each for each in clients if measurement.of(each.splits)]
            if not measuring:
                continue
            parts = [measurement.of(each.splits) for each in measuring]
            smallest_group = self.settings.smallest_group * measurement.by_group
            if measurement.model_of(terms) != RECEIVED:
                measured = []
                for each, part in zip(measuring, parts, strict=True):
                    model.load_state_dict(received)
                    reports[each.name] |= load_to_measure(each, measurement.model_of(terms), terms)
                    measured.append(measure(model, task, part, smallest_group))
            else:
                model.load_state_dict(received)
                measured = measure_clients(model, task, in_tensors(parts), smallest_group)
            for each, report in zip(
                measuring, report_all(measuring, measurement, measured, terms), strict=True
            ):
                reports[each.name] |= report
        return {client.name: reports[client.name] for client in clients}


@dataclass(frozen=True)
class _RoundTraining:
    """One round's training; the models are written into the rows of the matrices of `trained`."""

    engine: StackedClients
    received: StateDict
    terms: Terms
    work: LocalWork
    trained: TrainReplies
    sent: Mapping[str, StateDict]
    replies: dict[str, StoredReply] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.trained.updates.layout

    def train_alone(self, member: StackedClient) -> None:
        """Train one client by itself."""
        name = member.local.name
        update = train_client(member.local, self.received, self.terms.of_client(name), self.sent)
        self.replies[name] = store_reply(
            self.trained.updates, self.trained.second, member.place, update
        )


class _BlockRound(ClientRound):
    """The round of a block of clients."""

    def __init__(self, training: _RoundTraining, block: Sequence[StackedClient]) -> None:
        clients = [member.local for member in block]
        super().__init__(clients, training.received, training.terms, training.sent)
        trainable = {name for name, _ in clients[0].trainable()}
        self._own = tuple(name for name in self._own if name in trainable)
        self._training = training
        self._block = block
        self._work = training.work
        self._task = clients[0].task
        self._parts = examples_of(block)
        self._loss_before_in_first_step = False

    def before(self) -> None:
        super().before()
        self._program = self._training.engine.program(self._task, self._model, self._parts[0])
        training = self._training
        self._rows = StackedModels(training.layout, training.received, len(self._block), self._own)
        if self._own:
            for row, member in enumerate(self._block):
                self._rows.load(
                    row, member.local.personal(self._terms.server_round, self._own).state
                )

    def measure(self, measurement: Measurement) -> None:
        requested = measurement.requests(self._terms.measure)
        if not requested:
            return
        if measurement.model == TRAINED or self._own:
            measured = measure_trained(self._program, self._task, self._rows, self._parts)
        elif self._is_first_loss_before() and [*requested] == [wire.LOSS_BEFORE]:
            self._loss_before_in_first_step = True  # it is the mean loss of the first batch
            return
        else:
            self._model.load_state_dict(self._training.received)
            measured = measure_clients(self._model, self._task, self._parts)
        self._add_scores(measurement, measured)

    def _is_first_loss_before(self) -> bool:
        """Return whether the first step computes the mean loss of each client's examples."""
        work = self._work
        exact = work.augment == NO_AUGMENTATION and not (work.bfloat16 or self._program.drops)
        return exact and not work.idle and takes_all(self._block)

    def take_steps(self) -> None:
        if self._work.idle:
            return
        shift: list[Tensor] = []
        if self._started:
            for name in self._training.layout.trainable:
                shift.append(torch.stack([started.shift[name] for started in self._started]))
        last = max(member.steps for member in self._block)

        def after_step(step: int, copy: Copy) -> None:
            self._after_step(step, copy, step == last)

        first_losses = self._train(
            self._rows,
            self._block,
            self._work,
            shift=shift,
            watch=after_step if self._watching else None,
        )
        if self._loss_before_in_first_step and first_losses is not None:
            self._add_scores(BEFORE, [{wire.LOSS: loss} for loss in first_losses.tolist()])

    def finish(self) -> None:
        rate = self._work.learning_rate
        training = [
            (member.local, started, self._rows.trained(row), StepsTaken((rate,) * member.steps))
            for row, (member, started) in enumerate(zip(self._block, self._started, strict=False))
        ]
        finish_rules(training, self._terms)

    def reply(self) -> None:
        training = self._training
        terms = self._terms
        places = [member.place for member in self._block]
        self._rows.write(training.trained.updates.matrix, places)
        if training.trained.second is not None:
            for rule in self._rules:
                if rule.replies:
                    (rule.second_model() or self._rows).write(
                        training.trained.second.matrix, places
                    )
        layout = training.layout
        others = {name: layout.arrays[name] for name in (*layout.buffers, *layout.integers)}
        done = [
            partial(self._rows.work_done, row, self._work, member.steps)
            for row, member in enumerate(self._block)
        ]
        if wire.UPDATE_NORM in terms.measure:
            for scores, norm in zip(
                self._scores, read_scalars([each().norm_on_device() for each in done]), strict=True
            ):
                scores[wire.UPDATE_NORM] = norm
        # Not by `_metrics`: five calls for each client cost a round of 100 a third of its time.
        each_its_own = bool(terms.measures or terms.state_rounds)
        for row, member in enumerate(self._block):
            metrics: Metrics = {wire.NUM_EXAMPLES: member.size}
            own = terms.of_client(member.local.name) if each_its_own else terms
            if own.measure:
                metrics |= requested_metrics(own.measure, self._scores[row], done[row])
            if own.state_round is not None:
                metrics[wire.STATE_ROUND] = self._origin(row)
            if self._own:
                member.local.keep_personal(terms.server_round, self._rows.trained(row), self._own)
            training.replies[member.local.name] = StoredReply(member.place, metrics, others, others)

    def after(self) -> None:
        training = self._training
        terms = self._terms
        for work in personal_works(training.engine.settings, terms, self._rules):
            members = [
                StackedClient.of(each.local, each.place, work, work.epochs) for each in self._block
            ]
            for block in divide_into_blocks(members, len(members)):
                rows = StackedModels(training.layout, training.received, len(block))
                for row, member in enumerate(block):
                    last = member.local.personal(before=terms.server_round).state
                    if last:
                        rows.load(row, last)
                self._train(rows, block, work, PERSONAL)
                for row, member in enumerate(block):
                    member.local.keep_personal(terms.server_round, rows.model(row))

    def _train(
        self,
        rows: StackedModels,
        block: Sequence[StackedClient],
        work: LocalWork,
        training: str = "",
        *,
        shift: Sequence[Tensor] = (),
        watch: Callable[[int, Copy], None] | None = None,
    ) -> Tensor | None:
        """Train the models of a block, as `train_together` does."""
        engine = self._training.engine
        return train_together(
            self._program,
            self._task,
            rows,
            engine.steps(block, work, self._terms, training),
            work,
            shift=shift,
            after_step=watch,
            seeds=engine.seeds(block, self._terms, training) if self._program.drops else (),
            capture=engine.capture,
            most=max(engine.block, len(block)),  # memory may have got too small for further ones
        )

    def _add_scores(self, measurement: Measurement, measured: Sequence[Measures]) -> None:
        """Add the training metrics that clients report to their scores."""
        for scores, report in zip(
            self._scores, report_all(self._clients, measurement, measured, self._terms), strict=True
        ):
            scores |= report


def train_together(
    program: Program,
    task: Task,
    rows: StackedModels,
    stretches: Iterable[Stretch],
    work: LocalWork,
    shift: Sequence[Tensor] = (),
    after_step: Callable[[int, Copy], None] | None = None,
    seeds: Sequence[int] = (),
    capture: Capture = NO_CAPTURE,
    most: int = 0,
) -> Tensor | None:
    """Take the local steps of many clients in place, as `train` does for one.

    Each client's dropout draws by its seed.

    Return the mean loss of each client's first batch, shape (k,), or None without steps. A rule
    adds `shift` to the gradients, arrays of shape (k, *shape). After each step, `after_step` is
    called with its number and a function that copies the models. `capture` records the steps of
    blocks of up to `most` clients.
    """
    anchor = rows.anchor if work.pull > 0.0 else []
    take_step = program.make_step(work, shifted=bool(shift))
    recorded = find_recorded(capture, most, program, work, rows.arrays, anchor, shift)
    arrays = recorded or BlockArrays(program, work, rows.arrays, anchor, shift)
    if recorded is not None:
        rows.arrays = recorded.begin(rows.arrays, anchor, shift, work.learning_rate)
    if seeds:
        arrays.draws.begin(seeds)
    if after_step is not None:
        stretches = chain.from_iterable(each.singles() for each in stretches)
    elif recorded is not None:
        stretches = chain.from_iterable(map(recorded.divide, stretches))

    def take(stretch: Stretch, tensors: Sequence[Tensor] = ()) -> Tensor:
        """Take the steps of a stretch; return the mean loss of each client's first batch."""
        means = list[Tensor]()
        for step in stretch.steps(tensors):
            of_step = arrays.of_first(step.sizes)  # the first clients still train
            loss = partial(minimised_loss, task, step, work)
            losses = take_step(of_step, step.inputs, loss)
            if not means:
                means.append(step.means(losses.double()))
        return means[0]

    first_losses = None
    for number, stretch in enumerate(stretches, start=1):
        if recorded is None:
            losses = take(stretch)
        else:
            losses = capture.take(
                recorded, stretch.key, stretch.tensors(), partial(take, stretch), stretch.times
            )
        if first_losses is None:
            first_losses = losses.clone()  # the next replay overwrites them
        if after_step is not None:
            after_step(number, rows.copy)
    if recorded is not None:  # the next block overwrites them
        rows.arrays = [array.clone() for array in rows.arrays]
    return first_losses


def minimised_loss(
    task: Task, step: StepBatch, work: LocalWork, outputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of each example of a step, shape (k, b), and the summed objective."""
    losses = losses_of(task, outputs.flatten(0, 1), step.targets.flatten(0, 1)).view(step.shape)
    return losses, work.transform(step.means(losses)).sum()


@torch.no_grad()
def measure_trained(
    program: Program, task: Task, rows: StackedModels, parts: Sequence[Examples]
) -> list[Measures]:
    """Return the metrics of each client's own model on its examples."""
    measured: list[Measures] = []
    for some, counts in split_into_passes(parts):
        step = full_batch(some)
        outputs = program(
            [array[len(measured) : len(measured) + len(some)] for array in rows.arrays], step.inputs
        )
        measured += score_clients(task, step.own(outputs), step.own(step.targets), counts)
    return measured
