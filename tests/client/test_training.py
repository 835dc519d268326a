"""Local training against PyTorch's own optimizer, and the measures."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.training import EVALUATION_BATCH, LocalWork, batches, measure, train
from fairbloom.tasks import Examples, Task

from .helpers import fresh, noise, run_config, task_of, work, work_of

WORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.01},
    "both, three epochs": {"momentum": 0.5, "weight_decay": 0.001, "epochs": 3},
    "full batch": {"batch_size": 0, "epochs": 4, "momentum": 0.9},
    "one example a step": {"batch_size": 1, "learning_rate": 0.01},
    "batch larger than the data": {"batch_size": 10_000, "epochs": 2},
}


def some(task: Task) -> Examples:
    """Return a few examples that no batch size divides."""
    return Examples(*task.splits("client-0").train[:53])


def by_torch(model: nn.Module, examples: Examples, todo: LocalWork) -> dict[str, Tensor]:
    """Train a copy with torch.optim.SGD, the proximal term written into the loss; return its weights."""
    ours, received = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.SGD(
        ours.parameters(), lr=todo.learning_rate, momentum=todo.momentum, weight_decay=todo.weight_decay
    )
    for batch in batches(len(examples), todo):
        inputs, targets = examples[batch]
        loss = cross_entropy(ours(inputs), targets)
        if todo.pull:
            pairs = zip(ours.parameters(), received.parameters(), strict=True)
            loss = loss + todo.pull / 2 * sum((x - w.detach()).square().sum() for x, w in pairs)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return ours.state_dict()


@pytest.mark.parametrize("todo", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_local_work_is_torch_sgd_bit_for_bit(name: str, todo: dict[str, Any]) -> None:
    task, model = fresh(run_config(model=name))
    examples = some(task)
    expected = by_torch(model, examples, work(**todo))
    train(model, task, examples, work(**todo))
    for key, weights in model.state_dict().items():
        assert torch.equal(weights, expected[key]), key


@pytest.mark.parametrize("mu", [0.01, 1.0])
@pytest.mark.parametrize("todo", [WORKS["plain"], WORKS["both, three epochs"]], ids=["plain", "all"])
def test_the_proximal_term_is_half_mu_times_the_squared_distance(mu: float, todo: dict[str, Any]) -> None:
    task, model = fresh(run_config(model="mlp"))
    examples, todo = some(task), {**todo, "pull": mu}
    expected = by_torch(model, examples, work(**todo))
    train(model, task, examples, work(**todo))
    for key, weights in model.state_dict().items():
        torch.testing.assert_close(weights, expected[key], rtol=1e-5, atol=1e-6)


def test_a_strong_proximal_term_keeps_the_model_near_the_received_one() -> None:
    distances = []
    for mu in (0.0, 0.5, 5.0):
        task, model = fresh()
        received = copy.deepcopy(model)
        train(model, task, task.splits("client-0").train, work(epochs=5, pull=mu))
        pairs = zip(model.parameters(), received.parameters(), strict=True)
        distances.append(sum((x - w).square().sum().item() for x, w in pairs))
    assert distances[0] > distances[1] > distances[2] > 0.0


def test_parameters_without_gradient_stay_as_they_are() -> None:
    task, model = fresh(run_config(model="mlp"))
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.clone()
    train(model, task, task.splits("client-0").train, work(weight_decay=0.1))
    assert torch.equal(frozen, before)


def test_momentum_starts_afresh_in_every_call() -> None:
    task, model = fresh()
    examples, todo = task.splits("client-0").train, {"momentum": 0.9, "batch_size": 0}
    for _ in range(2):
        expected = by_torch(model, examples, work(**todo))
        train(model, task, examples, work(**todo))
        assert all(torch.equal(weights, expected[key]) for key, weights in model.state_dict().items())


# Batches ------------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 100), size=st.integers(0, 120), epochs=st.integers(1, 3))
def test_every_epoch_meets_every_example_once_in_batches_of_the_size(count: int, size: int, epochs: int) -> None:
    parts = list(batches(count, work(batch_size=size, epochs=epochs)))
    per_epoch = len(parts) // epochs
    for start in range(0, len(parts), per_epoch):
        epoch = parts[start : start + per_epoch]
        assert sorted(torch.cat(epoch).tolist()) == list(range(count))
        assert all(len(part) == (size or count) for part in epoch[:-1])


def order(*, number: int = 1, client: str = "client-0", told: dict[str, Any] | None = None, **config: Any) -> list[int]:
    todo = work_of(run_config(**config), client, told, number)
    return torch.cat(list(batches(50, todo))).tolist()


@pytest.mark.parametrize("change", [{"seed": 1}, {"number": 2}, {"client": "client-1"}], ids=str)
def test_the_order_of_batches_changes_with_seed_round_and_client(change: dict[str, Any]) -> None:
    assert order(**change) != order()


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 0.5}, {"momentum": 0.9}, {"method": "fedfv"}, {"told": {"proximal-mu": 1.0}}, {"batch_size": 7}],
    ids=str,
)
def test_the_order_of_batches_depends_on_nothing_else(change: dict[str, Any]) -> None:
    expected = order()
    torch.rand(3)
    assert order(**change) == expected


def test_the_order_is_another_in_every_epoch() -> None:
    both = order(local_epochs=2)
    assert both[:50] == order()
    assert both[50:] != both[:50]


def test_training_leaves_the_global_generator_untouched() -> None:
    task, model = fresh()
    before = torch.get_rng_state()
    train(model, task, task.splits("client-0").train, work())
    assert torch.equal(torch.get_rng_state(), before)


# Measures -----------------------------------------------------------------------------------------------------------


def test_measures_are_means_over_all_examples_however_many() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    examples = noise(2 * EVALUATION_BATCH + 17)
    loss, accuracy = measure(model, task_of(model), examples)
    outputs = model(examples.inputs)
    assert loss == pytest.approx(cross_entropy(outputs.double(), examples.targets).item(), rel=1e-6)
    assert accuracy == (outputs.argmax(dim=1) == examples.targets).double().mean().item()


def test_measures_are_taken_in_eval_mode_and_training_in_train_mode() -> None:
    norm = nn.BatchNorm1d(16)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), norm, nn.Linear(16, 3))
    task, examples = task_of(model), noise(40)
    assert measure(model, task, examples) == measure(model, task, examples)
    assert norm.num_batches_tracked == 0
    train(model, task, examples, work())
    assert norm.num_batches_tracked == 4
