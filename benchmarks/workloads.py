"""The workloads of the benchmarks: tasks as users write them, on data generated from a seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fairbloom.protocol.settings import Value
from fairbloom.protocol.streams import generator, seed_of
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Setup, Splits, Task
from fairbloom.tasks.models import build
from fairbloom.tasks.models.networks import Shape

Drawn = Callable[[torch.Generator, int], Tensor]
"""Draws the inputs of a number of examples."""

CLASSES = 10
CHARACTERS = 80
TESTED = 5
"""Training examples of a client per test example."""


# Tasks --------------------------------------------------------------------------------------------


def vectors(setup: Setup, *, features: int = 64, examples: int = 64) -> Task:
    """Vectors of normal numbers in ten classes, `examples` training examples per client."""
    return made(
        setup,
        (features,),
        CLASSES,
        examples,
        lambda random, n: torch.randn(n, features, generator=random),
    )


@lru_cache(maxsize=1)  # runs in turn share up to 0.7 GB, which takes seconds to draw
def images(setup: Setup, *, side: int = 28, channels: int = 1, examples: int = 500) -> Task:
    """Images of normal numbers in ten classes, `examples` training examples per client."""
    shape = (channels, side, side)
    return made(
        setup, shape, CLASSES, examples, lambda random, n: torch.randn(n, *shape, generator=random)
    )


def text(setup: Setup, *, length: int = 80, examples: int = 20) -> Task:
    """Lines of characters to predict the next one, `examples` training examples per client."""
    return made(
        setup,
        (length,),
        CHARACTERS,
        examples,
        lambda random, n: torch.randint(CHARACTERS, (n, length), generator=random),
    )


def made(setup: Setup, shape: Shape, classes: int, examples: int, drawn: Drawn) -> Task:
    """Return a task of seeded inputs and labels, all generated here and not within a round."""
    names = tuple(f"client-{number:05d}" for number in range(setup.clients))
    rows = examples + max(1, examples // TESTED)
    random = torch.Generator().manual_seed(seed_of(setup.seed, "benchmark data"))
    inputs = drawn(random, len(names) * rows)
    labels = torch.from_numpy(
        generator(setup.seed, "benchmark labels").integers(classes, size=len(inputs))
    )
    places = {name: number * rows for number, name in enumerate(names)}

    @cache
    def splits(client: str) -> Splits:
        start = places[client]
        train = slice(start, start + examples)
        test = slice(start + examples, start + rows)
        return Splits(Examples(inputs[train], labels[train]), Examples(inputs[test], labels[test]))

    model = partial(build, setup.model or "logistic", shape, classes, setup.seed, inputs.dtype)
    return Task(
        clients=names, model=model, loss=partial(cross_entropy, reduction="none"), splits=splits
    )


# Workloads ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """A task, a model and the local work on it.

    Attributes
    ----------
    task, model
        The values in a run config.
    clients, drawn
        The number of clients, and of the clients of a round.
    batch
        Examples in a step; 0: all examples of a client.
    own
        Further settings, of the task and of local training.
    """

    task: str
    model: str
    clients: int
    drawn: int
    batch: int
    own: Mapping[str, Value] = field(default_factory=dict)

    def config(self, **others: Value) -> dict[str, Value]:
        """Return the run config of FedAvg on this workload, with `others` in addition."""
        return {
            "task": self.task,
            "model": self.model,
            "clients": self.clients,
            "batch-size": self.batch,
            "fraction": self.drawn / self.clients,
            "learning-rate": 0.01,
            **self.own,
            **{name.replace("_", "-"): value for name, value in others.items()},
        }

    def settings(self, **others: Value) -> Settings:
        """Return the run config as settings."""
        return Settings.of(self.config(**others))


VECTORS = f"{__name__}:vectors"
IMAGES = f"{__name__}:images"
TEXT = f"{__name__}:text"
COLOURED = {"images.side": 32, "images.channels": 3}

WORKLOADS = {
    "logistic": Workload(VECTORS, "logistic", 100, 100, 0),
    "logistic-long": Workload(
        VECTORS, "logistic", 2, 2, 10, {"vectors.features": 99, "vectors.examples": 5000}
    ),
    "mlp": Workload(IMAGES, "mlp", 100, 10, 20),
    "mlp-all": Workload(IMAGES, "mlp", 100, 100, 20),
    "mlp-full": Workload(IMAGES, "mlp", 100, 10, 0),
    "mlp-adam": Workload(IMAGES, "mlp", 100, 10, 20, {"optimizer": "adam", "learning-rate": 0.001}),
    "mlp-step": Workload(IMAGES, "mlp", 100, 100, 0, {"images.examples": 64}),
    "cifar": Workload(IMAGES, "cifar-cnn", 10, 10, 10, {**COLOURED, "images.examples": 100}),
    "cifar-100": Workload(IMAGES, "cifar-cnn", 10, 10, 100, {**COLOURED, "images.examples": 200}),
    "resnet": Workload(IMAGES, "resnet18-gn", 4, 4, 10, {**COLOURED, "images.examples": 20}),
    "lstm": Workload(TEXT, "lstm", 10, 10, 10),
}
"""The workloads that engines are compared on, by name."""
