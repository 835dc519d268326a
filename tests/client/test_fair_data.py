"""A user's functions that take datasets, or none, and models of which a part alone travels."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fairbloom.client.fair import fair
from fairbloom.client.fair.functions import Helpers
from fairbloom.rounds.round import Round
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import DRFA, Ditto, FairStrategy, FedFV, FedProx

from .test_fair import (
    BATCHES,
    EXAMPLES,
    RATE,
    Point,
    ask,
    context,
    descend,
    loss_at,
    steps,
    test_point,
    train_point,
    trained,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

POINTS = TensorDataset(EXAMPLES)
SEEN: list[int] = []
"""How many examples each call of the training function had."""


def make_loader(dataset: Any) -> Any:
    return DataLoader(dataset, batch_size=2, collate_fn=lambda rows: (torch.stack([row[0] for row in rows]),))


def train_on_dataset(model: nn.Module, dataset: Any) -> float:
    """Make one pass over a dataset, in its order, in batches of two."""
    SEEN.append(len(dataset))
    return descend(model, make_loader(dataset), 1, torch.optim.SGD(model.parameters(), lr=RATE))


def app_with(data: Any, train: Callable[..., Any] = train_on_dataset, **how: Any) -> ClientApp:
    """Return an app whose training function is called with a model and these data."""
    app = fair(train, test_point, **how)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        model = Point()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        app.train_fn(model, data)
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


# Data ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"loader": make_loader}])
def test_a_dataset_is_measured_over_all_its_examples(how: dict[str, Any]) -> None:
    content = ask(app_with(POINTS, **how), told={"measure": ["loss-before", "loss-after"], "proximal-mu": 0.7})
    metrics = content.metric_records["metrics"]
    assert trained(content) == pytest.approx(steps(BATCHES, mu=0.7), rel=1e-12)
    assert metrics["loss-before"] == pytest.approx(loss_at(0.0), rel=1e-12)
    assert metrics["loss-after"] == pytest.approx(loss_at(trained(content)), rel=1e-12)


@pytest.mark.parametrize("told", [{"proximal-mu": 0.7}, {"client-momentum": 0.6}, {"measure": ["update-norm"]}])
def test_no_data_are_asked_for_where_nothing_is_measured(told: dict[str, Any]) -> None:
    def train(model: nn.Module) -> float:
        return train_point(model, DataLoader(POINTS, batch_size=2), 1)

    app = fair(train, test_point)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        model = Point()
        app.train_fn(model)
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    mu, beta = told.get("proximal-mu", 0.0), told.get("client-momentum", 0.0)
    assert trained(ask(app, told=told)) == pytest.approx(steps(BATCHES, mu=mu, beta=beta), rel=1e-12)


class Ragged(Dataset[Any]):
    """Rows of which PyTorch's own collator makes no batch."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return torch.ones(index + 1, dtype=torch.float64) * EXAMPLES[index]


def columns() -> Any:
    from datasets import Dataset as Columns

    return Columns.from_dict({"x": EXAMPLES.tolist()})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Ragged, r"batches of the training dataset cannot be made \(RuntimeError\): give fair\(\.\.\., loader="),
        (columns, r"a Dataset needs a collator .* fair\(\.\.\., loader="),
    ],
)
def test_a_dataset_that_needs_a_collator_asks_for_a_loader(make: Any, words: str) -> None:
    data = make()

    def collate(rows: list[Any]) -> tuple[Tensor]:
        return (torch.stack([torch.as_tensor(r["x"] if isinstance(r, dict) else r).double().mean() for r in rows]),)

    def train(model: nn.Module, dataset: Any) -> float:
        return train_point(model, DataLoader(dataset, batch_size=2, collate_fn=collate), 1)

    told = {"measure": ["loss-before"]}
    with pytest.raises(ValueError, match=words):
        ask(app_with(data, train), told=told)
    remedied = app_with(data, train, loader=partial(DataLoader, batch_size=2, collate_fn=collate))
    assert ask(remedied, told=told).metric_records["metrics"]["loss-before"] == pytest.approx(loss_at(0.0))


def test_a_test_function_may_take_the_dataset_itself() -> None:
    def test(model: nn.Module, dataset: Any) -> tuple[float, float]:
        assert dataset is POINTS
        return test_point(model, make_loader(dataset))

    app = app_with(POINTS)
    app._functions = (train_on_dataset, test)  # type: ignore[attr-defined]
    app._helpers = type(app._helpers)(loader=lambda dataset: dataset)  # type: ignore[attr-defined]
    assert "loss-before" in ask(app, told={"measure": ["loss-before"]}).metric_records["metrics"]


