"""Local training against PyTorch's own optimizer, and the measures.

Local training by SGD, Adam, AdamW and a user's own optimizer: as by hand in PyTorch.

Schedules of the learning rate against their closed forms, and against PyTorch's.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations
from torch.optim import Optimizer

from fairbloom.client.local import LocalClient, load_task_and_model
from fairbloom.client.local_round import train_client
from fairbloom.client.plan import global_work
from fairbloom.client.rules.personal import PersonalModel
from fairbloom.client.training import EVALUATION_BATCH, check_hidden_state, measure, train
from fairbloom.client.work import (
    LocalWork,
    batches,
    count_rows,
    count_steps,
    run_work,
)
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Examples, Task

from . import nets
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


def by_torch(
    model: nn.Module, task: Task, examples: Examples, todo: LocalWork
) -> dict[str, Tensor]:
    """Train a copy as a user writes it by hand, with torch.optim.SGD; return its weights.

    A last batch of one example is left out where there is BatchNorm. The optimizer's two ways, of
    which `foreach` is one, differ by a rounding in float16 alone.
    """
    ours = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(
        ours.parameters(),
        lr=todo.learning_rate,
        momentum=todo.momentum,
        weight_decay=todo.weight_decay,
        foreach=True,
    )
    trainable = [parameter for parameter in ours.parameters() if parameter.requires_grad]
    received = [tensor.detach().clone() for tensor in trainable]
    fewest = 2 if any("BatchNorm" in type(module).__name__ for module in ours.modules()) else 1
    with torch.random.fork_rng():
        torch.manual_seed(todo.draws)
        for batch in (each for each in batches(len(examples), todo) if len(each) >= fewest):
            inputs, targets = examples[batch]
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(ours(inputs), targets).mean())
            for parameter, start in zip(trainable, received, strict=True):
                if todo.pull and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=todo.pull)
            if todo.gradient_clip:
                torch.nn.utils.clip_grad_norm_(trainable, todo.gradient_clip)
            optimizer.step()
    return ours.state_dict()


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        *((name, todo) for name in ("mlp", "logistic") for todo in WORKS.values()),
        ("mlp", {**WORKS["plain"], "pull": 0.01}),
        ("mlp", {**WORKS["both, three epochs"], "pull": 1.0}),
    ],
)
def test_local_work_is_torch_sgd_bit_for_bit(name: str, todo: dict[str, Any]) -> None:
    """Up to rounding with a proximal term."""
    task, model = fresh(run_config(model=name))
    examples = some(task)
    expected = by_torch(model, task, examples, work(**todo))
    train(model, task, examples, work(**todo))
    for key, weights in model.state_dict().items():
        if "pull" in todo:
            torch.testing.assert_close(weights, expected[key], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(weights, expected[key]), (name, todo, key)


CLIPPED: list[dict[str, Any]] = [
    {},
    {"pull": 2.0, "weight_decay": 0.1, "momentum": 0.9, "epochs": 2},
]


@pytest.mark.parametrize(("clip", "changes"), [(0.2, True), (1e6, False)])
@pytest.mark.parametrize(("name", "todo"), [*itertools.product(("logistic", "mlp"), CLIPPED)])
def test_clipping_is_torchs_between_backward_and_step(
    name: str, todo: dict[str, float], clip: float, changes: bool
) -> None:
    task, model = fresh(run_config(model=name))
    received = model.double()
    examples = some(task)
    examples = Examples(examples[:][0].double(), examples[:][1])
    ours = copy.deepcopy(received)
    free = copy.deepcopy(received)
    expected = by_torch(ours, task, examples, work(**todo, gradient_clip=clip))
    train(ours, task, examples, work(**todo, gradient_clip=clip))
    train(free, task, examples, work(**todo))
    for key, weights in ours.state_dict().items():
        torch.testing.assert_close(weights, expected[key], rtol=1e-10, atol=1e-12)
        assert torch.allclose(weights, free.state_dict()[key], rtol=1e-10, atol=1e-12) != changes


EVERYTHING: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "pull": 0.5, "epochs": 2}


@pytest.mark.parametrize(("net", "todo"), [*itertools.product(nets.USABLE, ({}, EVERYTHING))])
def test_whatever_the_model_a_step_is_torch_sgds_bit_for_bit(
    net: type, todo: dict[str, float]
) -> None:
    task, model = fresh(run_config(model=f"{nets.__name__}:{net.__name__}"))
    expected = by_torch(model, task, some(task), work(**todo, draws=3))
    train(model, task, some(task), work(**todo, draws=3))
    found = model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), net


def test_a_personal_model_keeps_frozen_layers() -> None:
    client = LocalClient.of(RunSettings.of(run_config(model=f"{nets.__name__}:Frozen")), 0)
    received = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    train_client(client, received, Terms(server_round=1, personal_lambda=0.5, personal_epochs=2))
    # the model is the personal one now
    assert {
        name
        for name, tensor in client.model.state_dict().items()
        if torch.equal(tensor, received[name])
    } == {name for name in received if name.startswith("first")}
    assert client.personal(before=2).state.keys() == {
        name for name in received if not name.startswith("first")
    }


def test_training_leaves_no_gradients_behind_even_when_it_fails() -> None:
    class Failing(nn.Module):
        """Fails in its second forward pass, and in the backward pass of a third."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 3)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("out of memory")
            return self.layer(x.flatten(1))  # type: ignore[no-any-return]

    model = Failing()
    expected = copy.deepcopy(model)
    expected.calls = 3
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, task_of(model), noise(40), work())
    assert [parameter.grad for parameter in model.parameters()] == [None, None]
    model.load_state_dict(expected.state_dict())
    # as an interrupted backward pass may leave it
    model.layer.weight.grad = torch.full((3, 16), 1e9)
    for each in (model, expected):
        train(each, task_of(each), noise(40), work())
    assert torch.equal(model.layer.weight, expected.layer.weight)


