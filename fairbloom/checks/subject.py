"""The method under test, in rounds with real clients; errors are explained."""

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairbloom.client.metrics import OF_TRAINING, WORK_METRICS
from fairbloom.errors import FairbloomError
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import Value
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import TASKS, Examples, Setup, Task
from fairbloom.tasks.datasets.digits import SIDE
from fairbloom.tasks.task import AnyExamples

from .report import Failure, NotApplicable, bits

# T, the rounds of the run that a method under test believes to be in.
ROUNDS = 50

# What Fairbloom's own clients report of their training, of every task of classes, where a method
# asks for it.
MEASURED = (
    *(each.pattern.format(score) for each in OF_TRAINING for score in (wire.LOSS, wire.ACCURACY)),
    *(*WORK_METRICS, *sorted(wire.BETWEEN_GROUPS), wire.NUM_EXAMPLES),
)

# The attributes in which the rounds of a continued run must equal an uninterrupted one's.
SAME_TO_THE_BIT = ("participants", "coefficients", "arrays")


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


@dataclass(frozen=True)
class MethodUnderTest:
    """A method's class, or another function that makes it, with the values of its parameters."""

    factory: Callable[..., FairStrategy]
    arguments: Mapping[str, Value]

    @property
    def source(self) -> Callable[..., Any]:
        """The method's class or function."""
        return self.factory.func if isinstance(self.factory, partial) else self.factory

    @property
    def name(self) -> str:
        """The method's name, with its arguments."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{getattr(self.source, '__name__', self.source)}({given})"

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

    def compare(self, rounds: Sequence[Round], again: Sequence[Round], fault: str) -> None:
        """Raise Failure with a fault if rounds differ in a bit."""
        for one, other in zip(rounds, again, strict=True):
            if any(
                bits(getattr(one, part)) != bits(getattr(other, part)) for part in SAME_TO_THE_BIT
            ):
                raise Failure(f"In round {one.number}: {fault}")

    def create(self, **options: Any) -> FairStrategy:
        """Return a new instance of the method, with its arguments and these common options."""
        with self.explain_errors("When it was made, "):
            return self.factory(**self.arguments, **options)


def unknown_metrics(method: FairStrategy) -> list[str]:
    """Return the metrics that a method needs and Fairbloom's own clients do not report."""
    return sorted({*method.needs} - {*MEASURED})
