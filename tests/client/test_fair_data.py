"""What `fair` takes for the model and the training data of a call, what it refuses, and what a client draws."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fairbloom.client.fair import fair
from fairbloom.rounds.round import Round
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedAvg, FedFV, FedProx, QFedAvg

from .test_fair import BATCHES, EXAMPLES, RATE, Point, app_of, ask, context, loss_at, steps, train_point, trained
from .test_fair import test_point as measure_point

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

POINTS = TensorDataset(EXAMPLES)
LOADER = DataLoader(POINTS, batch_size=2)
MEASURED = {"measure": ["loss-before"]}


def app_with(*data: Any, train: Callable[..., Any], test: Callable[..., Any] = measure_point, **how: Any) -> ClientApp:
    """Return an app whose training function is called with a model and these arguments."""
    app = fair(train, test, **how)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        model = Point()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        app.train_fn(model, *data)
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


# The training data ----------------------------------------------------------------------------------------------------


def train_on_examples(model: nn.Module, dataset: Any, other: Any = None) -> float:
    return train_point(model, DataLoader(dataset, batch_size=2), 1)


ITERABLE = type("Iterable", (IterableDataset,), {"__iter__": lambda self: iter([(EXAMPLES[0],)])})()


def test_training_data_of_the_user_are_measured() -> None:
    seen: list[Any] = []

    def load(where: Context) -> DataLoader[Any]:
        seen.append(where.node_config["name"])
        return LOADER

    app = app_with(POINTS, train=train_on_examples, training_data=load)
    content = ask(app, told={"measure": ["loss-before", "loss-after"]}, where=context(name="a"))
    metrics = content.metric_records["metrics"]
    assert metrics["loss-before"] == pytest.approx(loss_at(0.0), rel=1e-12)
    assert metrics["loss-after"] == pytest.approx(loss_at(trained(content)), rel=1e-12)
    assert set(seen) == {"a"}


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        ((POINTS,), {}, "measure = loss-before needs one DataLoader .* there is none: give .*training_data="),
        ((LOADER, DataLoader(POINTS)), {}, "there is dataset, other: .*training_data="),
        ((POINTS,), {"training_data": lambda where: POINTS}, "there is none"),
        ((DataLoader(ITERABLE),), {}, "there is dataset: "),
        ((DataLoader(POINTS, batch_size=None),), {}, "there is dataset: "),
        ((DataLoader(TensorDataset(EXAMPLES[:0])),), {}, "a dataset with a length above 0"),
    ],
)
def test_data_that_cannot_be_found_are_asked_for(data: Any, how: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_with(*data, train=train_on_examples, **how), told=MEASURED)


def test_two_loaders_suffice_where_nothing_is_measured() -> None:
    def train(model: nn.Module, loader: Any, other: Any) -> float:
        return train_point(model, loader, 1)

    content = ask(app_with(LOADER, DataLoader(POINTS), train=train), told={"proximal-mu": 0.7})
    assert trained(content) == pytest.approx(steps(BATCHES, mu=0.7), rel=1e-12)


# The test function ----------------------------------------------------------------------------------------------------


def means(model: nn.Module, loader: Any) -> list[Tensor]:
    return [model(batch) for (batch,) in loader]


TESTS: dict[str, Callable[..., tuple[float, float]]] = {
    "mean over examples": lambda model, loader: (
        float(sum(model(batch) * len(batch) for (batch,) in loader)) / len(loader.dataset),
        0.5,
    ),
    "mean over batches": lambda model, loader: (float(sum(means(model, loader))) / len(loader), 0.5),
    "sum over batches": lambda model, loader: (float(sum(means(model, loader))), 0.5),
}


@pytest.mark.parametrize("name", TESTS)
def test_each_kind_of_mean_is_the_mean_over_all_examples(name: str) -> None:
    found = ask(app_of(test=TESTS[name]), told=MEASURED).metric_records["metrics"]["loss-before"]
    assert found == pytest.approx(loss_at(0.0), rel=1e-12)


@pytest.mark.parametrize("factor", [lambda n: n, lambda n: 1 / n], ids=["sum over examples", "divided twice"])
def test_a_loss_that_is_no_mean_is_refused_with_both_numbers(factor: Callable[[int], float]) -> None:
    def test(model: nn.Module, loader: Any) -> tuple[float, float]:
        return float(sum(means(model, loader))) * factor(len(loader.dataset)), 0.5

    once, twice = (loss_at(0.0) * factor(n) for n in (5, 10))
    with pytest.raises(ValueError, match=rf"must return the mean .*{once:.6g} for 5 examples, and {twice:.6g}"):
        ask(app_of(test=test), told=MEASURED)


def test_the_mean_is_checked_once_for_each_client() -> None:
    sizes: list[int] = []

    def test(model: nn.Module, loader: Any) -> tuple[float, float]:
        sizes.append(len(loader.dataset))
        return measure_point(model, loader)

    app = app_of(test=test)
    for name in ("a", "a", "b"):
        ask(app, told=MEASURED, where=context(name=name))
    assert sizes == [5, 10, 2, 2, 1, 2, 2, 1, 5, 10, 2, 2, 1]


# The model ------------------------------------------------------------------------------------------------------------


class Wide(Point):
    """A model with other arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("other", [Wide(), Point().requires_grad_(False), nn.MSELoss()])
