"""A user's own functions on the server's terms: the app in quickstart/, and small functions against closed forms."""

import copy
import csv
import importlib
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from flwr.serverapp.strategy import FedProx as FlowersFedProx
from flwr.serverapp.strategy import Result
from torch import Tensor, nn
from torch.optim import optimizer as hooks
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from fairbloom.client import fair as fair_package
from fairbloom.client import work
from fairbloom.client.app import app as our_app
from fairbloom.client.fair import fair
from fairbloom.client.fair.training import HONOURED
from fairbloom.client.rules.registry import kinds_of
from fairbloom.client.rules.steps import ClientMomentum
from fairbloom.protocol.terms import WORK
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedMGDA, FedProx, QFedAvg, Round
from fairbloom.tasks import load_task
from tests.docs.pages import blocks
from tests.strategies.helpers import ARGUMENTS, CASES, make

from . import changed
from .helpers import run_config

CLIENTS, RATE = 4, 0.1

Modules = tuple[ModuleType, ModuleType]


# The app in quickstart/ ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modules]:
    """Return client_app and task of the app whose lines have been changed."""
    folder = tmp_path_factory.mktemp("quickstart") / "app"
    changed.change(folder)
    with changed.imported(folder) as modules:
        yield modules


def run(
    strategy: FairStrategy, app: ClientApp, config: dict[str, Any], modules: Modules, rounds: int = 3, **arguments: Any
) -> tuple[Result, list[Round]]:
    finished: list[Round] = []
    torch.manual_seed(0)
    arguments.setdefault("initial_arrays", ArrayRecord(modules[1].Net().state_dict()))
    result = strategy.start(
        InProcessGrid(app, config, CLIENTS),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": RATE}),
        on_round=finished.append,
        **arguments,
    )
    return result, finished


def weights(arrays: ArrayRecord) -> np.ndarray[Any, Any]:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


class InOrder:
    """A generator that leaves everything in its order."""

    permutation = staticmethod(np.arange)
    random = staticmethod(lambda: 1.0)


def lacking(method: FairStrategy) -> str:
    """Return what a method asks for that a user's functions lack."""
    terms = replace(method.terms(1), measure=tuple(method.needs))
    return HONOURED.find_unsupported(terms, [kind(terms) for kind in kinds_of(terms)])


