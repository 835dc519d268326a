"""What a client-side rule must keep to: each property has a function that checks it and says what it found."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from fairbloom.client.rules import Arrays, RuleAtWork, StepsTaken, own_rule
from fairbloom.errors import FairbloomError
from fairbloom.imports import imported
from fairbloom.protocol.settings import Value
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import Model
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy

from .subject import Failure, initial_model, run_config

SHAPES = {"first.weight": (3, 4), "first.bias": (3,), "scale": ()}
"""The trainable parameters of a made-up model."""

LEARNING_RATE = 0.1

ROUNDS_APART = 3
"""Two clients take so many rounds in turn, and then one after the other."""

ROUNDS_KEPT = 20
"""After so many rounds it is seen whether what is kept grows."""


@dataclass(frozen=True)
class Steps:
    """What a client's loss has for a rule in one round.

    Attributes
    ----------
    description
        What it is: "5 ordinary steps".
    count
        K, how many steps there are.
    scale
        How long the gradients are.
    seed
        Decides where they point.
    """

    description: str
    count: int = 5
    scale: float = 1.0
    seed: int = 0

    def draw(self, what: int) -> dict[str, Tensor]:
        """Return arrays of the model's shapes; each `what` gives others."""
        generator = torch.Generator().manual_seed(1_000 * self.seed + what)
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    def gradients(self, step: int) -> dict[str, Tensor]:
        """Return the gradients of a step."""
        return {name: self.scale * array for name, array in self.draw(1 + step).items()}


SITUATIONS = (
    Steps("5 ordinary steps"),
    Steps("a single step", count=1),
    Steps("no step at all, as of a straggler", count=0),
    Steps("gradients that are zero", scale=0.0),
    Steps("gradients around 1e-12", scale=1e-12),
    Steps("gradients around 1e+12", scale=1e12),
)


@dataclass(frozen=True)
class RuleSubject:
    """A rule under test.

    Attributes
    ----------
    name
        Its import string.
    """

    name: str

    def play(self, steps: Steps, kept: Arrays) -> tuple[Arrays, dict[str, Tensor]]:
        """Return what a new instance replies and keeps after one round, by the code of a run."""
        received = steps.draw(0)
        with self.explain_errors(f"Given {steps.description}, "):
            work = RuleAtWork(own_rule(self.name), received, kept, {})
            trained = {name: array.clone() for name, array in received.items()}
            for step in range(1, steps.count + 1):
                corrected = work.correct(list(steps.gradients(step).values()), step)
                for array, gradient in zip(trained.values(), corrected, strict=True):
                    array -= LEARNING_RATE * gradient
            return work.finish(trained, StepsTaken((LEARNING_RATE,) * steps.count))

    def play_rounds(self, rounds: int, client: int) -> Iterator[tuple[Arrays, dict[str, Tensor]]]:
        """Yield what a client replies and keeps in rounds that follow each other."""
        kept: dict[str, Tensor] = {}
        for number in range(rounds):
            replied, kept = self.play(Steps(f"round {number + 1} of a client", seed=10 * client + number + 1), kept)
            yield replied, kept

    def run_rounds(
        self,
        method: FairStrategy,
        rounds: int,
        model: Model | None = None,
        clients: type[LoopClients] = LoopClients,
        **settings: Value,
    ) -> list[Round]:
        """Return the next rounds of a method with real clients that follow the rule and learn digits in this process.

        Parameters
        ----------
        method
            One that has finished as many rounds as its `progress` says.
        rounds
            How many are taken.
        model
            The global model that they begin with; None: the initial one.
        clients
            The engine.
        settings
            What differs from the run config of the clients.
        """
        config = run_config(method, client_rule=self.name, batch_size=20, learning_rate=0.1, **settings)
        engine = clients(method, config)
        first = initial_model(method) if model is None else model
        with self.explain_errors("In rounds with real clients, "):
            loop = Rounds(method, engine, 50).run(first, measure=lambda number: (), measure_after=())
            finished = list(islice(loop, rounds))
        engine.keep(since=method.progress.finished_rounds)
        return finished

    @contextmanager
    def explain_errors(self, given: str) -> Iterator[None]:
        """Turn what is raised inside into Failure; `given` begins the message."""
        try:
            yield
        except Failure:
            raise
        except FairbloomError as error:
            raise Failure(f"{given}{error}. Each client's reply would be refused.") from error
        except Exception as error:
            frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == self._file]
            place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: `{frames[-1].line}`)" if frames else ""
            raised = f"{frames[0].name} raised" if frames else "this came up:"
            raise Failure(
                f"{given}{raised} {type(error).__name__}: {error}{place}. Each client's reply would be refused."
            ) from error

    @property
    def _file(self) -> str:
        """The file in which the rule is written."""
        module = imported("client-rule", self.name).__module__
        return str(getattr(__import__("sys").modules.get(module), "__file__", ""))
