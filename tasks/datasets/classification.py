"""What all known data sets are as tasks: examples of classes, a model by its name, and the cross-entropy."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from ..models import build
from ..models.networks import Shape
from ..partition import Indices, Labels
from ..preprocessing import ARRAYS, Preprocessing
from ..task import Setup, Splits, Task


def classify(
    setup: Setup,
    clients: tuple[str, ...],
    shape: Shape,
    classes: int,
    splits: Callable[[str], Splits],
    dealt: Callable[[str], Sequence[tuple[Indices, Labels]]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Task:
    """Return the task of these clients; see `Task` for `splits` and `dealt`."""
    model = partial(build, setup.model, shape, classes, setup.seed, dtype)
    taken = Preprocessing(form=ARRAYS, shape=shape, target="class", classes=tuple(map(str, range(classes))))
    return Task(
        clients,
        model,
        partial(cross_entropy, reduction="none"),
        splits,
        dealt=dealt,
        classes=classes,
        preprocessing=(lambda client: taken) if dtype == torch.float32 else None,
    )