# Batches ------------------------------------------------------------------------------------------


@given(count=st.integers(1, 100), size=st.integers(0, 120), epochs=st.integers(1, 3))
def test_every_epoch_meets_every_example_once_in_batches(
    count: int, size: int, epochs: int
) -> None:
    parts = list(batches(count, work(batch_size=size, epochs=epochs)))
    per_epoch = len(parts) // epochs
    each = [parts[start : start + per_epoch] for start in range(0, len(parts), per_epoch)]
    assert all(sorted(torch.cat(epoch).tolist()) == list(range(count)) for epoch in each)
    assert all(len(part) == (size or count) for epoch in each for part in epoch[:-1])


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def test_batchnorm_skips_a_last_batch_of_one_example() -> None:
    model = normed()
    train(model, task_of(model), noise(41), work(epochs=3))
    assert model[2].num_batches_tracked == 3 * 4  # type: ignore[index, union-attr]
    met = [
        set(torch.cat(list(batches(41, work(random=np.random.default_rng(k)), 2))).tolist())
        for k in range(3)
    ]
    assert [len(each) for each in met] == [40, 40, 40]
    assert set.union(*met) == set(range(41))


def test_batchnorm_in_evaluation_needs_no_second_example() -> None:
    class Still(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Still":
            return super().train(False)

    model = nn.Sequential(nn.Flatten(), Still(16), nn.Linear(16, 3))
    train(model, task_of(model), noise(1), work())
    assert model[1].num_batches_tracked == 0  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("count", "size", "steps"), [(1, 10, None), (1, 0, 5), (30, 1, None), (30, 1, 5)]
)
def test_batchnorm_with_single_examples_is_refused_with_a_remedy(
    count: int, size: int, steps: int | None
) -> None:
    model = normed()
    with pytest.raises(
        FairbloomError,
        match=rf"1 example here, of {count} .* BatchNorm .* batch-size.*GroupNorm",
    ):
        train(model, task_of(model), noise(count), work(batch_size=size, steps=steps))


def test_what_cannot_be_trained_at_all_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(FairbloomError, match="no training example here"):
        train(model, task_of(model), noise(0), work())
    with pytest.raises(FairbloomError, match="Sequential, has no parameter to train"):
        train(model.requires_grad_(False), task_of(model), noise(20), work())


def draws(
    number: int = 1, client: str = "client-0", asked: dict[str, Any] | None = None, **config: Any
) -> list[int]:
    """Return the seed of dropout, and the order of the examples."""
    todo = work_of(run_config(**config), client, asked, number)
    return [todo.draws, *torch.cat(list(batches(50, todo))).tolist()]