BY_FUNCTIONS = [(name, arguments) for name, arguments in CASES if not lacking(make(name, arguments))]
"""The cases of the 19 methods that a user's functions serve."""


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [0, 16])
@pytest.mark.parametrize(("name", "arguments"), BY_FUNCTIONS)
def test_every_method_makes_the_model_of_our_own_client(
    name: str, arguments: dict[str, Any], batch_size: int, quickstart: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(dataset: Any, batch_size: int, shuffle: bool = False) -> Any:
        return DataLoader(dataset, batch_size or len(dataset))

    monkeypatch.setattr(quickstart[1], "DataLoader", loader)
    monkeypatch.setattr(work, "generator", lambda *where: InOrder())
    hers = {"batch-size": batch_size, "local-epochs": 3}
    ours = run_config(
        task="tests.client.changed:task",
        clients=CLIENTS,
        batch_size=batch_size,
        local_epochs=3,
        learning_rate=RATE,
    )
    (left, a), (right, b) = (
        run(make(name, arguments, fraction_train=0.75, seed=3), app, config, quickstart)
        for app, config in ((quickstart[0].app, hers), (our_app, ours))
    )
    for mine, theirs in zip(a, b, strict=True):
        assert mine.refused == theirs.refused == {}
        assert mine.participants == theirs.participants
        assert mine.coefficients == pytest.approx(theirs.coefficients, rel=1e-4)
        assert np.linalg.norm(weights(mine.arrays) - weights(theirs.arrays)) <= 1e-6 * np.linalg.norm(
            weights(theirs.arrays)
        )
        for client, expected in theirs.evaluations.items():
            reported = mine.evaluations[client]
            assert reported["eval_acc"] == pytest.approx(expected["accuracy"], abs=0.05)
            if batch_size == 0:
                assert reported["eval_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert not np.array_equal(weights(left.arrays), weights(a[0].arrays))
    assert weights(right.arrays).shape == weights(left.arrays).shape


def test_the_page_says_how_many_lines_of_the_quickstart_change(
    quickstart: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (client, server), text = changed.changes().values(), (changed.QUICKSTART.parents[2] / "docs/flower.md").read_text()
    counts = [tuple("".join(side).count("\n") for side in zip(*pairs, strict=True)) for pairs in (client, server)]
    assert counts == [(2, 3), (3, 5)]  # lines that go, and that come
    for title in ("## The client: two lines change, one is new\n", "## The server: three lines change, two are new\n"):
        assert title in text
    monkeypatch.chdir(tmp_path)
    config = {"num-server-rounds": 2, "fraction-evaluate": 1.0, "local-epochs": 1, "learning-rate": 0.1}
    config |= {"batch-size": 32}
    server_app = importlib.import_module("mydigits.server_app").app
    server_app(InProcessGrid(quickstart[0].app, config, CLIENTS), context(config))
    with (tmp_path / "runs/a/clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["client"]) for row in rows] == [(t, f"client-{i}") for t in "12" for i in range(CLIENTS)]
    assert all(0.0 <= float(row["test_eval_acc_of_global_model"]) <= 1.0 for row in rows)
    assert (tmp_path / "final_model.pt").exists()


def test_the_page_says_what_each_method_needs_of_the_replies() -> None:
    text = (changed.QUICKSTART.parents[2] / "docs/flower.md").read_text()
    table = text[text.index("## What each method asks") : text.index("## Names")]
    rows = {name: row for row in table.splitlines() if row[:2] == "| " for name in row.split("|")[1].split(", ")}
    rows = {name.strip(): row for name, row in rows.items()}
    for method in METHODS.values():
        measured = set(re.findall(r"`([\w-]+)`", rows[method.__name__].split("|")[3]))
        state = {"state-round"} if method.__name__ in ("SCAFFOLD", "FedDyn") else set()
        assert measured == method.needs | state, method.__name__


def test_it_names_the_methods_that_it_cannot_serve() -> None:
    unsupported = {each.__name__ for name, each in METHODS.items() if lacking(make(name, ARGUMENTS[name][0]))}
    assert len(METHODS) - len(unsupported) == 19  # as docs/flower.md says
    template = (changed.QUICKSTART.parents[2] / "scaffold/template/README.md").read_text()
    for text in ((fair.__doc__ or "").partition("The handlers")[0], template[template.index("Ten\nof them need") :]):
        assert {each.__name__ for each in METHODS.values() if re.search(rf"\b{each.__name__}\b", text)} == unsupported


def test_the_page_says_what_each_term_asks_and_fair_lacks() -> None:
    text = (changed.QUICKSTART.parents[2] / "docs/flower.md").read_text()
    table = text[text.index("| key in TRAIN's config") : text.index("A client that gets a key of this table")]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    listed = {key for row in rows for key in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert listed == {*WORK, "local-only", "local-steps", "snapshot-step", "state-round"}
    words = " ".join(text.split())
    served = words[words.index("those made by `fair`") : words.index("methods that send none take any client")]
    assert set(re.findall(r"`([\w-]+)`", served)) - {"fair"} == set(HONOURED.keys)


def test_a_run_resumes_although_the_loader_shuffles_globally(quickstart: Modules) -> None:
    config = {"batch-size": 8, "local-epochs": 1}
    states: list[Any] = []
    strategy = FedProx(mu=0.1)
    whole = strategy.start(
        InProcessGrid(quickstart[0].app, config, CLIENTS),
        ArrayRecord(quickstart[1].Net().state_dict()),
        4,
        train_config=ConfigRecord({"lr": RATE}),
        on_round=lambda each: states.append((each.arrays, copy.deepcopy(strategy.state_dict()))),
    )
    torch.rand(5)  # another process draws something else
    arrays, state = states[1]
    again, _ = run(FedProx(mu=0.1), quickstart[0].app, config, quickstart, 4, initial_arrays=arrays, resume=state)
    assert weights(again.arrays).tobytes() == weights(whole.arrays).tobytes()
    assert dict(again.evaluate_metrics_clientapp[4]) == dict(whole.evaluate_metrics_clientapp[4])


def test_a_seed_client_and_round_each_shuffle_differently(quickstart: Modules) -> None:
    def reply(partition: int = 1, number: int = 1, seed: int = 0) -> bytes:
        model = quickstart[1].Net()
        model.load_state_dict({name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()})
        config = {"batch-size": 4, "local-epochs": 1, "seed": seed}
        where = context(config=config, **{"partition-id": partition, "num-partitions": CLIENTS})
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "config": ConfigRecord({"server-round": number, "lr": RATE}),
            }
        )
        answer = quickstart[0].app(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), where)
        return weights(answer.content.array_records["arrays"]).tobytes()

    assert reply() == reply()
    assert len({reply(), reply(number=2), reply(seed=1)}) == 3


@pytest.mark.parametrize("strategy", [FlowersFedAvg, FlowersFedProx])
def test_flowers_own_strategies_work_with_it_as_before(strategy: Callable[..., Any], quickstart: Modules) -> None:
    own = {"proximal_mu": 0.1} if strategy is FlowersFedProx else {}
    result = strategy(**own).start(
        InProcessGrid(quickstart[0].app, {"batch-size": 8, "local-epochs": 1}, CLIENTS),
        ArrayRecord(quickstart[1].Net().state_dict()),
        1,
        train_config=ConfigRecord({"lr": RATE}),
    )
    assert set(result.train_metrics_clientapp[1]) == {"train_loss"}
    assert set(result.evaluate_metrics_clientapp[1]) == {"eval_loss", "eval_acc"}


@pytest.mark.slow
def test_importing_the_helper_imports_no_data_and_no_server() -> None:
    code = (
        "import sys, fairbloom.client.fair\n"
        "names = {'sklearn', 'fairbloom.rounds', 'fairbloom.strategies', 'fairbloom.server'}\n"
        "print(sorted(names & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Small functions ----------------------------------------------------------------------------------------------------


class Point(nn.Module):
    """A model whose only parameter is a point; its loss is ½ mean (x − example)²."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, examples: Tensor) -> Tensor:
        loss: Tensor = 0.5 * (self.x - examples).square().mean()
        return loss


EXAMPLES = torch.tensor([1.0, 2.0, 4.0, 7.0, 11.0], dtype=torch.float64)
SEEN: list[list[float]] = []
"""The batches that the training function has seen."""


def train_point(model: nn.Module, loader: Any, epochs: int, lr: float = RATE) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return descend(model, loader, epochs, optimizer)


def descend(model: nn.Module, loader: Any, epochs: int, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    loss = torch.zeros(1)
    for _ in range(epochs):
        for (batch,) in loader:
            SEEN.append(batch.tolist())
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
    return float(loss.item())


def test_point(model: nn.Module, loader: Any) -> tuple[float, float]:
    return sum(model(batch).item() for (batch,) in loader) / len(loader), 0.5


test_point.__test__ = False  # type: ignore[attr-defined]


def context(config: dict[str, Any] | None = None, **node: Any) -> Context:
    return Context(run_id=1, node_id=77, node_config=node, state=RecordDict(), run_config=config or {})


def app_of(
    train: Callable[..., Any] = train_point,
    test: Callable[..., Any] = test_point,
    loader: Any = None,
    model: Callable[[], nn.Module] = Point,
    epochs: int = 1,
    train_mods: Any = None,
    evaluate_mods: Any = None,
    **how: Any,
) -> ClientApp:
    """Return an app whose handlers call the functions with a model and a loader, batches of two unless told."""
    app = fair(train, test, **how)
    train_fn = app.train_fn
    data = DataLoader(TensorDataset(EXAMPLES), batch_size=2) if loader is None else loader

    def received(message: Message) -> nn.Module:
        net = model()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return net

    @app.train(mods=train_mods)
    def on_train(message: Message, context: Context) -> Message:
        net = received(message)
        told = train_fn(net, data, epochs)
        metrics = MetricRecord({"returned": float(told), "num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate(mods=evaluate_mods)
    def on_evaluate(message: Message, context: Context) -> Message:
        loss, accuracy = test_point(received(message), data)
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def ask(
    app: ClientApp,
    kind: str = MessageType.TRAIN,
    told: dict[str, Any] | None = None,
    where: Context | None = None,
    model: nn.Module | None = None,
) -> RecordDict:
    SEEN.clear()
    arrays = ArrayRecord((model or Point()).state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1, **(told or {})})})
    return app(Message(content, dst_node_id=2, message_type=kind), where or context()).content


def trained(content: RecordDict, record: str = "arrays") -> float:
    return float(content.array_records[record]["x"].numpy()[0])


def steps(
    batches: list[Tensor], *, x: float = 0.0, w: float | None = None, mu: float = 0.0, beta: float = 0.0
) -> float:
    """Return where gradient steps lead: of the loss with a pull to w, with momentum."""
    anchor, velocity = x if w is None else w, 0.0
    for batch in batches:
        velocity = beta * velocity + (x - float(batch.mean())) + mu * (x - anchor)
        x -= RATE * velocity
    return x


BATCHES = [EXAMPLES[:2], EXAMPLES[2:4], EXAMPLES[4:]]


def test_without_terms_her_function_does_what_it_did() -> None:
    assert trained(ask(app_of(epochs=2))) == pytest.approx(steps(BATCHES * 2), rel=1e-12)


def test_the_wrapped_function_outside_a_message_is_hers() -> None:
    train_fn = fair(train_point, test_point).train_fn
    model = Point()
    train_fn(model, DataLoader(TensorDataset(EXAMPLES), batch_size=2), 1)
    assert model.x.item() == pytest.approx(steps(BATCHES), rel=1e-12)
    assert train_fn.__name__ == "train_point"


# Measures -----------------------------------------------------------------------------------------------------------

MEASURES = ["loss-before", "loss-after", "accuracy-before", "accuracy-after", "learning-rate", "update-norm"]


def loss_at(x: float) -> float:
    return float(0.5 * (x - EXAMPLES).square().mean())


def test_measures_are_means_over_all_examples() -> None:
    content = ask(app_of(), told={"measure": MEASURES})
    metrics: dict[str, Any] = dict(content.metric_records["metrics"])
    assert metrics["loss-before"] == pytest.approx(loss_at(0.0), rel=1e-12)
    assert metrics["loss-after"] == pytest.approx(loss_at(trained(content)), rel=1e-12)
    assert metrics["accuracy-before"] == metrics["accuracy-after"] == 0.5
    assert metrics["learning-rate"] == RATE
    assert metrics["update-norm"] == pytest.approx(abs(trained(content)), rel=1e-12)
    assert trained(content) == pytest.approx(steps(BATCHES), rel=1e-12)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(EXAMPLES), batch_size=2, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(EXAMPLES), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1)),
        DataLoader(TensorDataset(EXAMPLES), 2, sampler=WeightedRandomSampler([1.0, 0.0, 0.0, 0.0, 0.0], 5)),
        DataLoader(TensorDataset(EXAMPLES), batch_sampler=[[0, 1, 2], [3, 4]]),
    ],
    ids=["drop_last", "own generator", "weighted", "batch sampler"],
)
def test_whatever_a_loader_drops_the_whole_set_is_measured(loader: Any) -> None:
    metrics = ask(app_of(loader=loader), told={"measure": ["loss-before"]}).metric_records["metrics"]
    assert metrics["loss-before"] == pytest.approx(loss_at(0.0), rel=1e-12)


def test_the_norm_of_her_update_is_that_of_our_own_clients(
    quickstart: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user's optimizer and ours over the same batches."""
    monkeypatch.setattr(quickstart[1], "DataLoader", lambda dataset, *_, **__: DataLoader(dataset, len(dataset)))
    ours = run_config(task="tests.client.changed:task", clients=CLIENTS, batch_size=0, learning_rate=RATE)

    class Normed(FedAvg):
        """FedAvg that asks for the norm of each update."""

        needs = frozenset({"update-norm"})

    (_, hers), (_, expected) = (
        run(Normed(), app, config, quickstart, rounds=2)
        for app, config in ((quickstart[0].app, {"batch-size": 0, "local-epochs": 1}), (our_app, ours))
    )
    for mine, theirs in zip(hers, expected, strict=True):
        assert mine.refused == theirs.refused == {}
        norms = [
            {name: report["update-norm"] for name, report in each.train_metrics.items()} for each in (mine, theirs)
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        assert all(norm > 0.0 for norm in norms[0].values())


def test_a_term_that_nobody_honours_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if a term had been added to the protocol and forgotten here."""
    monkeypatch.setattr(fair_package, "HONOURED", replace(HONOURED, rules=frozenset({ClientMomentum})))
    with pytest.raises(ValueError, match=r"proximal-mu = 0\.5: this client does not know it"):
        ask(app_of(), told={"proximal-mu": 0.5})
    content = ask(app_of(), MessageType.QUERY, where=context(name="a"))
    assert "proximal-mu" not in content.config_records["client"]["honours"]  # type: ignore[operator]


def test_only_what_is_asked_for_and_known_is_replied() -> None:
    metrics = ask(app_of(), told={"measure": ["loss-after", "blood-pressure"]}).metric_records["metrics"]
    assert set(metrics) == {"returned", "num-examples", "loss-after"}


class Noisy(nn.Module):
    """A model with what measuring could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(1, 4)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(4).eval()

    def forward(self, examples: Tensor) -> Tensor:
        outputs: Tensor = self.drop(self.frozen(self.norm(self.x(examples.float()[:, None]))))
        return outputs.square().mean()


def test_measuring_changes_no_statistics_modes_or_random_numbers() -> None:
    torch.manual_seed(3)
    start = Noisy()
    generator = torch.Generator()
    loader = DataLoader(TensorDataset(EXAMPLES), batch_size=3, shuffle=True, generator=generator)
    replies = []
    for told in ({}, {"measure": MEASURES}):
        generator.manual_seed(1)
        replies.append(
            ask(app_of(loader=loader, model=Noisy, epochs=2), told=told, model=start).array_records["arrays"]
        )
    for name, array in replies[0].items():
        assert array.data == replies[1][name].data, name


def test_the_process_draws_afterwards_what_it_would_have_drawn() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    def seeded() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seeded()
    expected = drawn()
    seeded()
    app = app_of(loader=DataLoader(TensorDataset(EXAMPLES), batch_size=2, shuffle=True))
    for kind in (MessageType.TRAIN, MessageType.EVALUATE):
        ask(app, kind, {"measure": MEASURES})
    assert drawn() == expected


def test_data_split_at_random_are_split_alike_in_the_whole_run() -> None:
    app = fair(train_point, test_point)
    split: list[list[int]] = []

    def handler(message: Message, context: Context) -> Message:
        split.append(torch.randperm(20).tolist())
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5})}), reply_to=message)

    app.train()(handler)
    app.evaluate()(handler)
    for number in (1, 2):
        for kind in (MessageType.TRAIN, MessageType.EVALUATE):
            ask(app, kind, {"server-round": number})
    assert all(each == split[0] for each in split)
    ask(app, where=context(name="another"))
    assert split[-1] != split[0]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ((2.0, 0.25), {"loss-before": 2.0, "accuracy-before": 0.25}),
        ((torch.tensor(2.0), {"accuracy": 0.25, "f1": 0.1}), {"loss-before": 2.0, "accuracy-before": 0.25}),
        ({"loss": 2.0, "accuracy": torch.tensor(0.25)}, {"loss-before": 2.0, "accuracy-before": 0.25}),
    ],
)
def test_what_a_test_function_may_return(returned: Any, expected: dict[str, float]) -> None:
    app = app_of(test=lambda model, loader: returned)
    metrics = ask(app, told={"measure": list(expected)}).metric_records["metrics"]
    assert {name: metrics[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "must return .* not NoneType"),
        ((1.0, 2.0, 3.0), "not tuple"),
        ({"accuracy": 0.5}, "not dict"),
        ((1.0, 87.5), "the accuracy 87.5: it must be in"),
        ((1.0, {"f1": 0.5}), "a dict with accuracy"),
    ],
)
def test_what_it_may_not_return(returned: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_of(test=lambda model, loader: returned), told={"measure": ["accuracy-before"]})