def test_the_model_is_the_one_that_fits_and_is_trained(other: nn.Module) -> None:
    def train(student: nn.Module, loader: Any, other: nn.Module) -> float:
        return train_point(student, loader, 1)

    content = ask(app_with(LOADER, other, train=train), told={"proximal-mu": 0.7, **MEASURED})
    assert trained(content) == pytest.approx(steps(BATCHES, mu=0.7), rel=1e-12)
    assert content.metric_records["metrics"]["loss-before"] == pytest.approx(loss_at(0.0), rel=1e-12)


def test_models_that_cannot_be_told_apart_are_named() -> None:
    def train(student: nn.Module, loader: Any, teacher: nn.Module) -> float:
        return train_point(student, loader, 1)

    with pytest.raises(ValueError, match=r"was called with the models student, teacher"):
        ask(app_with(LOADER, Point(), train=train), told=MEASURED)
    with pytest.raises(ValueError, match=r"no torch\.nn\.Module with trained parameters"):
        ask(app_of(lambda model, loader, epochs: 0.0, model=lambda: Point().requires_grad_(False)), told=MEASURED)


@pytest.mark.parametrize("name", ["a ViT's head", "a ViT's head by Trainer", "peft, own loop", "peft by Trainer"])
def test_a_part_of_a_model_travels_under_any_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from .hugging_face import CASES

    monkeypatch.chdir(tmp_path)  # Trainer makes a folder for its outputs
    case = CASES[name]
    start = ArrayRecord(dict(case.sent(case.net())))

    def moved(method: FairStrategy) -> float:
        rounds: list[Round] = []
        method.start(InProcessGrid(case.app(), {}, 2), start, num_rounds=1, on_round=rounds.append)
        assert rounds[0].refused == {}
        assert list(rounds[0].arrays) == list(start)
        return sum(
            float(np.square(array.numpy() - start[key].numpy()).sum()) for key, array in rounds[0].arrays.items()
        )

    assert 0.0 < moved(FedProx(mu=1.0)) < moved(FedAvg())
    assert moved(FedFV()) > 0.0


# The proximal term of the user's own ----------------------------------------------------------------------------------


def test_a_client_with_its_own_proximal_term_adds_it_once() -> None:
    app = fair(train_point, measure_point)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        model, mu = Point(), float(message.content.config_records["config"]["proximal-mu"])  # type: ignore[arg-type]
        received = model.x.detach().clone()
        model.forward = lambda batch: Point.forward(model, batch) + mu / 2 * (model.x - received).square().sum()  # type: ignore[method-assign]
        app.train_fn(model, LOADER, 2)
        metrics = MetricRecord({"num-examples": 5, "mu": mu})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    content = ask(app, told={"proximal-mu": 0.7})
    assert trained(content) == pytest.approx(steps(BATCHES * 2, mu=0.7), rel=1e-12)
    assert content.metric_records["metrics"]["mu"] == 0.0


# What a client draws ----------------------------------------------------------------------------------


def drawing(model: nn.Module, loader: Any, epochs: int) -> float:
    DRAWN.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
    return train_point(model, loader, epochs)


DRAWN: list[tuple[float, float, float]] = []


