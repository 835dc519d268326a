"""Outputs are probabilities if the loss or the graph says so, never by their range."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fairbloom.client.training import measure
from fairbloom.protocol.scores import ACCURACY
from fairbloom.simulation.choice import warn_of_softmax
from fairbloom.simulation.stacked.batched_metrics import measure_clients
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tasks.checks import guard_task
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, auc, balanced_accuracy
from fairbloom.tasks.task import is_highest

X = torch.linspace(-3.0, 3.0, 24).reshape(24, 1)
Y = (X[:, 0] > 0.5).float()


class Net(nn.Module):
    """A line through 0.5, and `end`."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        nn.init.constant_(self.layer.weight, 2.0)
        nn.init.constant_(self.layer.bias, -1.0)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layer(x))


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy(
        outputs.reshape(-1), targets.reshape(-1).float(), reduction="none"
    )


def log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.reshape(-1)
    return -torch.where(targets.reshape(-1) > 0, p, 1 - p).log()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(-1) - targets.reshape(-1)).square()


def with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        outputs.reshape(-1), targets.reshape(-1).float(), reduction="none"
    )


def made(end: Any, loss: Any, targets: Tensor = Y) -> Task:
    task = Task(
        ("a", "b"),
        lambda: Net(end),
        loss,
        lambda client: Splits(Examples(X, targets), Examples(X, targets)),
        scores={ACCURACY: is_highest, AUC: auc, BALANCED_ACCURACY: balanced_accuracy},
    )
    return guard_task("mine:task", task)


PROBABILITIES: list[tuple[Any, Any]] = [
    (lambda z: z.sigmoid(), bce),
    (lambda z: z.sigmoid().squeeze(1), bce),
    (lambda z: z.sigmoid().flatten(), log_likelihood),
    (lambda z: z.sigmoid(), squares),
    (lambda z: torch.cat([-z, z], 1).mul(0.5).softmax(1)[:, 1], squares),
    (lambda z: 1 / (1 + torch.exp(-z)), bce),  # no sigmoid in its graph
    (lambda z: z.sigmoid().view(-1, 1), with_logits),  # twice, but they are probabilities
]

LOGITS: list[tuple[Any, Any]] = [
    (lambda z: z, with_logits),
    (lambda z: z.squeeze(1), with_logits),
    (lambda z: 0.0 * z, with_logits),
    (lambda z: functional.relu6(z + 3.0) - 3.0, with_logits),
    (lambda z: 0.05 * z + 0.5, with_logits),  # within 0 and 1
    (lambda z: z, squares),
]


@pytest.mark.parametrize("targets", [Y, Y.reshape(24, 1), Y.long()])
@pytest.mark.parametrize(("end", "loss"), PROBABILITIES)
def test_probabilities_are_halved_at_a_half(
    end: Any, loss: Any, targets: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    task = made(end, loss, targets)
    examples = [task.splits(client).test for client in task.clients]
    model = task.model()
    one = measure(model, task, examples[0])
    assert one[ACCURACY.name] == 1.0  # with a threshold of 0, it is the share of ones
    assert one[AUC.name] == one[BALANCED_ACCURACY.name] == 1.0
    for both in measure_clients(model, task, examples):
        assert both == pytest.approx(one)
    assert caplog.text.count("the model's outputs are probabilities") == 1


@pytest.mark.parametrize("targets", [Y, Y.reshape(24, 1), Y.long()])
@pytest.mark.parametrize(("end", "loss"), LOGITS)
def test_logits_are_halved_at_zero(
    end: Any, loss: Any, targets: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    task = made(end, loss, targets)
    test = task.splits("a").test
    model = task.model()
    expected = ((model(X).reshape(-1) > 0).float() == Y).double().mean().item()
    assert measure(model, task, test)[ACCURACY.name] == expected
    assert "probabilities" not in caplog.text


def of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def of_logarithms(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.nll_loss(outputs.log(), targets, reduction="none")


@pytest.mark.parametrize(
    ("end", "loss", "warned"),
    [
        (lambda z: torch.cat([-z, z], 1).softmax(1), of_classes, True),
        (lambda z: torch.cat([-z, z], 1).sigmoid(), of_classes, True),
        (lambda z: torch.cat([-z, z], 1).softmax(1).reshape(-1, 2), of_classes, True),
        (lambda z: torch.cat([-z, z], 1), of_classes, False),
        (lambda z: torch.cat([-z, z], 1).log_softmax(1), of_classes, False),
        (lambda z: torch.cat([-z, z], 1).softmax(1), of_logarithms, False),
        (lambda z: z.sigmoid(), bce, False),
    ],
)
def test_a_softmax_that_is_taken_twice_is_warned_of(
    end: Any, loss: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    task = made(end, loss, Y if loss is bce else Y.long())
    model = task.model()
    before = torch.random.get_rng_state()
    warn_of_softmax(task, model, task.splits("a").train)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert ("ends in a softmax" in caplog.text) == warned
