"""Measures of many clients at once: one pass over the examples of several, divided among them afterwards."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import unwrap
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.groups import measure_groups
from fairbloom.client.training import EVALUATION_BATCH, measure, outputs_of
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.inputs import Inputs, are_shared, combine_inputs, map_inputs
from fairbloom.tasks.measures import absolute_error
from fairbloom.tasks.task import is_highest

ONE_BY_ONE: tuple[Callable[..., object], ...] = (is_highest, absolute_error)
"""Scores that look at each example by itself, so that the examples of several clients may be scored at once."""

FEW_CLASSES = 12
"""With up to so many classes, cross-entropy is computed with the classes first."""

Measures = dict[str, float]


class Pool(NamedTuple):
    """The examples of several clients in common tensors.

    Attributes
    ----------
    inputs, targets
        First dimension of each tensor the examples.
    rows
        Indices of each client's examples, one client's after the other's.
    counts
        How many each client has.
    """

    inputs: Inputs
    targets: Tensor
    rows: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Examples]) -> "Pool":
        """Return the examples of several clients in the tensors that they share, or else in a copy."""
        counts, first = tuple(map(len, parts)), parts[0]
        rows = [part.rows for part in parts if part.rows is not None]
        if len(rows) == len(parts) and all(
            are_shared(p.inputs, first.inputs) and p.targets is first.targets for p in parts
        ):
            return cls(first.inputs, first.targets, torch.cat(rows), counts)
        inputs, each_targets = zip(*(part[:] for part in parts), strict=True)
        targets = torch.cat(each_targets)
        return cls(
            combine_inputs(inputs, torch.cat), targets, torch.arange(len(targets), device=targets.device), counts
        )

    def at(self, places: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets at places among the rows, shape (k, b): all their tensors of shape (k, b, …)."""
        rows = self.rows.index_select(0, places.flatten().to(self.rows.device))

        def taken(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows).view(*places.shape, *tensor.shape[1:])

        return map_inputs(self.inputs, taken), taken(self.targets)


def losses_of(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the task's loss of each example, shape (n,)."""
    loss = unwrap(task.loss)
    plain = isinstance(loss, partial) and loss.func is cross_entropy and loss.keywords == {"reduction": "none"}
    if plain and outputs.dim() == 2 and outputs.shape[1] <= FEW_CLASSES:
        # Classes first: over the last dimension PyTorch's softmax takes four times as long for ten classes.
        return cross_entropy(outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none").squeeze(0)
    return task.loss(outputs, targets)


def measure_clients(model: nn.Module, task: Task, parts: Sequence[Examples], smallest_group: int = 0) -> list[Measures]:
    """Return what `fairbloom.client.training.measure` does of each client's examples, the model being the same for all.

    The model must not draw as it evaluates.
    """
    model.eval()
    found: list[Measures] = []
    for some in split_into_passes(parts):
        if len(some) == 1:
            found.append(measure(model, task, some[0], smallest_group))
            continue
        pool = Pool.of(some)
        inputs, targets = pool.at(torch.arange(len(pool.rows)))
        with torch.no_grad():
            outputs = outputs_of(model, inputs, task.output)
            scores = score_clients(task, outputs, targets, pool.counts)
        if smallest_group and task.groupings:
            apart = (torch.split(each, list(pool.counts)) for each in (outputs, targets))
            for measured, part, its_outputs, its_targets in zip(scores, some, *apart, strict=True):
                if (groups := part.group_places()) is not None:
                    by_score = {score: of(its_outputs, its_targets) for score, of in task.group_scores.items()}
                    measured |= measure_groups(task, by_score, groups, smallest_group)
        found += scores
    return found


def score_clients(task: Task, outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> list[Measures]:
    """Return mean loss and scores of clients, `counts` examples each, which lie one client after the other."""
    columns = {LOSS: _means(losses_of(task, outputs, targets), counts)}
    for score, of in task.scores.items():
        if of in ONE_BY_ONE:
            columns[score.name] = _means(torch.as_tensor(of(outputs, targets)), counts)
        else:
            apart = zip(torch.split(outputs, list(counts)), torch.split(targets, list(counts)), strict=True)
            columns[score.name] = [torch.as_tensor(of(*part)).double().mean().item() for part in apart]
    return [
        {name: value for name, value in zip(columns, row, strict=True) if name == LOSS or math.isfinite(value)}
        for row in zip(*columns.values(), strict=True)
    ]


def _means(values: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the mean over each client's examples, NaN where a client has none."""
    numbers: NDArray[np.float64] = values.double().cpu().numpy()
    sizes = np.array(counts)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means, some = np.full(len(sizes), np.nan), sizes > 0
    if some.any():
        means[some] = np.add.reduceat(numbers, starts[some]) / sizes[some]
    listed: list[float] = means.tolist()
    return listed


def split_into_passes(parts: Sequence[Examples]) -> Iterator[list[Examples]]:
    """Yield clients, as many as have EVALUATION_BATCH examples together; one that has more comes alone."""
    some: list[Examples] = []
    total = 0
    for part in parts:
        size = len(part)
        if some and total + size > EVALUATION_BATCH:
            yield some
            some, total = [], 0
        some.append(part)
        total += size
    if some:
        yield some
