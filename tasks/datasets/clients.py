"""Clients that come with the data, a writer or a speaker each: which examples each has, and which take part."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.streams import generator

from ..partition import Indices
from ..task import Setup


def group_rows(owners: Sequence[str]) -> dict[str, Indices]:
    """Return the examples of each owner, in their order, by the owners' names in ascending order."""
    names, numbers = np.unique(np.asarray(owners, np.str_), return_inverse=True)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return dict(zip(names.tolist(), rows, strict=True))


def draw_clients(
    rows: Mapping[str, Indices], setup: Setup, what: str, enough: Callable[[int], bool]
) -> dict[str, Indices]:
    """Return the clients' examples by name, sorted; those with fewer than `enough` are left out and logged."""
    usable = {name: examples for name, examples in sorted(rows.items()) if enough(len(examples))}
    if len(usable) < len(rows):
        log.info("%d of %d %s have too few examples and are left out", len(rows) - len(usable), len(rows), what)
    if not usable or setup.clients > len(usable):
        raise FairbloomError(
            f"clients = {setup.clients}: of {len(rows)} {what} {len(usable)} have enough examples: ask for fewer "
            "clients, or leave clients out"
        )
    if not setup.clients:
        return usable
    names = sorted(generator(setup.seed, what).permutation(list(usable))[: setup.clients].tolist())
    return {name: usable[name] for name in names}
