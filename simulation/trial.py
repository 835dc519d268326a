"""A first step before the first round: an error in a user's model, loss or task is found there, once, by its cause."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import nn

from fairbloom.client.plan import global_work
from fairbloom.client.training import measure, train
from fairbloom.client.work import batch_order
from fairbloom.errors import FairbloomError, failure_reason, place_of
from fairbloom.imports import is_import_string
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits, Task, find_task
from fairbloom.tasks.inputs import names_of, tensors_of

from .dispatch.processes import Forked, can_fork

SAMPLED_CLIENTS = 20
"""How many clients, evenly spaced, stand for all."""

STEP_SECONDS = 120.0
"""A step that takes longer in a process of its own is given up, and left to the clients."""


def evenly_spaced(task: Task) -> tuple[str, ...]:
    """Return the names of about SAMPLED_CLIENTS clients."""
    return task.clients[:: max(1, len(task.clients) // SAMPLED_CLIENTS)]


def check_first_step(settings: RunSettings, task: Task, model: nn.Module) -> None:
    """Let one client after the other take a local step and measure its model, until one can.

    Else raise the first's reason.

    A user's own task or model is tried in a forked process, which a step may end; others with a copy of the model.
    """
    if not find_task(settings.task).is_user_defined and not is_import_string(settings.model):
        return
    forked = can_fork() and all(parameter.device.type == "cpu" for parameter in model.parameters())
    try:
        tried = model if forked else copy.deepcopy(model)
    except Exception:  # whatever a model raises that cannot be copied: its clients will tell what else is wrong
        return
    first = evenly_spaced(task)
    reasons: dict[str, str] = {}
    for name in (*first, *(each for each in task.clients if each not in set(first))):
        try:
            take = partial(_failure_of_step, settings, task, tried, name, task.splits(name))
        except Exception as error:
            reasons[name] = failure_reason(error)
            continue
        reasons[name] = _in_another_process(take) if forked else take()
        if not reasons[name]:
            return
    (name, reason), *others = reasons.items()
    too = f", and those of {len(others)} others" if others else ""
    raise FairbloomError(
        f"{reason} (a trial step of client {name} failed before the first round{too}; fairbloom run --debug shows the "
        "whole traceback)"
    )


def _failure_of_step(settings: RunSettings, task: Task, model: nn.Module, name: str, splits: Splits) -> str:
    """Return why a client can take no step, "" where it can."""
    try:
        work = global_work(settings, Terms(server_round=1))
        train(model, task, splits.train, replace(work, steps=1, random=batch_order(settings, 1, name)))
        measure(model, task, splits.test)
    except Exception as error:
        return failure_reason(error) + _shapes(error, splits)
    return ""


def _in_another_process(compute: Callable[[], str]) -> str:
    """Return what a forked process computes; "" where it ends before, as a worker would, or takes too long."""

    def serve(pipe: Connection) -> None:
        torch.set_num_threads(1)
        try:
            torch.autograd.backward(torch.ones(1, requires_grad=True))
        except RuntimeError:  # PyTorch forbids it where the parent has trained with a graphics card in sight
            return
        pipe.send(compute())

    try:
        process = Forked(serve, ())
    except FairbloomError:  # the system starts no more processes
        return ""
    try:
        return str(process.pipe.recv()) if process.pipe.poll(STEP_SECONDS) else ""
    except EOFError:
        return ""
    finally:
        process.end()


def _shapes(error: Exception, splits: Splits) -> str:
    """Return the shapes of two examples where an error comes neither with words of ours nor with a user's own code."""
    if isinstance(error, FairbloomError) or place_of(error):
        return ""
    try:
        inputs, targets = splits.train[slice(0, 2)]
    except Exception:  # the error is of the examples themselves
        return ""
    shapes = [
        f"{f'inputs[{name}]' if name else 'inputs'} {tuple(tensor.shape)}"
        for name, tensor in zip(names_of(inputs), tensors_of(inputs), strict=True)
    ]
    return f"; of two examples, shapes are {', '.join(shapes)}, targets {tuple(targets.shape)}"