def test_a_test_function_takes_training_values_by_their_names() -> None:
    seen: list[Any] = []

    def train(net: nn.Module, trainloader: Any, epochs: int, device: str = "here") -> float:
        return descend(net, trainloader, epochs, torch.optim.SGD(net.parameters(), lr=RATE))

    def test(loader: Any, net: nn.Module, device: str, verbose: bool = False) -> tuple[float, float]:
        seen.append((type(net), device, verbose))
        return test_point(net, loader)

    metrics = ask(app_of(train, test), told={"measure": ["loss-before"]}).metric_records["metrics"]
    assert metrics["loss-before"] == pytest.approx(loss_at(0.0))
    assert set(seen) == {(Point, "here", False)}


def needing_a_criterion(model: nn.Module, loader: Any, criterion: Any) -> tuple[float, float]:
    raise AssertionError


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            needing_a_criterion,
            "the test function must take .* it takes model, loader, criterion",
        ),
        (lambda model: (1.0, 1.0), "must take the model, a loader"),
    ],
)
def test_an_uncallable_test_function_is_named_with_its_parameter(test: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_of(test=test), told={"measure": ["loss-before"]})


# Terms --------------------------------------------------------------------------------------------------------------


def test_the_proximal_term_pulls_to_the_received_model() -> None:
    start = Point()
    start.x.data.fill_(3.0)
    content = ask(app_of(epochs=2), told={"proximal-mu": 0.7}, model=start)
    assert trained(content) == pytest.approx(steps(BATCHES * 2, x=3.0, mu=0.7), rel=1e-12)


