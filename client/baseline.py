"""The least loss that a client reaches by training alone, which methods compare its loss with."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Task
from fairbloom.tasks.task import AnyExamples

from .training import measure, train
from .work import lonely_work


def reach_alone(
    model: torch.nn.Module, task: Task, examples: AnyExamples, settings: RunSettings, terms: Terms, client: str
) -> Mapping[str, float]:
    """Return the loss and scores, by name, of the best model that a client meets as it trains alone, on all examples.

    Training starts from `model`, which is measured first and after every epoch and changes in place, and ends as the
    terms say.
    """
    found = [measure(model, task, examples)]
    for epoch in range(terms.baseline_epochs or 0):
        train(model, task, examples, lonely_work(settings, client, epoch))
        found.append(measure(model, task, examples))
        if has_settled([each[LOSS] for each in found], terms.baseline_patience or 0, terms.baseline_tolerance or 0.0):
            break
    return min(found, key=lambda each: each[LOSS] if math.isfinite(each[LOSS]) else math.inf)


def has_settled(losses: Sequence[float], patience: int, tolerance: float) -> bool:
    """Return whether the least loss fell by less than `tolerance` of itself over the last `patience` epochs.

    `losses` are those at the start and after each epoch.
    """
    if len(losses) <= patience:
        return False
    least = list(accumulate(losses, min))
    before, now = least[-1 - patience], least[-1]
    return not before - now > tolerance * abs(before)
