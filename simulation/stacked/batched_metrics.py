"""Evaluate many clients in one pass over their joined examples."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from inspect import unwrap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.device import in_double
from fairbloom.client.group_metrics import measure_groups
from fairbloom.client.training import EVALUATION_BATCH, measure, outputs_of
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.measures import absolute_error
from fairbloom.tasks.pooled import join_tensors
from fairbloom.tasks.task import is_highest

# Scores that look at each example by itself, so that the examples of several clients may be scored
# at once.
ONE_BY_ONE: tuple[Callable[..., object], ...] = (is_highest, absolute_error)

Measures = dict[str, float]


def losses_of(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the task's loss of each example, shape (n,)."""
    loss = unwrap(task.loss)
    plain = (
        isinstance(loss, partial)
        and loss.func is cross_entropy
        and loss.keywords == {"reduction": "none"}
    )
    if plain and outputs.dim() == 2 and outputs.shape[1] <= 12 and targets.dim() == 1:
        # Classes first: over the last dimension PyTorch's softmax takes four times as long for ten
        # classes.
        return cross_entropy(
            outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none"
        ).squeeze(0)
    return task.loss(outputs, targets)


def measure_clients(
    model: nn.Module, task: Task, parts: Sequence[Examples], smallest_group: int = 0
) -> list[Measures]:
    """Return `fairbloom.client.training.measure` of each client's examples, for one model.

    The model must not draw as it evaluates.
    """
    model.eval()
    found: list[Measures] = []
    for some, counts in split_into_passes(parts):
        if len(some) == 1:
            found.append(measure(model, task, some[0], smallest_group))
            continue
        inputs, targets = join(*some)[:]
        with torch.no_grad():
            outputs = outputs_of(model, inputs, task.output)
            scores = score_clients(task, outputs, targets, counts)
        if smallest_group and task.groupings:
            apart = (torch.split(each, counts) for each in (outputs, targets))
            for measured, part, its_outputs, its_targets in zip(scores, some, *apart, strict=True):
                if (groups := part.group_places()) is not None:
                    by_score = {
                        score: of(its_outputs, its_targets)
                        for score, of in task.group_scores.items()
                    }
                    measured |= measure_groups(task, by_score, groups, smallest_group)
        found += scores
    return found


# passes, of up to EVALUATION_BATCH examples: the next rounds have the same clients
@lru_cache(maxsize=4)
def join(*parts: Examples) -> Examples:
    """Return the examples of all clients, one after the other."""
    return Examples(*join_tensors(parts)[:])


def score_clients(
    task: Task, outputs: Tensor, targets: Tensor, counts: Sequence[int]
) -> list[Measures]:
    """Return mean loss and scores of consecutive clients with `counts` examples each."""
    columns = {LOSS: _means(losses_of(task, outputs, targets), counts)}
    for score, of in task.scores.items():
        if of in ONE_BY_ONE:
            columns[score.name] = _means(torch.as_tensor(of(outputs, targets)), counts)
        else:
            apart = zip(
                torch.split(outputs, list(counts)), torch.split(targets, list(counts)), strict=True
            )
            columns[score.name] = [
                in_double(torch.as_tensor(of(*part))).mean().item() for part in apart
            ]
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for name, values in columns.items():
        if name != LOSS and not np.isfinite(values).all():
            for measured, value in zip(found, values, strict=True):
                if not math.isfinite(value):
                    del measured[name]
    return found


def _means(values: Tensor, counts: Sequence[int]) -> list[float]:
    numbers: NDArray[np.float64] = values.cpu().double().numpy()
    sizes = np.array(counts)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means = np.full(len(sizes), np.nan)
    some = sizes > 0
    if some.any():
        means[some] = np.add.reduceat(numbers, starts[some]) / sizes[some]
    listed: list[float] = means.tolist()
    return listed


def split_into_passes(parts: Sequence[Examples]) -> Iterator[tuple[list[Examples], list[int]]]:
    """Yield groups of clients with about EVALUATION_BATCH examples, and their counts.

    One that has more comes alone.
    """
    counts = [*map(len, parts)]
    first = total = 0
    for last, count in enumerate(counts):
        if last > first and total + count > EVALUATION_BATCH:
            yield [*parts[first:last]], counts[first:last]
            first = last
            total = 0
        total += count
    if counts:
        yield [*parts[first:]], counts[first:]