def test_what_is_drawn_goes_by_seed_round_and_client(subtests: pytest.Subtests) -> None:
    expected = draws()
    for change in ({"seed": 1}, {"number": 2}, {"client": "client-1"}):
        with subtests.test(change=change):
            found = draws(**change)  # type: ignore[arg-type]
            assert found[0] != expected[0], change
            assert found[1:] != expected[1:], change
    torch.rand(3)
    works: list[dict[str, Any]] = [
        {"learning_rate": 0.5},
        {"momentum": 0.9},
        {"method": "fedfv"},
        {"batch_size": 7},
    ]
    changes = (*works, {"asked": {"proximal-mu": 1.0}})
    assert [change for change in changes if draws(**change) != expected] == []
    both = draws(local_epochs=2)
    assert both[: len(expected)] == expected
    assert both[len(expected) :] != expected[1:]


# Dropout ------------------------------------------------------------------------------------------


def test_a_model_that_draws_in_evaluation_is_measured_alike() -> None:
    class Always(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand(len(x), 3)

    model = Always()
    torch.rand(1)
    before = torch.get_rng_state()
    assert measure(model, task_of(model), noise(40)) == measure(model, task_of(model), noise(40))
    assert torch.equal(torch.get_rng_state(), before)


# Measures -----------------------------------------------------------------------------------------


def test_measures_are_means_over_all_examples_however_many() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    examples = noise(2 * EVALUATION_BATCH + 17)
    measured = measure(model, task_of(model), examples)
    outputs = model(examples.inputs)
    assert measured["loss"] == pytest.approx(
        cross_entropy(outputs.double(), examples.targets).item(), rel=1e-6
    )
    assert (
        measured["accuracy"] == (outputs.argmax(dim=1) == examples.targets).double().mean().item()
    )


def test_measures_are_taken_in_eval_mode() -> None:
    norm = nn.BatchNorm1d(16)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), norm, nn.Linear(16, 3))
    task = task_of(model)
    examples = noise(40)
    assert measure(model, task, examples) == measure(model, task, examples)
    assert norm.num_batches_tracked == 0
    train(model, task, examples, work())
    assert norm.num_batches_tracked == 4


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


@given(count=st.integers(1, 60), size=st.integers(0, 60), smallest=st.integers(1, 20))
def test_a_small_last_batch_joins_the_one_before(count: int, size: int, smallest: int) -> None:
    """An epoch has all examples, each once; only its last batch may have another size."""
    todo = work(epochs=1, batch_size=size, smallest_batch=smallest)
    steps = list(batches(count, todo))
    sizes = [len(each) for each in steps]
    assert sorted(torch.cat(steps).tolist()) == list(range(count))
    whole = min(size or count, count)
    assert set(sizes[:-1]) <= {whole}
    rest = count % whole
    assert sizes[-1] == (rest if rest >= smallest else whole + rest)
    for taken in range(len(steps) + 1):
        assert count_rows(count, todo, taken) == sum(sizes[:taken])


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
    todo = replace(
        global_work(RunSettings.of({"optimizer": "adam"}), replace(ROUND, client_momentum=0.9)),
        random=np.random.default_rng(0),
    )
    with pytest.raises(
        ReportableError, match=r"momentum = 0\.9 has no effect with optimizer = 'adam'"
    ):
        train(model, task_of(model), noise(20), todo)


# What a model keeps from one batch to the next ----------------------------------------------------

COUNT = itertools.count(1)
DRAWS = np.random.default_rng(0)


class Keeping(nn.Module):
    # A layer after a function of the inputs, which may use `inner`, and `kept` from batch to batch.

    def __init__(
        self, use: Callable[[Any, Tensor], Tensor], kept: Any = None, inner: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.use = use
        self.kept = kept
        self.inner = inner or nn.Identity()
        self.last = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.use(self, images.flatten(1)[:, :16]))  # type: ignore[no-any-return]


def buffered(persistent: bool) -> nn.Module:
    model = Keeping(averaged)
    del model.kept
    model.register_buffer("kept", torch.zeros(16), persistent=persistent)
    return model


def plain(model: Keeping, x: Tensor) -> Tensor:
    return model.inner(x)  # type: ignore[no-any-return]


def recurrent(model: Keeping, x: Tensor) -> Tensor:
    return model.inner(x.unsqueeze(0))[0][0]  # type: ignore[no-any-return]


def averaged(model: Keeping, x: Tensor) -> Tensor:
    model.kept = 0.9 * model.kept + 0.1 * x.mean(0)
    return x - model.kept


def centred(model: Keeping, x: Tensor) -> Tensor:
    # Use the mean of earlier batches in evaluation alone.
    if model.training:
        model.kept = 0.9 * model.kept + 0.1 * x.mean(0)
    return x - (x.mean(0) if model.training else model.kept)


def listed(model: Keeping, x: Tensor, scale: float = 1.0) -> Tensor:
    model.kept.append(float(x.max()))
    return x * (1.0 + scale * len(model.kept))


