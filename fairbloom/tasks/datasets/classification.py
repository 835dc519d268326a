"""The common parts of known data sets: classes, the cross-entropy, clients that come with them."""

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.streams import generator
from fairbloom.tables.preprocessing import ARRAYS, Preprocessing

from ..models.networks import Shape
from ..models.registry import build
from ..partition import Indices, Labels
from ..task import Setup, Splits, Task

Rows = TypeVar("Rows", bound=Sized)


def classify(
    setup: Setup,
    clients: tuple[str, ...],
    shape: Shape,
    classes: Sequence[str],
    splits: Callable[[str], Splits],
    dealt: Callable[[str], Sequence[tuple[Indices, Labels]]] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    white: float = 0.0,
) -> Task:
    """Return a task of classes; for `splits` and `dealt` see `Task`, for `white` Preprocessing."""
    common = Preprocessing(
        form=ARRAYS, shape=shape, target="class", classes=tuple(classes), white=white
    )
    return Task(
        clients,
        partial(build, setup.model, shape, len(classes), setup.seed, dtype, setup.norm),
        partial(cross_entropy, reduction="none"),
        splits,
        dealt=dealt,
        classes=len(classes),
        preprocessing=(lambda client: common) if dtype == torch.float32 else None,
    )


def numbered(classes: int) -> tuple[str, ...]:
    """Return numbers as the names of classes."""
    return tuple(map(str, range(classes)))


def group_rows(owners: Sequence[str]) -> dict[str, Indices]:
    """Return the rows of each owner in ascending order; owners are sorted by name."""
    names, numbers = np.unique(np.asarray(owners, np.str_), return_inverse=True)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return dict(zip(names.tolist(), rows, strict=True))


def draw_clients(
    rows: Mapping[str, Rows], setup: Setup, what: str, enough: Callable[[int], bool]
) -> dict[str, Rows]:
    """Return the rows of the run's clients by name, sorted; draw them if there are more.

    Clients for which `enough` of their number of examples is false are left out, and logged.
    """
    usable = {name: examples for name, examples in sorted(rows.items()) if enough(len(examples))}
    if len(usable) < len(rows):
        log.info(
            "%d of %d %s have too few examples and are left out",
            len(rows) - len(usable),
            len(rows),
            what,
        )
    if not usable or setup.clients > len(usable):
        raise FairbloomError(
            f"clients = {setup.clients}: of {len(rows)} {what} {len(usable)} have enough examples:"
            " ask for fewer clients, or leave clients out"
        )
    if not setup.clients:
        return usable
    order = generator(setup.seed, what).permutation(list(usable))
    drawn = sorted(order[: setup.clients].tolist())
    return {name: usable[name] for name in drawn}