def test_the_momentum_of_the_terms_is_the_optimizers() -> None:
    expected = steps(BATCHES * 2, beta=0.6)
    for own in (0.0, 0.9):

        def train(model: nn.Module, loader: Any, epochs: int, own: float = own) -> float:
            return descend(model, loader, epochs, torch.optim.SGD(model.parameters(), lr=RATE, momentum=own))

        content = ask(app_of(train, epochs=2), told={"client-momentum": 0.6})
        assert trained(content) == pytest.approx(expected, rel=1e-12)


# Terms that cannot be kept ------------------------------------------------------------------------------------------


def with_adam(model: nn.Module, loader: Any, epochs: int) -> float:
    return descend(model, loader, epochs, torch.optim.Adam(model.parameters(), lr=RATE))


def with_closures(model: nn.Module, loader: Any, epochs: int, kind: Any = torch.optim.SGD) -> float:
    """Train as Lightning does, which gives every step a closure."""
    optimizer = kind(model.parameters(), lr=RATE)
    for (batch,) in loader:

        def closure(batch: Tensor = batch) -> float:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            return float(loss.item())

        optimizer.step(closure)
    return 0.0


with_lbfgs = partial(with_closures, kind=torch.optim.LBFGS)


def by_hand(model: nn.Module, loader: Any, epochs: int) -> float:
    for (batch,) in loader:
        model(batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * (0.0 if parameter.grad is None else parameter.grad)
    return 0.0


def on_a_copy(model: nn.Module, loader: Any, epochs: int) -> float:
    other = copy.deepcopy(model)
    descend(other, loader, epochs, torch.optim.SGD(other.parameters(), lr=RATE))
    model.load_state_dict(other.state_dict())
    return 0.0


def with_a_scaler(model: nn.Module, loader: Any, epochs: int) -> float:
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=RATE), torch.amp.GradScaler("cpu")
    for (batch,) in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    return 0.0


