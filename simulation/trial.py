"""A trial step before the first round, so that an error in a user's code is reported once."""

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

FIRST_ROUND = Terms(server_round=1)


class TrialStep(NamedTuple):
    """The training examples of a client that could take a step, and the seconds of a step."""

    examples: AnyExamples
    seconds: float


def try_first_step(settings: RunSettings, task: Task, model: nn.Module) -> TrialStep:
    """Take two local steps and measure the model at the first client that can do so.

    If no client can, raise FairbloomError with the error of the first one. The model is unchanged.
    """
    try:
        tried = copy.deepcopy(model)
    except Exception:  # some models cannot be copied; each round loads the received weights anyway
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
    """Return the time of a client's second step, as PyTorch does one-time work in the first."""
    work = replace(global_work(settings, FIRST_ROUND), steps=1)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        train(model, task, splits.train, replace(work, random=batch_order(settings, 1, name)))
        seconds = time.perf_counter() - started
    measure(model, task, splits.test)
    return seconds
