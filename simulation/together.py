"""Measures of many clients at once: one pass over the examples of several, divided among them afterwards."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairbloom.client.training import EVALUATION_BATCH, measure, outputs_of
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.measures import absolute_error
from fairbloom.tasks.task import is_highest

ONE_BY_ONE: tuple[Callable[..., object], ...] = (is_highest, absolute_error)
"""Scores that look at each example by itself, so that the examples of several clients may be scored at once."""

Measures = dict[str, float]


class Pool(NamedTuple):
    """The examples of several clients in common tensors.

    Attributes
    ----------
    inputs, targets
        First dimension the examples.
    rows
        Each client's indices into them.
    """

    inputs: Tensor
    targets: Tensor
    rows: list[Tensor]


def pooled(parts: Sequence[Examples]) -> Pool:
    """Return the examples of several clients in common tensors: in theirs where they share them, else in a copy."""
    first = parts[0]
    if all(part.inputs is first.inputs and part.targets is first.targets and part.rows is not None for part in parts):
        return Pool(first.inputs, first.targets, [part.rows for part in parts if part.rows is not None])
    if len(parts) == 1:
        return Pool(*first[:], [torch.arange(len(first), device=first.targets.device)])
    inputs, targets = (torch.cat(tensors) for tensors in zip(*(part[:] for part in parts), strict=True))
    places = torch.arange(len(targets), device=targets.device)
    return Pool(inputs, targets, list(places.split([len(part) for part in parts])))


def measured(model: nn.Module, task: Task, parts: Sequence[Examples]) -> list[Measures]:
    """Return what `fairbloom.client.training.measure` does of each client's examples, the model being the same for all.

    The model must not draw as it evaluates.
    """
    model.eval()
    found: list[Measures] = []
    for some in in_passes(parts):
        if len(some) == 1:
            found.append(measure(model, task, some[0]))
            continue
        pool = pooled(some)
        rows = torch.cat(pool.rows)
        inputs, targets = pool.inputs.index_select(0, rows), pool.targets.index_select(0, rows)
        with torch.no_grad():
            found += scored(task, outputs_of(model, inputs), targets, [len(part) for part in some])
    return found


def scored(task: Task, outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> list[Measures]:
    """Return mean loss and scores of clients, `counts` examples each, which lie one client after the other."""
    columns = {LOSS: _means(task.loss(outputs, targets), counts)}
    for score, of in task.scores.items():
        if of in ONE_BY_ONE:
            columns[score.name] = _means(torch.as_tensor(of(outputs, targets)), counts)
        else:
            apart = zip(outputs.split(list(counts)), targets.split(list(counts)), strict=True)
            columns[score.name] = [torch.as_tensor(of(*part)).double().mean().item() for part in apart]
    return [
        {name: value for name, value in zip(columns, row, strict=True) if name == LOSS or math.isfinite(value)}
        for row in zip(*columns.values(), strict=True)
    ]


def _means(values: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the mean over each client's examples, all of them having at least one."""
    numbers: NDArray[np.float64] = values.double().cpu().numpy()
    sizes = np.array(counts)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means: list[float] = (np.add.reduceat(numbers, starts) / sizes).tolist()
    return means


def in_passes(parts: Sequence[Examples]) -> Iterator[list[Examples]]:
    """Yield clients, as many as have EVALUATION_BATCH examples together; one that has more comes alone."""
    some: list[Examples] = []
    total = 0
    for part in parts:
        if some and total + len(part) > EVALUATION_BATCH:
            yield some
            some, total = [], 0
        some.append(part)
        total += len(part)
    if some:
        yield some
