"""Local training by the optimizers of torch.optim, with schedules, class weights and mixed precision: as by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fairbloom.client.class_weights import class_table
from fairbloom.client.plan import global_work
from fairbloom.client.rules.personal import PersonalModel
from fairbloom.client.training import batches, count_steps, train
from fairbloom.client.work import LocalWork, run_work, step_by
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.schedules import Schedule
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Examples
from fairbloom.tasks.optimizers import ELEMENTWISE, OptimizerChoice

from .helpers import noise, task_of, work

ROUND = Terms(server_round=1)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def doubled(count: int = 53) -> Examples:
    return noise(count).map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def by_hand(
    model: nn.Module,
    examples: Examples,
    todo: LocalWork,
    make: Callable[[Any], Optimizer],
    weight: Tensor | None = None,
    factor: Callable[[int], float] = lambda done: 1.0,
) -> None:
    """Train as one writes it in PyTorch: an optimizer, a scheduler, clipping and a weighted loss."""
    optimizer = make(model.parameters())
    scheduler = LambdaLR(optimizer, factor)
    loss_of = nn.CrossEntropyLoss(weight=weight)
    for batch in batches(len(examples), todo):
        inputs, targets = examples[batch]
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        if todo.gradient_clip:
            nn.utils.clip_grad_norm_(model.parameters(), todo.gradient_clip)
        optimizer.step()
        scheduler.step()


def assert_close(ours: nn.Module, expected: nn.Module, tolerance: float = 1e-12) -> None:
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=tolerance, atol=tolerance)


def both(make: Callable[[Any], Optimizer], **changes: Any) -> None:
    """Assert that our training is that by hand; `weight` and `factor` are for the latter."""
    weight, factor = changes.pop("weight", None), changes.pop("factor", lambda done: 1.0)
    ours, expected, examples = network(), network(), doubled()
    plain = {"epochs": 3, "batch_size": 10, "learning_rate": 0.01}
    train(ours, task_of(ours), examples, work(**plain | changes))
    by_hand(expected, examples, work(**plain | changes), make, weight, factor)
    assert_close(ours, expected)
    assert not torch.equal(ours.state_dict()["1.weight"], network().state_dict()["1.weight"])


OF_PYTORCH = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
}


@pytest.mark.slow
def test_pytorchs_optimizers_take_the_steps_made_by_hand() -> None:
    for name, make in OF_PYTORCH.items():
        both(make, optimizer=OptimizerChoice(name), weight_decay=0.1, gradient_clip=0.2)


def test_parameters_of_an_optimizer_reach_it() -> None:
    nesterov = OptimizerChoice("sgd", (("nesterov", True),))
    both(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True), optimizer=nesterov, momentum=0.9)
    adamw = OptimizerChoice("adamw", (("betas", (0.5, 0.6)), ("eps", 0.1), ("amsgrad", True)))
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.5, 0.6), "eps": 0.1, "amsgrad": True, "weight_decay": 0.0}
    both(lambda p: torch.optim.AdamW(p, **options), optimizer=adamw)


def test_a_schedule_over_the_steps_is_that_of_a_scheduler() -> None:
    course, steps = Schedule("cosine", 4), 3 * 6
    for name, kind in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)):
        both(
            lambda p, kind=kind: kind(p, lr=0.01, weight_decay=0.0),
            optimizer=OptimizerChoice(name),
            schedule=course,
            factor=lambda done: course.factor(done, steps),
        )


def test_a_share_of_the_rate_is_that_share_of_the_step() -> None:
    """Stacked clients scale the steps, since an optimizer has one rate for all of them."""
    torch.manual_seed(5)
    start, gradients = torch.randn(7, dtype=torch.float64), torch.randn(6, 7, dtype=torch.float64)
    for name in sorted(ELEMENTWISE):
        choice, shares = OptimizerChoice(name), [1.0, 0.7, 0.4, 0.9, 0.2, 0.1]
        rates = {"momentum": 0.9 if name == "sgd" else 0.0, "weight_decay": 0.0 if name == "rprop" else 0.1}
        by_rate, by_share = start.clone().requires_grad_(), start.clone().requires_grad_()
        scheduled = choice.make([by_rate], learning_rate=0.1, **rates)
        scaled = choice.make([by_share], learning_rate=0.1, **rates)
        for gradient, share in zip(gradients, shares, strict=True):
            before = by_share.detach().clone()
            step_by(scheduled, [by_rate], [gradient.clone()], 0.1 * share)
            step_by(scaled, [by_share], [gradient.clone()], 0.1)
            with torch.no_grad():
                by_share.copy_(before.lerp(by_share, share))
        assert torch.allclose(by_rate, by_share, rtol=1e-12, atol=1e-14) == choice.is_in_proportion, name


def test_steps_are_counted_as_they_are_taken() -> None:
    for count, size, fewest in ((53, 10, 1), (51, 10, 2), (50, 10, 1), (7, 0, 1), (3, 10, 1)):
        todo = work(epochs=3, batch_size=size)
        assert count_steps(count, todo, fewest) == len(list(batches(count, todo, fewest)))
        assert count_steps(count, replace(todo, steps=5), fewest) == 5


# Class weights --------------------------------------------------------------------------------------------------------


def test_class_weights_are_those_of_pytorchs_loss() -> None:
    weight = torch.tensor([0.3, 1.0, 5.0], dtype=torch.float64)
    both(lambda p: torch.optim.SGD(p, lr=0.01), class_weights="0=0.3,2=5", weight=weight)
    both(lambda p: torch.optim.SGD(p, lr=0.01), class_weights="0=2,1=2,2=2")


def test_balanced_weights_are_by_the_clients_own_counts() -> None:
    examples = doubled()
    counts = torch.bincount(examples.targets, minlength=3)
    table = class_table("balanced", task_of(network()), examples)
    assert table is not None
    torch.testing.assert_close(table, len(examples) / (3 * counts).double())
    both(lambda p: torch.optim.SGD(p, lr=0.01), class_weights="balanced", weight=1.0 / counts.double())


def test_only_the_classes_and_rows_of_a_split_count() -> None:
    for targets, rows, expected in (
        ([0, 2, 2, 2], None, {0: 2.0, 2: 4 / 6}),
        ([0, 1, 1, 1, 0, 0], 4, {0: 2.0, 1: 4 / 6}),
    ):
        inputs, which = torch.zeros(len(targets), 1), None if rows is None else torch.arange(rows)
        table = class_table("balanced", task_of(network()), Examples(inputs, torch.tensor(targets), which))
        assert table is not None
        assert [table[place].item() for place in expected] == pytest.approx(list(expected.values()))


def test_classes_are_named_where_they_have_names() -> None:
    named = replace(task_of(network()), classes=3, class_names=("no", "perhaps", "yes"))
    table = class_table("no=0.3,yes=1.7", named, doubled())
    assert table is not None
    torch.testing.assert_close(table, torch.tensor([0.3, 1.0, 1.7]).double(), rtol=1e-6, atol=0.0)
    with pytest.raises(ReportableError, match=r"class-weights = 'maybe=2': there is no class 'maybe'; .*perhaps"):
        class_table("maybe=2", named, doubled())
    with pytest.raises(ReportableError, match="there is no class '3'; there are numbers from 0 to 2"):
        class_table("3=2", replace(named, class_names=()), doubled())


def test_targets_that_are_no_classes_have_no_weights() -> None:
    for targets in (torch.zeros(4), torch.zeros(4, 2, dtype=torch.int64)):
        with pytest.raises(ReportableError, match=r"class-weights = 'balanced': .* are no classes"):
            class_table("balanced", task_of(network()), Examples(torch.zeros(4, 1), targets))


# Mixed precision ------------------------------------------------------------------------------------------------------


def test_bfloat16_is_autocast_with_the_loss_in_full() -> None:
    ours, expected = network(torch.float32), network(torch.float32)
    examples, todo = noise(53), {"epochs": 2, "precision": "bfloat16"}
    train(ours, task_of(ours), examples, work(**todo))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for batch in batches(len(examples), work(**todo)):
        inputs, targets = examples[batch]
        with torch.autocast("cpu", torch.bfloat16):
            outputs = expected(inputs)
        optimizer.zero_grad()
        cross_entropy(outputs.float(), targets).backward()
        optimizer.step()
    assert_close(ours, expected, 1e-6)
    full = network(torch.float32)
    train(full, task_of(full), examples, work(epochs=2))
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.parameters(), full.parameters(), strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())


def test_a_model_that_is_not_float32_has_no_mixed_precision() -> None:
    model = network()
    with pytest.raises(ReportableError, match=r"precision = 'bfloat16' .* has torch\.float64: leave precision out"):
        train(model, task_of(model), doubled(), work(precision="bfloat16"))


# An optimizer of one's own --------------------------------------------------------------------------------------------


class Signs(Optimizer):
    """Moves each number by the sign of its gradient."""

    def __init__(self, params: Any, lr: float = 0.1, *, scale: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * group["scale"] * parameter.grad.sign())


def returning_a_list(params: Sequence[Any], lr: float = 0.1) -> list[Any]:
    return list(params)


def test_an_optimizer_of_ones_own_is_named_by_its_import_string() -> None:
    choice = OptimizerChoice(f"{__name__}:Signs", (("scale", 0.5),))
    both(lambda p: Signs(p, lr=0.01, scale=0.5), optimizer=choice)


def test_what_makes_no_optimizer_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"returning_a_list'.* makes a list; it must make a torch"):
        OptimizerChoice(f"{__name__}:returning_a_list").make([], learning_rate=0.1)


# What settings and terms make of it -----------------------------------------------------------------------------------


def test_personal_models_are_trained_as_the_global_one_is() -> None:
    chosen: dict[str, Any] = {"optimizer": "adamw", "weight-decay": 0.1, "class-weights": "balanced"}
    chosen |= {"schedule": "cosine", "schedule-over": "steps", "precision": "bfloat16", "gradient-clip": 1.0}
    settings = RunSettings.of(chosen)
    ours = PersonalModel(replace(ROUND, personal_lambda=0.5)).after(run_work(settings, 1))
    assert ours == replace(global_work(settings, ROUND), pull=0.5, in_full=True)


def test_personal_sgd_stays_plain_without_further_parameters() -> None:
    for parameters, kept in (("", (0.0, 0.0)), ("nesterov=true", (0.9, 0.1))):
        settings = RunSettings.of({"momentum": 0.9, "weight-decay": 0.1, "optimizer-parameters": parameters})
        ours = PersonalModel(replace(ROUND, personal_lambda=0.5)).after(run_work(settings, 1))
        assert (ours.momentum, ours.weight_decay) == kept


def test_a_step_that_gives_a_gradient_is_one_of_plain_sgd() -> None:
    asked = replace(ROUND, full_batch_step=True)
    wrong: dict[str, Any] = {
        "optimizer": "adam",
        "optimizer-parameters": "nesterov=true",
        "momentum": 0.9,
        "gradient-clip": 1.0,
    }
    for key, value in (
        wrong | {"class-weights": "balanced", "precision": "bfloat16", "schedule-over": "steps"}
    ).items():
        with pytest.raises(ReportableError, match=f"full-batch-step = True .*: leave out {key} = "):
            global_work(RunSettings.of({key: value}), asked)
    assert global_work(RunSettings.of({"weight-decay": 0.1}), asked).weight_decay == 0.1


def test_a_servers_momentum_needs_an_optimizer_that_has_one() -> None:
    model, asked = network(torch.float32), replace(ROUND, client_momentum=0.9)
    todo = replace(global_work(RunSettings.of({"optimizer": "adam"}), asked), random=np.random.default_rng(0))
    with pytest.raises(ReportableError, match=r"momentum = 0\.9 has no effect with optimizer = 'adam'"):
        train(model, task_of(model), noise(20), todo)
