"""Federated averaging as a PyTorch tutorial would write it; the engines are compared with it."""

import copy
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairbloom.client.device import autocast, computing_in
from fairbloom.rounds.sampling import share
from fairbloom.server.settings import Settings
from fairbloom.tasks import Task, load_task
from fairbloom.tasks.optimizers import make_optimizer, optimizer_in

# PyTorch's default number of threads, read before anything has changed it.
THREADS = torch.get_num_threads()

TEST_BATCH = 64


def plain_loop(settings: Settings) -> float:
    """Return the seconds per round, without the first one, of the settings' run.

    Data, model, numbers of clients and steps are the same, and averages are by examples. A share
    `fraction-evaluate` of the clients' test sets is evaluated after the last round, and after every
    `evaluate-every` rounds. Nothing is written to disk. Steps have the settings' precision.
    """
    task = load_task(settings)
    device = torch.device(settings.device)
    model = task.model().to(device)
    train = {name: TensorDataset(*task.splits(name).train[:]) for name in task.clients}
    test = {name: TensorDataset(*task.splits(name).test[:]) for name in task.clients}
    wanted = max(1, round(settings.fraction * len(train)))
    evaluated = [*test.values()][: share(settings.fraction_evaluate, len(test), 1)]
    draws = random.Random(settings.seed)  # noqa: S311 (nothing is secret)
    started = time.perf_counter()
    with default_threads(), computing_in(settings.precision, device):
        for number in range(1, settings.num_rounds + 1):
            drawn = draws.sample(sorted(train), wanted)
            train_round(model, task, [train[name] for name in drawn], settings)
            if number == settings.num_rounds or (
                settings.evaluate_every and number % settings.evaluate_every == 0
            ):
                for part in evaluated:
                    evaluate(model, task, part)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number == 1:
                started = time.perf_counter()
    return (time.perf_counter() - started) / (settings.num_rounds - 1)


@contextmanager
def default_threads() -> Iterator[None]:
    """Give PyTorch its default number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_round(
    model: nn.Module, task: Task, parts: list[TensorDataset], settings: Settings
) -> None:
    """Train the model at each client in turn, and average."""
    received = copy.deepcopy(model.state_dict())
    total = {name: torch.zeros_like(array) for name, array in received.items()}
    examples = sum(map(len, parts))
    device = next(model.parameters()).device
    model.train()
    for part in parts:
        model.load_state_dict(received)
        optimizer = make_optimizer(
            optimizer_in(settings), [*model.parameters()], learning_rate=settings.learning_rate
        )
        for _ in range(settings.local_epochs):
            for inputs, targets in DataLoader(
                part, batch_size=settings.batch_size or len(part), shuffle=True
            ):
                optimizer.zero_grad()
                with autocast(device, bfloat16=settings.precision == "bfloat16"):
                    loss = task.loss(model(inputs.to(device)), targets.to(device)).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        for name, array in model.state_dict().items():
            total[name] += array * (len(part) / examples)
    model.load_state_dict(total)


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, part: TensorDataset) -> tuple[float, float]:
    """Return the mean loss and the accuracy on one client's test set."""
    device = next(model.parameters()).device
    model.eval()
    loss = 0.0
    correct = 0
    for inputs, targets in DataLoader(part, batch_size=TEST_BATCH):
        outputs: Tensor = model(inputs.to(device))
        targets = targets.to(device)
        loss += task.loss(outputs, targets).sum().item()
        correct += int((outputs.argmax(dim=1) == targets).sum().item())
    return loss / len(part), correct / len(part)
