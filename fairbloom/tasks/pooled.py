"""Centralised training, as a task: each client trains on all examples, and tests on its own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import ReportableError

from .collated import CollatedExamples, join_collated
from .inputs import combine_inputs, names_of, tensors_of
from .task import AnyExamples, Examples, Splits, Task


@lru_cache(maxsize=4)
def pool(task: Task) -> Task:
    """Return a task in which each client trains on all clients' examples, joined when needed."""

    @cache
    def joined() -> AnyExamples:
        return join([task.splits(client).train for client in task.clients])

    def splits(client: str) -> Splits:
        return replace(task.splits(client), train=joined())

    return replace(task, splits=splits)


def join(parts: Sequence[AnyExamples]) -> AnyExamples:
    """Return the examples of all parts, one after the other, without copying shared tensors."""
    collated = [part for part in parts if isinstance(part, CollatedExamples)]
    tensors = [part for part in parts if isinstance(part, Examples)]
    if collated and tensors:
        raise ReportableError(
            "pooled = true: some clients' examples are tensors, and others' are of a Dataset"
        )
    return join_collated(collated) if collated else join_tensors(tensors)


def join_tensors(parts: Sequence[Examples]) -> Examples:
    """Return the examples of all parts, in the tensors that they share, or else in a copy."""
    first = parts[0]
    rows = [part.rows for part in parts if part.rows is not None]
    identities = {
        (names_of(part.inputs), *map(id, (*tensors_of(part.inputs), part.targets, part.groups)))
        for part in parts
    }
    if len(rows) == len(parts) and len(identities) == 1:
        return replace(first, rows=torch.cat(rows), units=_join_units(parts))
    inputs, targets = zip(*(part[:] for part in parts), strict=True)
    places = (part.group_places() for part in parts)
    groups = [each for each in places if each is not None]
    return Examples(
        combine_inputs(inputs, torch.cat),
        torch.cat(targets),
        groups=torch.cat(groups) if groups else None,
        units=_join_units(parts),
    )


def _join_units(parts: Sequence[Examples]) -> NDArray[np.int64] | None:
    """Return the units of all parts' examples; None if a part has none."""
    units = [part.units for part in parts if part.units is not None]
    return np.concatenate(units) if len(units) == len(parts) else None