def with_two_rates(model: nn.Module, loader: Any, epochs: int) -> float:
    groups = [{"params": list(model.parameters())}, {"params": [torch.zeros(1, requires_grad=True)], "lr": 7.0}]
    return descend(model, loader, epochs, torch.optim.SGD(groups, lr=RATE))


@pytest.mark.parametrize(
    ("train", "told", "words"),
    [
        (with_adam, {"client-momentum": 0.9}, "client-momentum = 0.9: Adam has no momentum"),
        (with_lbfgs, {"proximal-mu": 0.1}, "proximal-mu = 0.1: LBFGS"),
        (by_hand, {"proximal-mu": 0.1}, "proximal-mu = 0.1: no optimizer of torch.optim took a step"),
        (by_hand, {"measure": ["learning-rate"]}, "measure = learning-rate: no optimizer"),
        (on_a_copy, {"proximal-mu": 0.1}, "proximal-mu = 0.1: no optimizer .* on the model"),
        (with_two_rates, {"measure": ["learning-rate"]}, "the optimizer has several learning rates, .0.1, 7.0."),
        *(
            (train_point, told, f"{key}.*: .*own client with a task of yours")
            for key, told in {
                "local-only": {"local-only": True},
                "personal-lambda": {"personal-lambda": 0.5, "personal-epochs": 1},
                "loss-transform": {"loss-transform": "propfair", "propfair-baseline": 5.0, "propfair-epsilon": 0.2},
                "full-batch-step": {"full-batch-step": True},
                "local-steps": {"local-steps": 7.5},
                "disparity": {"disparity": "demographic-parity"},
                "baseline-epochs": {"baseline-epochs": 200},
                "control-variates": {"control-variates": True},
                "dynamic-alpha": {"dynamic-alpha": 0.1},
                "measure": {"measure": ["hits-0"]},
                "measure = loss-baseline": {"measure": ["loss-baseline"]},
            }.items()
        ),
    ],
)
def test_a_term_that_her_function_cannot_keep_is_named(train: Any, told: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_of(train), told=told)