def draws(told: dict[str, Any], name: str = "a", **how: Any) -> tuple[float, float, float]:
    ask(app_of(drawing, **how), told=told, where=context(name=name))
    return DRAWN[-1]


def test_draws_depend_on_client_round_and_the_strategys_seed() -> None:
    places = [({}, "a"), ({}, "b"), ({"server-round": 2}, "a"), ({"seed": 1}, "a"), ({"seed": 2}, "a")]
    assert len({draws(*place) for place in places}) == len(places)
    assert draws({"seed": 1}) == draws({"seed": 1})
    assert draws({}, seeded=False) != draws({}, seeded=False)


def test_the_strategys_seed_reaches_the_clients() -> None:
    seen: list[Any] = []

    def handler(message: Message, where: Context) -> Message:
        seen.append(message.content.config_records["config"].get("seed"))
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 5})}
        return Message(RecordDict(content), reply_to=message)

    app = ClientApp()
    app.train()(handler)
    for seed in (0, 3):
        strategy = FedAvg(seed=seed, fraction_evaluate=0.0)
        strategy.start(InProcessGrid(app, {}, 1), ArrayRecord(Point().state_dict()), 1)
    assert seen == [None, 3]


class NoisySGD(Optimizer):
    """An optimizer that adds noise before another one steps, as Opacus' DPOptimizer does."""

    def __init__(self, inner: Optimizer, noise_multiplier: float) -> None:
        self.inner, self.noise_multiplier = inner, noise_multiplier

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        for parameter in self.inner.param_groups[0]["params"]:
            parameter.grad += self.noise_multiplier * torch.randn_like(parameter)
        return self.inner.step()


def train_with_noise(model: nn.Module, loader: Any, epochs: int, noise: float = 1.0) -> float:
    optimizer = NoisySGD(SGD(model.parameters(), lr=RATE), noise)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    return 0.0


@pytest.mark.parametrize("told", [{}, MEASURED, {"proximal-mu": 0.7}])
def test_noise_is_refused_where_the_server_knows_the_seed(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"NoisySGD adds noise .*: write fair\(\.\.\., seeded=False\)"):
        ask(app_of(train_with_noise), told=told)
    found = {trained(ask(app_of(train_with_noise, seeded=False), told=told)) for _ in range(2)}
    assert len(found) == 2


def test_the_server_cannot_draw_the_noise_of_an_unseeded_app() -> None:
    """The server runs the step on examples of its own: with a known seed, the difference is the noise-free gradient."""

    def update(examples: Tensor, **how: Any) -> float:
        loader = DataLoader(TensorDataset(examples), batch_size=len(examples))
        return trained(ask(app_of(train_with_noise, loader=loader, **how), where=context(name="a")))

    secret, mine = EXAMPLES, torch.zeros_like(EXAMPLES)
    differences = [update(secret, seeded=False) - update(mine, seeded=False) for _ in range(3)]
    assert all(abs(each - RATE * float(EXAMPLES.mean())) > 1e-9 for each in differences)


def test_an_optimizer_without_noise_gets_the_proximal_term() -> None:
    def train(model: nn.Module, loader: Any, epochs: int) -> float:
        return train_with_noise(model, loader, epochs, noise=0.0)

    assert trained(ask(app_of(train), told={"proximal-mu": 0.7})) == pytest.approx(steps(BATCHES, mu=0.7), rel=1e-12)


def test_a_plain_client_is_told_of_honours_first() -> None:
    app = ClientApp()
    app.train()(lambda message, where: Message(message.content, reply_to=message))
    with pytest.raises(ValueError, match="a client that acts on it lists 'proximal-mu' under 'honours'"):
        FedProx(mu=0.1).start(InProcessGrid(app, {}, 2), ArrayRecord(Point().state_dict()), 1)


def test_measures_of_an_app_equal_those_of_one_message_each() -> None:
    rounds: list[Round] = []
    start = ArrayRecord(Point().state_dict())
    config = ConfigRecord({"measure": ["update-norm"]})
    QFedAvg(q=0.0, lipschitz=1.0).start(
        InProcessGrid(app_of(), {}, 2), start, 1, train_config=config, on_round=rounds.append
    )
    assert {round(report["loss-before"], 9) for report in rounds[0].train_metrics.values()} == {round(loss_at(0.0), 9)}
