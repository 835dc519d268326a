"""Local training by SGD, Adam, AdamW and a user's own optimizer: as by hand in PyTorch.

Schedules of the learning rate against their closed forms, and against PyTorch's.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.optim import Optimizer

from fairbloom.client.plan import global_work
from fairbloom.client.rules.personal import PersonalModel
from fairbloom.client.training import batches, count_steps, train
from fairbloom.client.work import LocalWork, learning_rate_in, run_work, schedule_factor
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
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


@pytest.mark.parametrize(
    ("make", "chosen"),
    [
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
    ],
)
def test_an_optimizer_takes_the_steps_made_by_hand(
    make: Callable[..., Any], chosen: dict[str, Any]
) -> None:
    examples = noise(53).map(
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor
    )
    ours = network()
    expected = network()
    changes = {"epochs": 3, "batch_size": 10, "learning_rate": 0.01, **chosen}
    train(ours, task_of(ours), examples, work(**changes))
    by_hand(expected, examples, work(**changes), make)
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(
            tensor, expected.state_dict()[name], rtol=1e-12, atol=1e-12, msg=str(chosen)
        )
    assert not torch.equal(ours.state_dict()["1.weight"], network().state_dict()["1.weight"])


@pytest.mark.parametrize(
    ("count", "size", "fewest"), [(53, 10, 1), (51, 10, 2), (50, 10, 1), (7, 0, 1), (3, 10, 1)]
)
def test_steps_are_counted_as_they_are_taken(count: int, size: int, fewest: int) -> None:
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


@given(st.sampled_from(["linear", "cosine"]), st.integers(0, 20), st.integers(1, 200))
def test_rates_rise_to_their_height_then_fall_and_are_never_zero(
    shape: str, warmup: int, count: int
) -> None:
    factors = [schedule_factor(shape, warmup, done, count) for done in range(count)]
    assert all(0.0 < factor <= 1.0 for factor in factors)
    rising = factors[: warmup + 1]
    falling = factors[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    if count > warmup:
        assert factors[warmup] == 1.0


def test_a_cosine_is_that_of_pytorchs_scheduler(subtests: pytest.Subtests) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for rate in [0.3 * schedule_factor("cosine", 0, done, 40) for done in range(40)]:
        with subtests.test(rate=rate):
            assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            scheduler.step()


def test_the_closed_forms_after_a_warm_up() -> None:
    assert [schedule_factor("linear", 2, done, 6) for done in range(6)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]
    )
    cosine = [schedule_factor("cosine", 1, done, 5) for done in range(5)]
    assert cosine == pytest.approx(
        [0.5, 1.0, *((1 + math.cos(math.pi * over / 4)) / 2 for over in (1, 2, 3))]
    )
    assert [schedule_factor("constant", 3, done, 5) for done in range(5)] == [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]
    # A round beyond the last has the rate of the last.
    assert schedule_factor("cosine", 0, 50, 40) == schedule_factor("cosine", 0, 39, 40)


def settings(**changes: object) -> RunSettings:
    return RunSettings.of(
        {"learning-rate": 0.3, **{key.replace("_", "-"): value for key, value in changes.items()}}
    )


def test_constant_is_no_schedule() -> None:
    plain = [learning_rate_in(settings(learning_rate_decay=0.9), number) for number in range(1, 20)]
    constant = settings(schedule="constant", warmup=0, learning_rate_decay=0.9)
    assert [learning_rate_in(constant, number) for number in range(1, 20)] == plain


def test_a_schedule_multiplies_the_decay() -> None:
    chosen = settings(schedule="linear", num_rounds=10, learning_rate_decay=0.5)
    assert learning_rate_in(chosen, 6) == pytest.approx(0.3 * 0.5**5 * 0.5)
    assert chosen.paced
