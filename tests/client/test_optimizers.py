"""Local training by SGD, Adam, AdamW and a user's own optimizer: as by hand in PyTorch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from fairbloom.client.plan import global_work
from fairbloom.client.rules.personal import PersonalModel
from fairbloom.client.training import batches, count_steps, train
from fairbloom.client.work import LocalWork, run_work
from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Examples

from .helpers import noise, task_of, work

ROUND = Terms(server_round=1)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def by_hand(
    model: nn.Module, examples: Examples, todo: LocalWork, make: Callable[[Any], Optimizer]
) -> None:
    """Train as one writes it in PyTorch: an optimizer and clipping."""
    optimizer = make(model.parameters())
    for batch in batches(len(examples), todo):
        inputs, targets = examples[batch]
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(inputs), targets).backward()
        if todo.gradient_clip:
            nn.utils.clip_grad_norm_(model.parameters(), todo.gradient_clip)
        optimizer.step()


class Signs(Optimizer):
    """Moves each number by the sign of its gradient."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


def test_an_optimizer_takes_the_steps_made_by_hand(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[[Any], Optimizer], dict[str, Any]]] = [
        (
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
            {"momentum": 0.9, "nesterov": True},
        ),
        (
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
            {"optimizer": "adam", "weight_decay": 0.1},
        ),
        (
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
            {"optimizer": "adamw", "weight_decay": 0.1, "gradient_clip": 0.2},
        ),
        (lambda p: torch.optim.Adagrad(p, lr=0.01), {"optimizer": "torch.optim:Adagrad"}),
        (lambda p: Signs(p, lr=0.01), {"optimizer": f"{__name__}:Signs"}),
    ]
    examples = noise(53).map(
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor
    )
    for make, chosen in cases:
        with subtests.test(make=make, chosen=chosen):
            ours = network()
            expected = network()
            changes = {"epochs": 3, "batch_size": 10, "learning_rate": 0.01, **chosen}
            train(ours, task_of(ours), examples, work(**changes))
            by_hand(expected, examples, work(**changes), make)
            for name, tensor in ours.state_dict().items():
                torch.testing.assert_close(
                    tensor, expected.state_dict()[name], rtol=1e-12, atol=1e-12, msg=str(chosen)
                )
            assert not torch.equal(
                ours.state_dict()["1.weight"], network().state_dict()["1.weight"]
            )


def test_steps_are_counted_as_they_are_taken(subtests: pytest.Subtests) -> None:
    for count, size, fewest in ((53, 10, 1), (51, 10, 2), (50, 10, 1), (7, 0, 1), (3, 10, 1)):
        with subtests.test(count=count, size=size):
            todo = work(epochs=3, batch_size=size)
            assert count_steps(count, todo, fewest) == len(list(batches(count, todo, fewest)))
            assert count_steps(count, replace(todo, steps=5), fewest) == 5


# What settings and terms make of it ---------------------------------------------------------------


def test_personal_models_are_trained_by_plain_sgd() -> None:
    settings = RunSettings.of(
        {"optimizer": "adamw", "weight-decay": 0.1, "schedule": "cosine", "gradient-clip": 1.0}
    )
    ours = PersonalModel(replace(ROUND, personal_lambda=0.5)).after(run_work(settings, 1))
    assert ours == replace(global_work(settings, ROUND), pull=0.5, in_full=True)
    settings = RunSettings.of({"momentum": 0.9, "nesterov": True, "weight-decay": 0.1})
    ours = PersonalModel(replace(ROUND, personal_lambda=0.5)).after(run_work(settings, 1))
    assert (ours.momentum, ours.nesterov, ours.weight_decay) == (0.0, False, 0.0)


def test_a_servers_momentum_needs_an_optimizer_that_has_one() -> None:
    model = network(torch.float32)
    asked = replace(ROUND, client_momentum=0.9)
    todo = replace(
        global_work(RunSettings.of({"optimizer": "adam"}), asked), random=np.random.default_rng(0)
    )
    with pytest.raises(
        ReportableError, match=r"momentum = 0\.9 has no effect with optimizer = 'adam'"
    ):
        train(model, task_of(model), noise(20), todo)