@pytest.mark.parametrize("train", [with_a_scaler, with_closures])
def test_scalers_and_closures_work_with_the_proximal_term(train: Any) -> None:
    content = ask(app_of(train), told={"proximal-mu": 0.7})
    assert trained(content) == pytest.approx(steps(BATCHES, mu=0.7), rel=1e-6)


def test_a_handler_that_does_not_call_the_function_is_told_so() -> None:
    app = fair(train_point, test_point)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    assert set(ask(app)) == {"arrays", "metrics"}
    with pytest.raises(ValueError, match=r"asks for proximal-mu = 0.1, measure = loss-before, .* called it 0 times"):
        ask(app, told={"proximal-mu": 0.1, "measure": ["loss-before"]})


def test_a_second_call_for_one_message_is_refused_with_terms() -> None:
    app = fair(train_point, test_point)
    train_fn = app.train_fn

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Point()
        for _ in range(2):
            train_fn(model, DataLoader(TensorDataset(EXAMPLES), batch_size=2), 1)
        metrics = MetricRecord({"num-examples": 5})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    assert trained(ask(app)) == pytest.approx(steps(BATCHES * 2), rel=1e-12)
    with pytest.raises(ValueError, match=r"asks for proximal-mu = 0.1, .* called it 2 times"):
        ask(app, told={"proximal-mu": 0.1})


