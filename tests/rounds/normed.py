"""A task whose model has BatchNorm's buffers: floats that are averaged, and a count of batches."""

from dataclasses import replace

import torch
from torch import nn

from fairbloom.tasks import TASKS, Setup, Task, TaskInfo

INFO = TaskInfo(
    "normed",
    summary="the digits, for a model with buffers",
    source="as the digits",
    loader="tests.rounds.normed:load",
    models=("norm",),
)


def load(setup: Setup) -> Task:
    return replace(TASKS["digits"].load(setup.model_copy(update={"model": "logistic"}), {}), model=model)


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
