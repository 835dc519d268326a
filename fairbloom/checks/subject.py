"""The method under test, called with made-up cohorts and real rounds; errors are explained."""

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom.client.generators import all_seeded
from fairbloom.client.metrics import OF_TRAINING, WORK_METRICS
from fairbloom.errors import FairbloomError
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import Value
from fairbloom.rounds.aggregation import Weighting, build_cohort, decide, remember
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.cohort import Cohort, Decision
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import TASKS, Examples, Setup, Task
from fairbloom.tasks.datasets.digits import SIDE
from fairbloom.tasks.task import AnyExamples
from fairbloom.text import text_if

from .replies import MadeUpReplies, ordinary_replies
from .report import Failure, NotApplicable, bits

# T, the rounds of the run that a method under test believes to be in.
ROUNDS = 50

# The clients, of six, that take part in rounds that follow each other.
TAKING_PART = ([3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2], [1, 2], [0, 3, 4, 5])

# What Fairbloom's own clients report of their training, of every task of classes, where a method
# asks for it.
MEASURED = (
    *(each.pattern.format(score) for each in OF_TRAINING for score in (wire.LOSS, wire.ACCURACY)),
    *(*WORK_METRICS, *sorted(wire.BETWEEN_GROUPS), wire.NUM_EXAMPLES),
)

# The attributes in which the rounds of a continued run must equal an uninterrupted one's.
SAME_TO_THE_BIT = ("participants", "coefficients", "arrays")

# What the memory of a method may consist of.
STORED = "dicts by str, lists, str, int, float, bool, None and NumPy arrays of numbers"

# A client that the server knows, and that takes part in no made-up round.
ABSENT = "client-absent"

# The arrays of the model in made-up cohorts.
ARRAYS = ("first.weight", "first.bias", "second.weight")


def real_clients(method: Method, **work: Value) -> LocalClients:
    """Return six real clients, which learn digits in this process.

    For a method that compares groups they have two.
    """
    small: dict[str, Value] = {
        "task": f"{__name__}:even_digits" if method.compares_groups else "digits",
        "clients": 6,
        "device": "cpu",
        "batch-size": 0,
        "learning-rate": 0.5,
    }
    return LocalClients(
        method, Settings.of(small | {name.replace("_", "-"): value for name, value in work.items()})
    )