@pytest.mark.parametrize("wanted", [1, 2, 7])
def test_a_dataset_has_as_many_steps_as_the_terms_say(wanted: int) -> None:
    SEEN.clear()
    content = ask(app_with(POINTS, loader=make_loader), told={"local-steps": wanted, "snapshot-step": wanted})
    assert [2 * wanted] == SEEN
    assert trained(content, "snapshot") == trained(content) != 0.0


@pytest.mark.parametrize(
    ("told", "how", "words"),
    [
        ({"local-steps": 2}, {}, r"local-steps = 2: a Dataset does not say .* fair\(\.\.\., loader=make_loader\)"),
        (
            {"local-steps": 2},
            {"loader": partial(DataLoader, batch_size=3)},
            "local-steps = 2: SGD took 3 steps in 2 batches",
        ),
        ({"full-batch-step": True}, {}, "cannot make one batch of all examples: give the training function a DataLoad"),
    ],
)
def test_a_number_of_steps_that_a_dataset_cannot_keep_is_named(told: Any, how: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_with(POINTS, **how), told=told)


def test_a_dataset_has_as_many_passes_as_the_personal_epochs() -> None:
    SEEN.clear()
    where = context()
    ask(app_with(POINTS), told={"personal-lambda": 0.5, "personal-epochs": 3}, where=where)
    assert SEEN == [5, 15]


# A part of a model --------------------------------------------------------------------------------------------------


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # Trainer makes a folder for its outputs


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize("name", ["a ViT's head", "a ViT's head by Trainer", "peft, own loop", "peft by Trainer"])
@pytest.mark.parametrize(
    "method",
    [
        FedFV(),
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in (DRFA(gamma=0.01, local_steps=4), Ditto(lam=0.1), FedProx(mu=0.1))
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_kind_of_method_trains_the_part_that_travels(name: str, method: FairStrategy) -> None:
    from .hugging_face import CASES

    case, rounds = CASES[name], list[Round]()
    start = ArrayRecord(dict(case.sent(case.net())))
    method.start(InProcessGrid(case.app(), {}, 2), start, num_rounds=2, on_round=rounds.append)
    for each in rounds:
        assert each.refused == {}
        assert len(each.participants) == len(each.evaluations) == 2
        assert list(each.arrays) == list(start)
    assert any((rounds[-1].arrays[key].numpy() != start[key].numpy()).any() for key in start)
    if isinstance(method, Ditto):
        for scores in rounds[-1].evaluations.values():
            assert scores["loss-personal"] != scores["loss"]


def test_only_what_is_trained_of_a_personal_model_is_kept() -> None:
    from .hugging_face import CASES, head_of, vit

    where = context(**{"partition-id": 0, "num-partitions": 1})
    arrays = ArrayRecord(dict(head_of(vit())))
    told = {"server-round": 1, "personal-lambda": 0.5, "personal-epochs": 1}
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(told)})
    CASES["a ViT's head"].app()(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), where)
    (kept,) = where.state.array_records.values()
    assert set(kept) == {"classifier.weight", "classifier.bias", "weight", "bias"}


@pytest.mark.parametrize("told", [{"personal-lambda": 0.5, "personal-epochs": 1}, {"snapshot-step": 1}])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {},
            r"the model of the training function does not fit .*: it has no 'other'. .* fair\(\.\.\., arrays=function",
        ),
        (
            {"arrays": lambda model: {"y": model.x}},
            r"what fair\(\.\.\., arrays=\.\.\.\) returns does not fit .*: it has no 'other'",
        ),
    ],
)
def test_arrays_of_no_model_are_named_before_it_trains(told: Any, how: Any, words: str) -> None:
    SEEN.clear()
    app = fair(train_on_dataset, test_point, **how)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        app.train_fn(Point(), POINTS)
        raise AssertionError

    content = RecordDict(
        {"arrays": ArrayRecord({"other": torch.zeros(1)}), "config": ConfigRecord({"server-round": 1, **told})}
    )
    with pytest.raises(ValueError, match=words):
        app(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), context())
    assert SEEN == []


class Two(nn.Module):
    """Two parts that have the same names and shapes, and a third one of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.wide = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(3, 1)


def test_a_part_is_found_by_its_shapes_and_by_what_is_trained() -> None:
    model, helpers = Two(), Helpers()
    wide = helpers.named(model, {"weight": (1, 3), "bias": (1,)})
    assert (wide["weight"] is model.wide.weight, wide["bias"] is model.wide.bias) == (True, True)
    small = {"weight": (1, 2), "bias": (1,)}
    with pytest.raises(ValueError, match=r"'weight' may be each of left.weight, right.weight"):
        helpers.named(model, small)
    by_hand = Helpers(arrays=lambda model: model.left.state_dict())  # type: ignore[operator, union-attr]
    assert list(by_hand.named(model, small)) == ["weight", "bias"]
    model.left.requires_grad_(False)
    assert helpers.named(model, small)["weight"] is model.right.weight