def counted(model: Keeping, x: Tensor) -> Tensor:
    # Change the gradient of the layer before, and not the loss.
    model.kept = count = model.kept + 1
    hidden = plain(model, x)
    hidden.register_hook(lambda slope: slope * (1.0 + 1e-4 * count))
    return hidden


def switched(model: Keeping, x: Tensor) -> Tensor:
    # Train the layer before from the second batch on.
    model.kept += 1
    return plain(model, x) if model.kept > 1 else x


def warmed(model: Keeping, x: Tensor) -> Tensor:
    model.kept += 1
    return x * (1.0 if model.kept <= 3 else 2.0)


def attended(model: Keeping, x: Tensor) -> Tensor:
    model.kept = torch.softmax(x, 1)
    return x * model.kept


def listing() -> nn.Module:
    return Keeping(listed, [])


def check_state(make: Callable[[], nn.Module]) -> None:
    model = make()
    check_hidden_state(model, replace(task_of(model), model=make), noise(10))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Keeping(averaged, torch.zeros(16)), "'kept'"),
        (lambda: Keeping(centred, torch.zeros(16)), "'kept'"),
        (listing, "'kept'"),
        (lambda: Keeping(counted, 0, nn.Linear(16, 16)), "'kept'"),
        (lambda: Keeping(lambda model, x: x / vars(model).setdefault("first", x.std())), "'first'"),
        (lambda: nn.Sequential(listing(), nn.Linear(10, 10)), r"'0\.kept'"),
        (lambda: buffered(persistent=False), "'kept'"),
        (
            lambda: Keeping(
                lambda model, x: x * torch.rand(16, generator=model.kept), torch.Generator()
            ),
            "'kept'",
        ),
        (lambda: Keeping(switched, 0, nn.Linear(16, 16)), "'kept'"),
        (lambda: Keeping(warmed, 0), "'kept'"),
    ],
)
def test_state_that_changes_a_later_result_is_named(
    make: Callable[[], nn.Module], named: str
) -> None:
    with pytest.raises(ReportableError, match=rf"keeps {named} outside its .*register_buffer"):
        check_state(make)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(
    "make",
    [
        lambda: buffered(persistent=True),
        lambda: Keeping(recurrent, inner=nn.GRU(16, 16)),
        lambda: Keeping(recurrent, inner=nn.LSTM(16, 16)),
        lambda: Keeping(plain, inner=parametrizations.weight_norm(nn.Linear(16, 16))),
        lambda: Keeping(plain, inner=nn.utils.weight_norm(nn.Linear(16, 16))),
        lambda: Keeping(plain, inner=parametrizations.spectral_norm(nn.Linear(16, 16))),
        lambda: Keeping(plain, inner=nn.utils.spectral_norm(nn.Linear(16, 16))),
        lambda: Keeping(plain, inner=nn.Sequential(nn.BatchNorm1d(16), nn.Dropout())),
        lambda: Keeping(attended),
        lambda: Keeping(
            lambda model, x: x * vars(model).setdefault("wave", torch.arange(16.0).cos())
        ),
        lambda: Keeping(partial(listed, scale=1e-7), []),
        lambda: Keeping(lambda model, x: x * next(COUNT)),
        lambda: Keeping(lambda model, x: x * DRAWS.integers(0, 2)),
    ],
)
def test_state_that_changes_no_result_may_be_kept(make: Callable[[], nn.Module]) -> None:
    check_state(make)


@pytest.mark.parametrize("shared", [False, True])
def test_the_check_for_state_changes_no_model_and_draws_nothing(shared: bool) -> None:
    model = Keeping(plain, [], nn.BatchNorm1d(16))
    before = copy.deepcopy(model.state_dict())
    drawn_before = torch.get_rng_state()
    made = model if shared else copy.deepcopy(model)
    check_hidden_state(model, task_of(made), noise(10))
    assert torch.equal(torch.get_rng_state(), drawn_before)
    assert all(torch.equal(array, before[name]) for name, array in model.state_dict().items())


@pytest.mark.parametrize(
    "load", [load_task_and_model, lambda settings: LocalClient.of(settings, 1)]
)
def test_engines_and_devices_check_a_model_for_state(load: Callable[[Any], object]) -> None:
    with pytest.raises(ReportableError, match="keeps 'kept' outside its state_dict"):
        load(RunSettings.of(run_config(task="digits", model=f"{__name__}:listing")))
