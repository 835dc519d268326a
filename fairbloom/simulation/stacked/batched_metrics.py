"""Evaluate many clients in one pass over their joined examples."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from inspect import unwrap

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.group_metrics import group_examples, measure_groups
from fairbloom.client.training import EVALUATION_BATCH, measure, outputs_of
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.joint_scores import fit_outputs, score_all, values_of_all
from fairbloom.tasks.measures import clients_of, ratios
from fairbloom.tasks.pooled import join_tensors

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
        by_class = outputs.t().unsqueeze(0)
        return cross_entropy(by_class, targets.unsqueeze(0), reduction="none").squeeze(0)
    return task.loss(outputs, targets)


def measure_clients(
    model: nn.Module, task: Task, parts: Sequence[Examples], smallest_group: int = 0
) -> list[Measures]:
    """Return `fairbloom.client.training.measure` of each client's examples, for one model.

    The model must not draw random numbers as it evaluates.
    """
    model.eval()
    measured: list[Measures] = []
    for some, counts in split_into_passes(parts):
        if len(some) == 1:
            measured.append(measure(model, task, some[0], smallest_group))
            continue
        joined = join(*some)
        inputs, targets = joined[:]
        with torch.no_grad():
            outputs = outputs_of(model, inputs, task.output)
            scores = score_clients(task, outputs, targets, counts)
            if smallest_group and task.reported_groupings:
                by_score = {
                    score: values_of_all(fit_outputs(task, compute), outputs, targets, counts)
                    for score, compute in task.group_scores.items()
                }
                for row, of_groups in zip(
                    scores,
                    measure_groups(
                        task,
                        by_score,
                        group_examples(task, joined),
                        counts,
                        smallest_group,
                        joined.units,
                    ),
                    strict=True,
                ):
                    row |= of_groups
        measured += scores
    return measured


# The next rounds have the same clients: four passes of up to EVALUATION_BATCH examples are cached.
@lru_cache(maxsize=4)
def join(*parts: Examples) -> Examples:
    """Return the examples of all clients, one after the other."""
    joined = join_tensors(parts)
    return Examples(*joined[:], groups=joined.group_places(), units=joined.units)


def score_clients(
    task: Task, outputs: Tensor, targets: Tensor, counts: Sequence[int]
) -> list[Measures]:
    """Return mean loss and finite scores of consecutive clients with `counts` examples each."""
    losses = losses_of(task, outputs, targets).cpu().double().numpy()
    sums = np.bincount(clients_of(counts), weights=losses, minlength=len(counts))
    columns = {
        LOSS: ratios(sums, np.array(counts)),
        **{
            score.name: score_all(fit_outputs(task, compute), outputs, targets, counts)
            for score, compute in task.scores.items()
        },
    }
    return [
        {
            name: value
            for name, value in zip(columns, row, strict=True)
            if name == LOSS or math.isfinite(value)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def split_into_passes(parts: Sequence[Examples]) -> Iterator[tuple[list[Examples], list[int]]]:
    """Yield groups of clients with at most EVALUATION_BATCH examples together, and their counts.

    A client with more examples is a group of its own.
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