def even_digits(setup: Setup) -> Task:
    """Return the task of even and odd digits, grouped by the image half with more ink."""
    digits = TASKS["digits"].load(setup.model_copy(update={"model": "logistic"}), {})

    def model() -> nn.Module:
        torch.manual_seed(setup.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))

    def group(part: AnyExamples) -> Examples:
        inputs, targets = part[slice(None)]
        if not isinstance(inputs, Tensor):
            raise TypeError(f"digits are one tensor, got {type(inputs).__name__}")
        columns = inputs.reshape(-1, SIDE, SIDE).sum(dim=1)
        sides = (columns[:, SIDE // 2 :].sum(dim=1) > columns[:, : SIDE // 2].sum(dim=1)).long()
        return Examples(inputs, 1 - targets % 2, groups=sides[:, None])

    return replace(
        digits,
        model=model,
        splits=lambda client: digits.splits(client).map(group),
        classes=2,
        class_names=("odd", "even"),
        groupings={"side": ("left", "right")},
    )


def initial_model(clients: LocalClients) -> Model:
    """Return the model that clients begin with."""
    task, _ = clients.task_and_model()
    return {
        name: tensor.detach().numpy().copy() for name, tensor in task.model().state_dict().items()
    }


class Seen(NamedTuple):
    """What a method sees of replies, and the rows that its coefficients combine."""

    cohort: Cohort
    vectors: Vectors
    updates: Updates

    def step(self, coefficients: FloatArray) -> FloatArray:
        """Return the step of these coefficients, shape (d,), by the code of a run.

        Infinite where a run takes none.
        """
        try:
            after = self.updates.model_after(
                coefficients, self.vectors, self.cohort.prior, self.cohort.counts
            )
        except ValueError:
            return np.full(self.vectors.size, np.inf)
        # the model before it is zero
        return -np.concatenate([after[name] for name in self.updates.layout.trainable])


@dataclass(frozen=True)
class MethodUnderTest:
    """A method's class, or another function that makes it, with the values of its parameters."""

    factory: Callable[..., FairStrategy]
    arguments: Mapping[str, Value]

    @property
    def source(self) -> Callable[..., Any]:
        """The method's class or function."""
        return self.factory.func if isinstance(self.factory, partial) else self.factory

    @contextmanager
    def explain_errors(self, given: str) -> Iterator[None]:
        """Turn exceptions into Failure, which names a line of the code under test.

        `given` begins it.
        """
        try:
            yield
        except Failure:
            raise
        except Exception as error:  # whatever code of the user's raises
            said = str(error).removesuffix(".")
            if not isinstance(error, FairbloomError):  # which says itself where it comes from
                file = inspect.getsourcefile(self.source)
                frames = [
                    frame
                    for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename == file
                ]
                said = f"{frames[0].name if frames else 'it'} raised {type(error).__name__}: {said}"
                said += "".join(
                    f" ({Path(at.filename).name}, line {at.lineno}: `{at.line}`)"
                    for at in frames[-1:]
                )
            raise Failure(f"{given}{said}. A run would end there.") from error

    def run_rounds(
        self, method: FairStrategy, rounds: int, model: Model | None = None, **work: Value
    ) -> list[Round]:
        """Return the next rounds of a method with six real clients that learn digits.

        They take one step in a round unless `work`, settings by their names in Python, says
        something else. Their states between rounds are stored in `state_dir`, if it is given.
        Every step is taken, so that it shows where one is too long.
        """
        if unknown := unknown_metrics(method):
            raise NotApplicable(
                f"Fairbloom's clients do not report {', '.join(unknown)}, so no round can be run"
                " with them."
            )
        method.adapt(update_limit=math.inf)
        with self.explain_errors("In rounds with real clients, "):
            clients = real_clients(method, **work)
            loop = Rounds(method, clients, ROUNDS).run(
                model or initial_model(clients),
                measure=lambda number: (),
                measure_after=(),
            )
            finished = list(islice(loop, rounds))
            clients.keep(since=method.run_state.finished_rounds)
        for name, reason in (refusal for each in finished for refusal in each.refused.items()):
            raise Failure(
                f"In rounds with real clients, the reply of {name} was refused: {reason}."
            )
        return finished

    def check_resumed(self, create: Callable[[], FairStrategy], remedy: str) -> str:
        """Raise Failure with a remedy if a run stopped after two of four rounds ends otherwise."""
        rounds = self.run_rounds(create(), 4)
        with (
            TemporaryDirectory() as folder,
            all_seeded(1),
            self.explain_errors("Stopped after round 2 and continued, "),
        ):
            stopped = create()
            continued = create()
            file = Path(folder, "checkpoint.safetensors")
            again = self.run_rounds(stopped, 2, state_dir=folder)
            with self.explain_errors(f"Saved in a checkpoint, which keeps {STORED}, "):
                save_checkpoint(file, again[-1].arrays, stopped.state_dict())
            model, state = load_checkpoint(file)
            continued.load_state_dict(state)
            memory = stopped.run_state.memory
            if bits(continued.run_state.memory) != bits(memory):
                raise Failure(
                    f"The memory {memory!r} comes back from a checkpoint as something else: it"
                    f" keeps {STORED}."
                )
            again += self.run_rounds(continued, 2, model, state_dir=folder)
        for one, other in zip(rounds, again, strict=True):
            if any(
                bits(getattr(one, part)) != bits(getattr(other, part)) for part in SAME_TO_THE_BIT
            ):
                raise Failure(
                    "A run was stopped after round 2 and continued from its checkpoint and its"
                    f" clients' files; in round {one.number} it differs from one that was not"
                    f" stopped. {remedy}"
                )
        return (
            "Continued after round 2 from what was stored, rounds 3 and 4 are the same to the bit."
        )

    def create(self, **options: Any) -> FairStrategy:
        """Return a new instance of the method, with its arguments and these common options."""
        with self.explain_errors("When it was made, "):
            return self.factory(**self.arguments, **options)

    def show(self, method: FairStrategy, replies: MadeUpReplies, number: int = 1) -> Seen:
        """Return what the method sees of replies, made by the code that makes it in a run."""
        names = replies.names
        counts = replies.column(wire.NUM_EXAMPLES)
        trained = TrainReplies.empty(
            method.layout_of(as_arrays(np.zeros(replies.updates.shape[1]))),
            refused=Refusals(number),
            second=method.second,
        )
        columns = {metric: replies.column(metric) for metric in method.needs}
        columns |= {wire.NUM_EXAMPLES: counts, method.weighted_by_key: counts}
        for k, name in enumerate(names):
            trained.add(
                name,
                {metric: column[k] for metric, column in columns.items()},
                as_arrays(-replies.updates[k]),
                as_arrays(-replies.seconds[k]),
            )
        trained.screen()
        if "roster" in method.requires:
            known = {ABSENT: 20.0, **dict(zip(names, counts.tolist(), strict=True))}
            method.enter(method.run_state.drawn(known))
        with self.explain_errors(f"Given {replies.description}, "):
            sends = method.sends()
            if unknown := [row for row, _ in sends.values() if row not in method.past.kept]:
                raise Failure(
                    f"sends returned {sends!r}, and no row is kept as {unknown[0]}: it must return"
                    " {record: (row of self.past.kept, factor)}."
                )
            cohort, vectors = build_cohort(
                method,
                trained,
                server_round=number,
                num_rounds=ROUNDS,
                online=names,
                draws=dict(zip(names, map(int, replies.draws), strict=True)),
                sent={record: float(factor) for record, (_, factor) in sends.items()},
            )
        for array in (cohort.counts, cohort.prior, cohort.draws, *cohort.metrics.values()):
            array.flags.writeable = False  # the step and the records read them after weigh
        return Seen(cohort, vectors, trained.updates)

    def decide(self, method: FairStrategy, cohort: Cohort, description: str) -> Decision:
        """Return the decision on a cohort, by the code that asks for it in a run."""
        with self.explain_errors(f"Given {description}, "):
            return decide(method, cohort)

    def weigh(self, method: FairStrategy, cohort: Cohort, description: str) -> FloatArray:
        """Return the coefficients of a cohort."""
        return self.decide(method, cohort, description).coefficients.copy()

    def weigh_fresh(self, replies: MadeUpReplies, **options: Any) -> tuple[FloatArray, FloatArray]:
        """Return the coefficients that a new instance gives to replies, and the step.

        The coefficients have shape (k, m): k is 1, the number of arrays, or twice that with second
        updates.
        """
        method = self.create(**options)
        seen = self.show(method, replies)
        c = self.weigh(method, seen.cohort, replies.description)
        m = seen.cohort.size
        by_array = np.atleast_2d(c)
        second = [by_array[:, m : 2 * m]] if method.has_second_rows else []
        return np.vstack([by_array[:, :m], *second]), seen.step(c)

    def iterate_rounds(self, method: FairStrategy, rounds: int) -> Iterator[Cohort]:
        """Yield the cohorts of rounds with other clients each; the method remembers each round."""
        for number in range(1, rounds + 1):
            seen = self.show(
                method, ordinary_replies(6).select(TAKING_PART[number % len(TAKING_PART)]), number
            )
            cohort = seen.cohort
            kept = text_if(cohort.memory, f" and {len(cohort.memory)} kept rows")
            description = f"{cohort.size} ordinary clients{kept} in round {number}"
            decision = self.decide(method, cohort, description)
            yield cohort
            with self.explain_errors(f"Given {description}, "):
                asked = method.probe(cohort, decision.coefficients) is not None
                losses = np.linspace(0.5, 1.5, cohort.size).tolist() if asked else ()
                probed = dict(zip(cohort.names, losses, strict=False))
                memory, rows = remember(
                    method, Weighting(decision.coefficients, decision, cohort), seen.vectors, probed
                )
            method.enter(
                method.run_state.stepped(number, memory, rows, None, method.run_state.norms)
            )


def as_arrays(flat: FloatArray) -> Model:
    """Return a flat vector as the arrays of a model of two layers, one of which has a bias."""
    return dict(zip(ARRAYS, np.array_split(flat, len(ARRAYS)), strict=True))


def unknown_metrics(method: FairStrategy) -> list[str]:
    """Return the metrics that a method needs and Fairbloom's own clients do not report."""
    return sorted({*method.needs} - {*MEASURED})