def test_a_train_function_that_raises_leaves_nothing_behind() -> None:
    def failing(model: nn.Module, loader: Any, epochs: int) -> float:
        descend(model, loader, epochs, torch.optim.SGD(model.parameters(), lr=RATE))
        raise OSError("the disk is full")

    before = torch.get_rng_state()
    with pytest.raises(OSError, match="disk is full"):
        ask(app_of(failing), told={"proximal-mu": 0.1, "measure": ["loss-before"]})
    assert not hooks._global_optimizer_pre_hooks
    assert not hooks._global_optimizer_post_hooks
    assert torch.equal(torch.get_rng_state(), before)
    train_fn = fair(train_point, test_point).train_fn
    model = Point()
    train_fn(model, DataLoader(TensorDataset(EXAMPLES), batch_size=2), 1)
    assert model.x.item() == pytest.approx(steps(BATCHES), rel=1e-12)


def test_terms_are_kept_for_her_model_alone() -> None:
    other = Point()
    others = torch.optim.SGD(other.parameters(), lr=RATE)

    def train(model: nn.Module, loader: Any, epochs: int) -> float:
        other.x.grad = torch.ones_like(other.x)
        others.step()  # a teacher, say
        return train_point(model, loader, epochs)

    ask(app_of(train), told={"proximal-mu": 5.0, "client-momentum": 0.9})
    assert other.x.item() == pytest.approx(-RATE, rel=1e-12)
    assert others.param_groups[0]["momentum"] == 0.0


# Names, apps and clients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"name": "clinic-north", "partition-id": 3, "num-partitions": 4}, "clinic-north"),
        ({"partition-id": 3, "num-partitions": 4}, "client-3"),
        ({"partition-id": 3, "num-partitions": 101}, "client-003"),
        ({"partition-id": 3}, "client-3"),
        ({}, "77"),
    ],
)
def test_a_client_is_called_by_its_name_partition_or_node(node: dict[str, Any], name: str) -> None:
    content = ask(app_of(), MessageType.QUERY, where=context(**node))
    assert dict(content.config_records["client"]) == {"name": name, "honours": HONOURED.keys}


def test_a_reply_does_not_depend_on_earlier_clients() -> None:
    app = app_of(loader=DataLoader(TensorDataset(EXAMPLES), batch_size=2, shuffle=True))
    told = {"measure": MEASURES}
    first = ask(app, told=told, where=context(name="a"))
    ask(app, told={**told, "proximal-mu": 3.0}, where=context(name="b"))
    again = ask(app, told=told, where=context(name="a"))
    assert trained(first) == trained(again)
    assert dict(first.metric_records["metrics"]) == dict(again.metric_records["metrics"])


