"""A user's task with clients that fail if there is one of these files in the working directory.

no-data
    The data of client-1 cannot be read.
die-once
    The process that sees the file first deletes it and is killed.
deadly
    Each process that computes client-3 is killed.
stall
    A process waits until the file is deleted.

Each process that computes leaves a file that is named after its number.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from fairbloom.tasks import Examples, Setup, Splits, Task

FIVE = [f"client-{k}" for k in range(5)]

BUFFERS = ("norm.running_mean", "norm.running_var")
SHARED = {"second.weight": "first.weight"}


class Tied(nn.Module):
    """A model with buffers, and a weight of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.norm(inputs))))  # type: ignore[no-any-return]


def tied(setup: Setup) -> Task:
    """Return a task with a loss of its own, and clients of very different sizes."""

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return Tied()

    def splits(client: str) -> Splits:
        number = FIVE.index(client)
        if number == 1 and Path("no-data").exists():
            raise OSError("its disk is gone")
        random = torch.Generator().manual_seed(number)
        count = 8 * (1 + 4 * number)
        inputs = torch.randn(count, 4, generator=random)
        targets = torch.full((count,), number % 4)
        return Splits(
            Examples(inputs, targets, torch.arange(4, count)), Examples(inputs[:4], targets[:4])
        )

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        Path(f"{os.getpid()}.process").touch()
        with suppress(FileNotFoundError):
            Path("die-once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)  # the one that has removed it
        if Path("deadly").exists() and (targets == 3).all():
            os.kill(os.getpid(), signal.SIGKILL)
        while Path("stall").exists():
            Path(f"{os.getpid()}.stalled").touch()
            time.sleep(0.01)
        return (outputs - nn.functional.one_hot(targets, 4)).square().sum(1)

    return Task(tuple(FIVE), model, loss, splits)
