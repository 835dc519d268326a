"""A trial step before the first round reports an error in a user's code once, by its cause."""

import copy
import time
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from fairbloom.client.plan import global_work
from fairbloom.client.training import measure, train
from fairbloom.client.work import batch_order
from fairbloom.errors import FairbloomError, failure_reason
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits, Task
from fairbloom.tasks.task import AnyExamples
from fairbloom.text import text_if


class TrialStep(NamedTuple):
    """The training examples of a client that could take a step, and the seconds of a step."""

    examples: AnyExamples
    seconds: float


def try_first_step(settings: RunSettings, task: Task, model: nn.Module) -> TrialStep:
    """Let one client after the other take local steps and measure its model, until one can.

    FairbloomError says why the first client could not, if none can. The model stays as it is.
    """
    try:
        tried = copy.deepcopy(model)
    except (
        Exception
    ):  # whatever a model raises that cannot be copied; clients get theirs with each round
        tried = model
    reasons: dict[str, str] = {}
    for name in task.clients:
        try:
            splits = task.splits(name)
            return TrialStep(splits.train, seconds_of_step(settings, task, tried, name, splits))
        except Exception as error:
            reasons[name] = failure_reason(error)
    (name, reason), *others = reasons.items()
    too = text_if(others, f", and those of {len(others)} others")
    raise FairbloomError(
        f"{reason} (a trial step of client {name} failed before the first round{too}; fairbloom run"
        " --debug shows the whole traceback)"
    )


def seconds_of_step(
    settings: RunSettings, task: Task, model: nn.Module, name: str, splits: Splits
) -> float:
    """Return how long a client's second step takes: the first one prepares much in PyTorch."""
    work = replace(global_work(settings, Terms(server_round=1)), steps=1)
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        train(model, task, splits.train, replace(work, random=batch_order(settings, 1, name)))
        seconds = time.perf_counter() - begun
    measure(model, task, splits.test)
    return seconds