def test_fair_mods_apply_to_training_only() -> None:
    seen: list[tuple[str, str, list[str]]] = []

    def watching(who: str) -> Callable[..., Message]:
        def watch(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
            reply = call(message, context)
            seen.append((who, message.metadata.message_type, sorted(reply.content.metric_records["metrics"])))
            return reply

        return watch

    app = app_of(mods=[watching("outer")], train_mods=[watching("inner")], evaluate_mods=[watching("other")])
    ask(app, MessageType.QUERY)
    ask(app, told={"measure": ["loss-before"]})
    ask(app, MessageType.EVALUATE)
    assert seen == [
        ("inner", "train", ["loss-before", "num-examples", "returned"]),
        ("outer", "train", ["loss-before", "num-examples", "returned"]),
        ("other", "evaluate", ["eval_acc", "eval_loss", "num-examples"]),
    ]


def rounds_of(app: ClientApp, strategy: FairStrategy, config: dict[str, Any], model: nn.Module) -> list[Round]:
    finished: list[Round] = []
    grid, arrays = InProcessGrid(app, config, CLIENTS), ArrayRecord(model.state_dict())
    strategy.start(grid, arrays, num_rounds=2, timeout=60.0, on_round=finished.append)
    return finished


def test_names_and_evaluations_survive_a_mod_that_refuses_them() -> None:
    """Without names, other clients are drawn, and a method's memory of them is lost at a resume."""
    private = LocalDpMod(clipping_norm=1e-3, sensitivity=1e-6, epsilon=15.0, delta=1e-5)
    plain, clipped = (
        rounds_of(app_of(mods=mods), FedAvg(fraction_train=0.5, seed=3), {}, Point()) for mods in ([], [private])
    )
    for one, other in zip(plain, clipped, strict=True):
        assert one.participants == other.participants
        assert other.refused == {}
        assert set(other.evaluations) == {f"client-{k}" for k in range(CLIENTS)}
    step = weights(clipped[0].arrays) - weights(ArrayRecord(Point().state_dict()))
    assert 0.0 < np.linalg.norm(step) < 2e-3 < np.linalg.norm(weights(plain[0].arrays) - Point().x.item())


def test_the_recipe_for_differential_privacy_clips() -> None:
    (recipe,) = [block for block in blocks("docs/privacy.md") if "LocalDpMod" in block.text]
    app = {}
    exec(recipe.text, app)  # noqa: S102
    config = run_config(clients=CLIENTS)
    model = load_task(config).model()
    finished = rounds_of(app["app"], FedMGDA(), config, model)
    for each in finished:
        assert each.refused == {}
        assert each.missing == ()
        assert len(each.coefficients) == len(each.evaluations) == CLIENTS
        assert all(name.startswith("client-") for name in each.participants)
    noise = 0.3 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 15.0
    moved = weights(finished[0].arrays) - weights(ArrayRecord(model.state_dict()))
    assert 0.2 * noise < moved.std() < noise


def test_the_noise_of_a_mod_is_not_seeded() -> None:
    private = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=15.0, delta=1e-5)
    replies = {trained(ask(app_of(mods=[private]))) for _ in range(2)}
    assert len(replies) == 2


def test_a_message_of_another_strategy_goes_to_the_users_handler() -> None:
    content = RecordDict({"arrays": ArrayRecord(Point().state_dict()), "config": ConfigRecord({"lr": 1.0})})
    reply = app_of()(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), context())
    assert trained(reply.content) == pytest.approx(steps(BATCHES), rel=1e-12)


def test_a_needed_infinite_loss_is_refused_by_the_server() -> None:
    app = app_of(test=lambda model, loader: (math.nan, 0.5))
    grid = InProcessGrid(app, {}, 2)
    finished: list[Round] = []
    with pytest.raises(ValueError, match="loss-before is NaN at all 2 clients"):
        QFedAvg(q=1.0, lipschitz=1.0).start(grid, ArrayRecord(Point().state_dict()), 1, on_round=finished.append)


def test_her_own_names_of_metrics_come_through_to_the_round() -> None:
    finished: list[Round] = []
    FedAvg().start(InProcessGrid(app_of(), {}, 2), ArrayRecord(Point().state_dict()), 1, on_round=finished.append)
    assert {"eval_loss", "eval_acc"} <= set(finished[0].evaluations["client-0"])


def test_a_users_config_may_ask_for_the_norm_of_updates() -> None:
    rounds: list[Round] = []
    start = Point()
    FedAvg().start(
        InProcessGrid(app_of(), {}, 2),
        ArrayRecord(start.state_dict()),
        1,
        train_config=ConfigRecord({"measure": ["update-norm"]}),
        on_round=rounds.append,
    )
    norms = {name: report["update-norm"] for name, report in rounds[0].train_metrics.items()}
    expected = abs(steps(BATCHES))
    assert norms == {"client-0": pytest.approx(expected), "client-1": pytest.approx(expected)}
