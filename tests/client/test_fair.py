"""The app in quickstart/, made fair as docs/flower.md says, against our own client and Flower's own
strategies.

`fair` around small functions: its results against closed forms, and its refusals.
"""

import copy
import importlib
import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.server import Server, SimpleClientManager
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import Result
from torch import Tensor, nn
from torch.ao.quantization import fuse_modules
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, Optimizer, optimizer as hooks
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from fairbloom.client import work
from fairbloom.client.app import app as our_app
from fairbloom.client.fair import decorator as fair_package, fair
from fairbloom.client.fair.contexts import RECORD, keep_own
from fairbloom.client.fair.training import SUPPORTED, remember
from fairbloom.client.rules.registry import kinds_of
from fairbloom.client.rules.steps import ClientMomentum
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.scores import Score
from fairbloom.protocol.terms import WORK, Terms
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import (
    DRFA,
    METHODS,
    SCAFFOLD,
    Ditto,
    FairFed,
    FairStrategy,
    FedAvg,
    FedMGDA,
    FedProx,
    QFedAvg,
    Round,
)
from fairbloom.tasks import load_task
from tests.docs.pages import ROOT, blocks
from tests.simulation.helpers import table
from tests.strategies.helpers import ARGUMENTS, CASES, make

from . import changed
from .helpers import run_config
from .points import (
    EXAMPLES,
    LOADER,
    POINTS,
    RATE,
    Point,
    app_of,
    ask,
    context,
    descend,
    loss_at,
    measure_point,
    measured,
    steps,
    train_point,
    trained,
    unknown_to,
)

CLIENTS = 4
STEP_SIZE = 0.1

SMALL = {"batch-size": 8, "local-epochs": 1}

Modules = tuple[ModuleType, ModuleType]
PAGE = (ROOT / "docs/flower.md").read_text()


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modules]:
    """Return client_app and task of the changed app."""
    folder = tmp_path_factory.mktemp("quickstart") / "app"
    changed.change(folder)
    with changed.imported(folder) as modules:
        yield modules


def start(
    strategy: Any, app: ClientApp, config: dict[str, Any], modules: Modules, **arguments: Any
) -> Result:
    """Run three rounds, or `num_rounds`, from the same model."""
    torch.manual_seed(0)
    arguments = {
        "initial_arrays": ArrayRecord(modules[1].Net().state_dict()),
        "num_rounds": 3,
        **arguments,
    }
    return strategy.start(
        InProcessGrid(app, config, CLIENTS),
        train_config=ConfigRecord({"lr": STEP_SIZE}),
        **arguments,
    )


def weights(arrays: ArrayRecord) -> np.ndarray[Any, Any]:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


class InOrder:
    """A generator that leaves everything in its order."""

    permutation = staticmethod(np.arange)
    random = staticmethod(lambda: 1.0)


def lacking(method: FairStrategy) -> str:
    """Return what a method asks for that a user's functions lack."""
    terms = replace(method.terms(1), measure=tuple(method.needs))
    return SUPPORTED.find_unsupported(terms, [kind(terms) for kind in kinds_of(terms)])


# The cases of the methods that a user's functions serve.
BY_FUNCTIONS = [
    (name, arguments) for name, arguments in CASES if not lacking(make(name, arguments))
]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [0, 16])
@pytest.mark.parametrize(("name", "arguments"), BY_FUNCTIONS)
def test_every_method_makes_the_model_of_our_own_client(
    name: str,
    arguments: dict[str, Any],
    batch_size: int,
    quickstart: Modules,
    monkeypatch: pytest.MonkeyPatch,
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
        learning_rate=STEP_SIZE,
    )
    rounds: tuple[list[Round], list[Round]] = ([], [])
    for found, app, config in zip(rounds, (quickstart[0].app, our_app), (hers, ours), strict=True):
        method = make(name, arguments, fraction_train=0.75, seed=3)
        start(method, app, config, quickstart, on_round=found.append)
    for mine, theirs in zip(*rounds, strict=True):
        assert mine.refused == theirs.refused == {}
        assert mine.participants == theirs.participants
        assert mine.coefficients == pytest.approx(theirs.coefficients, rel=1e-4)
        expected_weights = weights(theirs.arrays)
        assert np.linalg.norm(weights(mine.arrays) - expected_weights) <= 1e-6 * np.linalg.norm(
            expected_weights
        )
        for client, expected in theirs.evaluations.items():
            reported = mine.evaluations[client]
            assert reported["eval_acc"] == pytest.approx(expected["accuracy"], abs=0.05)
            if batch_size == 0:
                assert reported["eval_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert not np.array_equal(weights(rounds[0][0].arrays), weights(rounds[0][-1].arrays))


def test_the_page_says_how_many_lines_of_the_quickstart_change(
    quickstart: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = changed.changes().values()
    assert [
        tuple("".join(side).count("\n") for side in zip(*pairs, strict=True))
        for pairs in (client, server)
    ] == [(2, 3), (3, 5)]  # lines that go, and that come
    assert [
        title
        for title in (
            "## The client: two lines change, one is new\n",
            "## The server: three lines change, two are new\n",
        )
        if title not in PAGE
    ] == []
    monkeypatch.chdir(tmp_path)
    config: dict[str, Any] = {**changed.CONFIG, "num-server-rounds": 2}
    importlib.import_module("mydigits.server_app").app(
        InProcessGrid(quickstart[0].app, config, CLIENTS), context(config)
    )
    rows = table(tmp_path / "runs/a/clients.csv")
    assert [(row["round"], row["client"]) for row in rows] == [
        (t, f"client-{i}") for t in "12" for i in range(CLIENTS)
    ]
    assert all(0.0 <= float(row["test_eval_acc_of_global_model"]) <= 1.0 for row in rows)
    assert (tmp_path / "final_model.pt").exists()


def test_it_names_the_methods_that_it_cannot_serve(subtests: pytest.Subtests) -> None:
    unsupported = {
        each.__name__ for name, each in METHODS.items() if lacking(make(name, ARGUMENTS[name][0]))
    }
    readme = " ".join((ROOT / "fairbloom/scaffold/template/README.md").read_text().split())
    template = readme.partition("These need")[2]
    page = PAGE.partition("take it for")[2].partition("## Names")[0]
    for text in ((fair.__doc__ or "").partition("The handlers")[0], template, page):
        with subtests.test(text=text):
            assert {
                each.__name__
                for each in METHODS.values()
                if re.search(rf"\b{each.__name__}\b", text)
            } == unsupported


def test_the_page_says_what_each_term_asks_and_fair_lacks() -> None:
    lines = PAGE[
        PAGE.index("| key in TRAIN's config") : PAGE.index("A client that gets a key of this table")
    ]
    rows = [row for row in lines.splitlines() if row.startswith("| `")]
    listed = {key for row in rows for key in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert listed == {*WORK, "local-only", "local-steps", "snapshot-step", "state-round"}
    words = " ".join(PAGE.split())
    served = words[
        words.index("those made by `fair`") : words.index("methods that send none take any client")
    ]
    assert set(re.findall(r"`([\w-]+)`", served)) - {"fair"} == set(SUPPORTED.wire_keys)


def test_a_run_resumes_although_the_loader_shuffles_globally(quickstart: Modules) -> None:
    app = quickstart[0].app
    strategy = FedProx(mu=0.1)
    states = list[Any]()
    keep = lambda each: states.append((each.arrays, copy.deepcopy(strategy.state_dict())))  # noqa: E731
    whole = start(strategy, app, SMALL, quickstart, num_rounds=4, on_round=keep)
    torch.rand(5)  # another process draws something else
    arrays, state = states[1]
    again = start(
        FedProx(mu=0.1), app, SMALL, quickstart, num_rounds=4, initial_arrays=arrays, resume=state
    )
    assert weights(again.arrays).tobytes() == weights(whole.arrays).tobytes()
    assert dict(again.evaluate_metrics_clientapp[4]) == dict(whole.evaluate_metrics_clientapp[4])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (flowers.FedProx(proximal_mu=0.5), FedProx(mu=0.5)),
        (
            flowers.QFedAvg(client_learning_rate=STEP_SIZE, q=0.0),
            QFedAvg(q=0.0, lipschitz=1 / STEP_SIZE),
        ),
    ],
)
def test_methods_end_where_flowers_own_do(
    quickstart: Modules, theirs: FedProx | QFedAvg, ours: FedProx | QFedAvg
) -> None:
    """The same clients train on the same draws, so only the server's arithmetic may differ."""
    app = quickstart[0].app
    expected = start(theirs, app, SMALL, quickstart, num_rounds=1)
    found = start(ours, app, SMALL, quickstart, num_rounds=1)
    assert np.abs(weights(found.arrays) - weights(expected.arrays)).max() <= 1e-6
    measured = expected.evaluate_metrics_clientapp[1]
    assert {name: found.evaluate_metrics_clientapp[1][name] for name in measured} == pytest.approx(
        dict(measured)
    )
    assert set(measured) == {"eval_loss", "eval_acc"}


def test_the_recipe_for_differential_privacy_clips(subtests: pytest.Subtests) -> None:
    (recipe,) = [block for block in blocks("docs/privacy.md") if "LocalDpMod" in block.text]
    app: dict[str, Any] = {}
    exec(recipe.text, app)  # noqa: S102
    config = run_config(clients=CLIENTS)
    model = load_task(config).model()
    finished: list[Round] = []
    grid = InProcessGrid(app["app"], config, CLIENTS)
    FedMGDA().start(
        grid, ArrayRecord(model.state_dict()), num_rounds=2, timeout=60.0, on_round=finished.append
    )
    for each in finished:
        with subtests.test(each=each):
            assert each.refused == {}
            assert each.missing == ()
            assert len(each.coefficients) == len(each.evaluations) == CLIENTS
            assert all(name.startswith("client-") for name in each.participants)
    noise = 0.3 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 15.0
    moved = weights(finished[0].arrays) - weights(ArrayRecord(model.state_dict()))
    assert 0.2 * noise < moved.std() < noise


def test_the_noise_of_a_mod_is_not_seeded() -> None:
    private = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=15.0, delta=1e-5)
    assert len({trained(ask(app_of(mods=[private]))) for _ in range(2)}) == 2


def test_an_app_keeps_a_head_at_each_client(quickstart: Modules) -> None:
    head = ("second.weight", "second.bias")
    grid = InProcessGrid(quickstart[0].app, SMALL, CLIENTS)
    torch.manual_seed(0)
    initial = ArrayRecord(quickstart[1].Net().state_dict())
    result = FedAvg(personal_parameters="second.*").start(
        grid, initial_arrays=initial, num_rounds=3, train_config=ConfigRecord({"lr": STEP_SIZE})
    )
    assert [
        (name, array)
        for name, array in result.arrays.items()
        if np.array_equal(array.numpy(), initial[name].numpy()) != (name in head)
    ] == []
    heads = [context.state.array_records[RECORD] for context in grid.contexts.values()]
    assert all(set(each) == set(head) for each in heads)
    first, second, *_ = (each["second.weight"].numpy() for each in heads)
    assert not np.allclose(first, second)


@pytest.mark.parametrize("own", ["", "second.*"])
def test_a_metric_keeps_its_name_whatever_model_it_is_of(
    own: str, quickstart: Modules, tmp_path: Path
) -> None:
    """The table says which model."""
    found = list[Round]()
    RunFolder(tmp_path, score=Score("eval_acc", percent=True), loss="eval_loss").start(
        FedAvg(personal_parameters=own),
        InProcessGrid(quickstart[0].app, SMALL, CLIENTS),
        ArrayRecord(quickstart[1].Net().state_dict()),
        2,
        train_config=ConfigRecord({"lr": STEP_SIZE}),
        on_round=found.append,
    )
    assert {name for each in found[-1].evaluations.values() for name in each} == {
        "eval_acc",
        "eval_loss",
        "num-examples",
    }
    kind = "personal" if own else "global"
    row = table(tmp_path / "clients.csv")[-1]
    assert [name for name in row if "eval_acc" in name and row[name]] == [
        f"test_eval_acc_of_{kind}_model"
    ]


def test_an_app_keeps_its_head_if_it_replies_more_records() -> None:
    named = {name: torch.ones(2) for name in ("first.weight", "second.weight")}
    content = RecordDict(
        {"arrays": ArrayRecord(named), "more": ArrayRecord({"own": torch.zeros(1)})}
    )
    where = context()
    reply = Message(content, dst_node_id=2, message_type="train")
    keep_own(reply, where, Terms(server_round=1, personal_parameters="second.*"))
    assert list(where.state.array_records[RECORD]) == ["second.weight"]
    assert list(reply.content.array_records["arrays"]) == ["first.weight"]
    assert list(reply.content.array_records["more"]) == ["own"]


def test_an_app_replies_no_head_after_a_change_of_terms(quickstart: Modules) -> None:
    head = ("second.weight", "second.bias")
    body = ("first.weight", "first.bias")
    torch.manual_seed(0)
    initial = ArrayRecord(quickstart[1].Net().state_dict())

    def continued(grid: InProcessGrid) -> ArrayRecord:
        return start_from(initial, FedAvg(personal_parameters="first.*", frozen=body), grid)

    used = InProcessGrid(quickstart[0].app, SMALL, CLIENTS)
    start_from(initial, FedAvg(personal_parameters="second.*", frozen=head), used)
    assert [
        used_by
        for used_by in used.contexts.values()
        if set(used_by.state.array_records[RECORD]) != set(head)
    ] == []
    given = continued(used)
    expected = continued(InProcessGrid(quickstart[0].app, SMALL, CLIENTS))
    assert [
        name for name in head if not np.array_equal(given[name].numpy(), expected[name].numpy())
    ] == []


def start_from(initial: ArrayRecord, strategy: FedAvg, grid: InProcessGrid) -> ArrayRecord:
    """Return the common model after a round."""
    config = ConfigRecord({"lr": STEP_SIZE})
    return strategy.start(grid, initial_arrays=initial, num_rounds=1, train_config=config).arrays


def test_an_app_names_what_it_keeps_by_patterns(quickstart: Modules) -> None:
    strategy = FedAvg(personal_parameters="head", frozen=("second.weight", "second.bias"))
    with pytest.raises(FairbloomError, match="name them by patterns, as in 'fc2"):
        start(strategy, quickstart[0].app, SMALL, quickstart)


MEASURED = {"measure": ["loss-before"]}
MEASURES = [*(f"{what}-{when}" for what in ("loss", "accuracy") for when in ("before", "after"))]
MEASURES += ["learning-rate", "update-norm", "step-sum"]
EXACTLY = partial(pytest.approx, rel=1e-12)


def rounds_of(
    method: FairStrategy, app: ClientApp, config: dict[str, Any] | None = None
) -> list[Round]:
    found: list[Round] = []
    train_config = ConfigRecord(config or {})
    start = ArrayRecord(Point().state_dict())
    method.start(
        InProcessGrid(app, {}, 2), start, 1, train_config=train_config, on_round=found.append
    )
    return found


# Measures -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_measures_are_means_over_all_examples() -> None:
    content = ask(app_of(), {"measure": [*MEASURES, "blood-pressure"]})
    x = trained(content)
    metrics = dict(content.metric_records["metrics"])
    assert x == EXACTLY(steps())
    assert metrics.pop("returned") == 3.0
    assert metrics.pop("num-examples") == 5
    assert metrics == dict(
        zip(
            MEASURES,
            map(EXACTLY, (loss_at(0), loss_at(x), 0.5, 0.5, RATE, x, 3 * RATE)),
            strict=True,
        )
    )
    assert set(ask(app_of(), {"measure": ["loss-after"]}).metric_records["metrics"]) == {
        *("returned", "num-examples", "loss-after")
    }
    rounds = rounds_of(FedAvg(), app_of(), {"measure": ["update-norm"]})
    assert [report["update-norm"] for report in rounds[0].train_metrics.values()] == EXACTLY([x, x])
    assert {"eval_loss", "eval_acc"} <= set(rounds[0].evaluations["client-0"])


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(POINTS, batch_size=2, shuffle=True, drop_last=True),
        DataLoader(POINTS, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1)),
        DataLoader(POINTS, 2, sampler=WeightedRandomSampler([1.0, 0.0, 0.0, 0.0, 0.0], 5)),
        DataLoader(POINTS, batch_sampler=[[0, 1, 2], [3, 4]]),
    ],
)
def test_whatever_a_loader_drops_the_whole_set_is_measured(loader: DataLoader) -> None:
    assert measured(app_of(data=[loader]), "loss-before") == [EXACTLY(loss_at(0.0))]


OUTSIDE = {0: torch.ones(1)}


class Noisy(nn.Module):
    """A model with what measuring could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(1, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(4).eval()
        self.frozen.weight.requires_grad_(False)
        self.old = nn.utils.weight_norm(nn.Linear(4, 4))  # cannot be copied after a step
        self.new = parametrizations.weight_norm(nn.Linear(4, 4))
        self.cache: dict[int, Tensor] = {}
        self.seen: list[int] = []
        # these are not compared by value
        self.register_buffer("sparse", torch.eye(2).to_sparse(), persistent=False)
        self.odd = [torch.empty(1, device="meta"), torch.nested.nested_tensor([torch.ones(1)])]
        self.gap = torch.tensor(math.nan).expand(3)
        self.scripted = torch.jit.script(nn.Dropout(0.5))

    def forward(self, examples: Tensor) -> Tensor:
        hidden = self.norm(self.x(examples.to(self.x.weight.dtype)[:, None]))
        hidden = self.new(self.old(self.scripted(self.drop(self.frozen(hidden)))))
        scale = self.cache.setdefault(4, torch.arange(4.0, dtype=hidden.dtype).cos())
        return (hidden * scale * OUTSIDE[0]).square().mean() * (1 + len(self.seen))


def means(model: nn.Module, loader: Any) -> float:
    return math.fsum(model(batch).item() for (batch,) in loader)


def after(disturb: Callable[[Any], object]) -> Callable[..., Any]:
    def test(model: nn.Module, loader: Any) -> tuple[float, float]:
        disturb(model)
        return means(model, loader) / len(loader), 0.5

    return test


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "test",
    [
        measure_point,
        torch.inference_mode()(measure_point),
        *map(
            after,
            (
                lambda model: model.requires_grad_(False),
                lambda model: fuse_modules(model, ["x", "norm"], inplace=True),
                lambda model: model.half(),
                lambda model: model.norm.train(),
                lambda model: model.x.weight.data.mul_(2.0),
                lambda model: model.norm.running_mean.add_(1.0),
                lambda model: model.seen.append(1),
                lambda model: setattr(model, "drop", nn.Identity()),
            ),
        ),
    ],
)
def test_measuring_changes_nothing_that_is_trained(test: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    start = Noisy()
    generator = torch.Generator()
    loader = DataLoader(POINTS, batch_size=3, shuffle=True, generator=generator)
    replies = []
    for asked in ({}, {"measure": MEASURES}):
        generator.manual_seed(1)
        app = app_of(test=test, data=[loader], net=Noisy)
        replies.append(ask(app, asked, model=start).array_records["arrays"])
    assert all(array.data == replies[1][name].data for name, array in replies[0].items())


def keep_outside(model: nn.Module) -> None:
    with torch.inference_mode():
        OUTSIDE[0] = torch.ones(1)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (lambda model: model.frozen.weight.mul_(2.0), r"'frozen.weight' of .* write to a copy"),
        (lambda model: copy.deepcopy(model.frozen).weight.mul_(2.0), ""),
        (lambda model: model.half(), ""),
        (keep_outside, r"inference_mode outside the model's modules: take torch.no_grad"),
    ],
)
def test_what_measuring_cannot_restore_is_named(
    monkeypatch: pytest.MonkeyPatch, disturb: Callable[[Any], object], words: str
) -> None:
    monkeypatch.setitem(OUTSIDE, 0, OUTSIDE[0])
    app = app_of(test=after(disturb), data=[DataLoader(POINTS, batch_size=3)], net=Noisy)
    with pytest.raises(ReportableError, match=words) if words else nullcontext():
        ask(app, MEASURED, model=Noisy())


def test_a_gradient_of_a_test_function_is_not_kept() -> None:
    model = Point()
    restore = remember(model)
    torch.autograd.backward(model(EXAMPLES))
    restore()
    assert model.x.grad is None


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "test",
    [
        lambda model, loader: (
            math.fsum(model(b).item() * len(b) for (b,) in loader) / len(loader.dataset),
            0.5,
        ),
        lambda model, loader: (means(model, loader) / len(loader), {"accuracy": 0.5}),
        lambda model, loader: {
            "loss": torch.tensor(means(model, loader)),
            "accuracy": 0.5,
            "f1": 0.1,
        },
    ],
)
def test_each_kind_of_mean_is_over_examples(test: Callable[..., Any]) -> None:
    assert measured(app_of(test=test), "loss-before", "accuracy-before") == [
        pytest.approx(loss_at(0.0)),
        0.5,
    ]


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("power", [1, -1])
def test_what_is_no_mean_over_examples_is_refused(power: int) -> None:
    once = loss_at(0.0) * 5**power
    twice = loss_at(0.0) * 10**power
    app = app_of(test=lambda model, data: (means(model, data) * len(data.dataset) ** power, 0.5))
    with pytest.raises(
        ValueError, match=rf"must return the mean .*{once:.6g} for 5 examples, and {twice:.6g}"
    ):
        ask(app, MEASURED)


class Augmented(Dataset[Any]):
    """The examples, each moved by a new number of this function."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return len(EXAMPLES)

    def __getitem__(self, place: int) -> Any:
        return (EXAMPLES[place] + self.draw(),)


OWN = np.random.default_rng(3)
DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(1)),
    "random": random.random,
    "NumPy": lambda: float(np.random.rand()),
    "a generator of its own": OWN.random,
}


def mixed(examples: list[Any]) -> list[Tensor]:
    """Mix the examples of a batch at random, as MixUp does."""
    (batch,) = default_collate(examples)
    return [batch + torch.rand(len(batch)) * batch.roll(1)]


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("draw", DRAWS)
def test_training_data_may_be_augmented_at_random(draw: str) -> None:
    loader = DataLoader(Augmented(DRAWS[draw]), batch_size=2, shuffle=True)
    before, after = measured(app_of(data=[loader]), "loss-before", "loss-after")
    assert loss_at(0.0) < before < loss_at(-1.0)
    assert after < before


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_collate_function_may_draw_at_random() -> None:
    loader = DataLoader(POINTS, batch_size=2, collate_fn=mixed)
    (before,) = measured(app_of(data=[loader]), "loss-before")
    assert before > loss_at(0.0)


class Batched(Dataset[Any]):
    """A dataset that makes a whole batch at once."""

    def __len__(self) -> int:
        return len(EXAMPLES)

    def __getitem__(self, place: int) -> Any:
        return (EXAMPLES[place],)

    def __getitems__(self, places: list[int]) -> Any:
        return (EXAMPLES[places],)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_dataset_may_make_whole_batches() -> None:
    loader = DataLoader(Batched(), batch_size=2, collate_fn=lambda batch: batch)
    assert measured(app_of(data=[loader]), "loss-before") == [EXACTLY(loss_at(0.0))]
    with pytest.raises(ValueError, match="must return the mean loss over examples"):
        ask(app_of(test=summed, data=[loader]), MEASURED)


def summed(model: nn.Module, loader: Any) -> tuple[float, float]:
    return means(model, loader) * len(loader.dataset), 0.5


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("draw", ["torch", "random", "NumPy"])
def test_a_sum_is_found_behind_random_augmentation(draw: str) -> None:
    loader = DataLoader(Augmented(DRAWS[draw]), batch_size=2)
    with pytest.raises(ValueError, match="must return the mean loss over examples"):
        ask(app_of(test=summed, data=[loader]), MEASURED)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_dropout_left_on_is_named(subtests: pytest.Subtests) -> None:
    def left_on(model: nn.Module, loader: Any) -> tuple[float, float]:
        model.train()
        return math.fsum(model(batch).item() for (batch,) in loader) / len(loader), 0.5

    def transformed(model: nn.Module, loader: Any) -> tuple[float, float]:
        moved = [model(batch + torch.rand(len(batch))).item() for (batch,) in loader]
        return math.fsum(moved) / len(loader), 0.5

    class Dropped(Point):
        def forward(self, examples: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(examples, 0.5, self.training))

    for test, net in ((left_on, Dropped), (transformed, Point)):
        with subtests.test(test=test):
            with pytest.raises(ValueError, match=r"the same 5 examples give other .*model\.eval\("):
                ask(app_of(test=test, net=net), MEASURED)
    assert measured(app_of(net=Dropped), "loss-before") == [EXACTLY(loss_at(0.0))]


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_the_check_of_a_test_function_draws_nothing() -> None:
    app = app_of(data=[DataLoader(Augmented(DRAWS["torch"]), batch_size=2, shuffle=True)])
    first = ask(app, {"measure": MEASURES})
    again = ask(app, {"measure": MEASURES})  # the same process checks once
    assert first.metric_records == again.metric_records
    assert first.array_records == again.array_records


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("rates", "about"), [([0.0], {"zero-rate": True}), ([0.1], {}), ([0.1, 0.0], {})]
)
@pytest.mark.parametrize("asked", [{}, MEASURED])
def test_a_learning_rate_of_0_is_replied(
    rates: list[float], about: dict[str, bool], asked: dict[str, Any]
) -> None:
    def train(model: nn.Module, loader: Any) -> float:
        return sum(descend(model, loader, SGD(model.parameters(), lr=rate)) for rate in rates)

    assert dict(ask(app_of(train=train), asked).config_records.get("client", {})) == about


class OwnPace(Optimizer):
    """An optimizer without a number as its rate, as transformers' Adafactor may be."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= RATE * parameter.grad


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("asked", [{}, {"proximal-mu": 0.1}])
def test_an_optimizer_may_choose_its_rate_itself(asked: dict[str, float]) -> None:
    app = app_of(lambda model, loader: descend(model, loader, OwnPace(model)))
    reply = ask(app, asked)
    assert trained(reply) == trained(ask(app_of(), asked))
    assert "zero-rate" not in reply.config_records.get("client", {})
    with pytest.raises(ValueError, match="the optimizer has no learning rate, and one is measured"):
        ask(app, {"measure": ["learning-rate"]})


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_secure_aggregation_is_refused_in_one_sentence() -> None:
    words = r"secure aggregation \(SecAgg\+\) shows the server only a sum"
    with pytest.raises(FairbloomError, match=words):
        fair(train_point, measure_point, mods=[secaggplus_mod])
    with pytest.raises(FairbloomError, match=words):
        fair(train_point, measure_point).train(mods=[secagg_mod])
    # an app that is not made by fair fails in training, and the run ends with its first round
    plain = ClientApp(mods=[secaggplus_mod])
    plain.train()(lambda message, where: message)
    with pytest.raises(FairbloomError, match=words):
        rounds_of(FedAvg(), plain)


def test_masks_of_flower_have_seeds_of_32_bits() -> None:
    """A reason of docs/privacy.md against SecAgg+: with a Flower that mended it, the page changes."""
    key = bytes(range(32))
    other = key[4:8] + key[:4] + key[8:]
    masks = [pseudo_rand_gen(each, 1024, [(50,)])[0] for each in (key, other, bytes([1, *key[1:]]))]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], masks[2])


@pytest.mark.parametrize(
    ("method", "app", "said"),
    [
        (SCAFFOLD, app_of, "does not support control-variates = True"),
        (Ditto, app_of, "does not support personal-lambda = 1.0"),
        (
            DRFA,
            app_of,
            r"^the clients refuse: .*local-steps = 10: this client does not know it: take .* with a task",
        ),
        (
            FairFed,
            app_of,
            r"^the clients refuse: .*measure = positives-0: this client does not know it: take .* a task",
        ),
        (partial(FedAvg, wire_dtype="bfloat16"), app_of, "support wire-dtype = bfloat16"),
        (partial(FedAvg, fine_tune_epochs=1), app_of, "support fine-tune-epochs = 1"),
        (
            partial(FedAvg, personal_parameters="x", personal_steps="head-first", frozen=("x",)),
            app_of,
            "does not support head-epochs = 1",
        ),
        (FedAvg, lambda: ClientApp(client_fn=lambda where: NumPyClient().to_client()), "client_fn"),
    ],
)
def test_what_cannot_work_is_said_before_a_round_ends(
    method: Callable[[], FairStrategy], app: Callable[[], ClientApp], said: str
) -> None:
    with pytest.raises(FairbloomError, match=said):
        rounds_of(method(), app())


def test_an_older_server_is_refused_in_one_sentence() -> None:
    with pytest.raises(FairbloomError, match="workflows are Flower's older interface"):
        Server(client_manager=SimpleClientManager(), strategy=FedAvg()).fit(1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["mods", "handler_mods"])
def test_clipping_that_is_left_to_clients_needs_their_mod(given: str) -> None:
    asked = {"clipping_norm": 1.0}
    with pytest.raises(ReportableError, match=r"clipping_norm = 1.0 is for a mod.*fixedclipping"):
        ask(app_of(**{given: [LocalDpMod(1.0, 1.0, 1.0, 1e-5)]}), asked)
    for mod in (fixedclipping_mod, adaptiveclipping_mod):
        assert ask(app_of(**{given: [mod]}), asked).array_records


@pytest.mark.parametrize("fails", [True, False])
def test_a_wrapper_returns_no_arrays_with_a_warning(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(data=() if fails else (LOADER,))  # a training function without its data fails
    result = flowers.DifferentialPrivacyServerSideFixedClipping(
        FedAvg(weighting="uniform"), 0.0, 1.0, num_sampled_clients=2
    ).start(InProcessGrid(app, {}, 2), ArrayRecord(Point().state_dict()), 1)
    assert bool(result.arrays) != fails
    assert ("up to round 1 no step was taken" in caplog.text) == fails


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_one_client_cannot_end_a_run_by_its_error() -> None:
    def train(message: Message, where: Context) -> Message:
        if where.node_config["partition-id"] == 0:
            raise ReportableError("KeyError: 'secaggplus_configs'")
        return ours(message, where)

    ours = app_of()
    app = ClientApp()
    app.train()(train)
    app.evaluate()(lambda message, where: ours(message, where))
    app.query()(lambda message, where: ours(message, where))
    (finished,) = rounds_of(FedAvg(), app)
    assert list(finished.coefficients) == ["client-1"]


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_query_of_the_app_needs_an_action() -> None:
    app = app_of()
    with pytest.raises(
        FairbloomError, match=r"fair\(...\) answers QUERY itself.*@app.query\('mine'"
    ):
        app.query()
    app.query("mine")(lambda message, where: Message(RecordDict(), reply_to=message))
    message = Message(RecordDict(), 2, "query.mine")
    assert not app(message, context()).has_error()


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(("number", "count"), [(3, 1), (5, 0), (4, 0)])
@pytest.mark.parametrize("asked", [{}, MEASURED])
def test_batches_counted_as_examples_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, number: int, count: int, asked: dict[str, Any]
) -> None:
    app = fair(train_point, measure_point)
    app.train()(lambda message, where: reply(message, app.train_fn(Point(), LOADER), number))
    for _ in range(3):
        ask(app, asked)
    warned = "num-examples = 3 is the number of batches; the training set has 5 examples"
    assert len([words for words in caplog.messages if warned in words]) == count


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "must return .* not NoneType"),
        ((1.0, 2.0, 3.0), "not tuple"),
        ({"accuracy": 0.5}, "not dict"),
        ((1.0, {"f1": 0.5}), "a dict with accuracy"),
        ((1.0, 87.5), r"the accuracy 87.5: it must be in \[0, 1\]"),
    ],
)
def test_what_a_test_function_may_not_return(returned: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measured(
            app_of(test=lambda model, loader, returned=returned: returned),
            "accuracy-before",
        )
    with pytest.raises(ValueError, match="loss-before' must be a finite number"):
        rounds_of(QFedAvg(q=1.0, lipschitz=1.0), app_of(test=lambda model, loader: (math.nan, 0.5)))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda model, loader, criterion: (0.0, 0.0), "it takes model, loader, criterion"),
        (lambda model: (1.0, 1.0), "must take the model, a loader"),
    ],
)
def test_a_test_function_takes_training_values_by_their_names(
    wrong: Callable[..., Any], words: str
) -> None:
    seen: list[Any] = []

    def train(net: nn.Module, data: Any, device: str = "here", *more: Any, **options: Any) -> float:
        return train_point(net, data)

    def test(
        device: str, data: Any, net: nn.Module, depth: int, verbose: bool = False
    ) -> tuple[float, float]:
        seen.append((type(net), device, depth, verbose))
        return measure_point(net, data)

    app = fair(train, test)
    app.train()(
        lambda message, where: reply(message, app.train_fn(Point(), LOADER, "there", 7, depth=3))
    )
    assert measured(app, "loss-before") == [EXACTLY(loss_at(0.0))]
    assert set(seen) == {(Point, "there", 3, False)}
    with pytest.raises(ValueError, match=words):
        ask(app_of(test=wrong), MEASURED)


def reply(message: Message, asked: float = 0.0, examples: int = 5) -> Message:
    content = {
        "arrays": message.content["arrays"],
        "metrics": MetricRecord({"num-examples": examples, "asked": asked}),
    }
    return Message(RecordDict(content), reply_to=message)


# The training data and the model ------------------------------------------------------------------


def train_on_examples(model: nn.Module, dataset: Any, other: Any = None) -> float:
    return train_point(
        model, dataset if isinstance(dataset, DataLoader) else DataLoader(dataset, batch_size=2)
    )


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_training_data_of_the_user_are_measured() -> None:
    loaders = {"a": LOADER}
    app = app_of(
        train_on_examples,
        data=[POINTS],
        training_data=lambda where: loaders[where.node_config["name"]],
    )
    assert measured(app, "loss-before", "loss-after", where=context(name="a")) == EXACTLY(
        [loss_at(0), loss_at(steps())]
    )
    # they suffice where nothing is measured
    assert trained(
        ask(app_of(train_on_examples, data=[LOADER, DataLoader(POINTS)]), {"proximal-mu": 0.7})
    ) == EXACTLY(steps(mu=0.7))


ITERABLE = type("Iterable", (IterableDataset,), {"__iter__": lambda self: iter([(EXAMPLES[0],)])})()


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("data", "load", "words"),
    [
        (
            [POINTS],
            None,
            "measure = loss-before needs one DataLoader .* there is none: give .*training_data=",
        ),
        ([LOADER, DataLoader(POINTS)], None, "there is dataset, other: .*training_data="),
        ([POINTS], lambda where: POINTS, "there is none"),
        ([DataLoader(ITERABLE)], None, "there is dataset: "),
        ([DataLoader(POINTS, batch_size=None)], None, "there is dataset: "),
        ([DataLoader(TensorDataset(EXAMPLES[:0]))], None, "a dataset with a length above 0"),
    ],
)
def test_data_that_cannot_be_found_are_asked_for(data: Any, load: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_of(train_on_examples, data=data, training_data=load), MEASURED)


class Wide(Point):
    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(3))


def distil(student: nn.Module, loader: Any, teacher: nn.Module) -> float:
    return train_point(student, loader)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("other", [Wide(), Point().requires_grad_(False), nn.MSELoss()])
def test_the_model_is_the_one_that_fits_and_is_trained(
    other: Wide | Point | Callable[..., Any],
) -> None:
    content = ask(app_of(distil, data=[LOADER, other]), {"proximal-mu": 0.7, **MEASURED})
    assert trained(content) == EXACTLY(steps(mu=0.7))
    assert content.metric_records["metrics"]["loss-before"] == EXACTLY(loss_at(0.0))
    with pytest.raises(ValueError, match=r"was called with the models student, teacher"):
        ask(app_of(distil, data=[LOADER, Point()]), MEASURED)
    with pytest.raises(ValueError, match=r"no torch\.nn\.Module with trained parameters"):
        ask(app_of(net=lambda: Point().requires_grad_(False)), MEASURED)


# Terms --------------------------------------------------------------------------------------------


def with_closures(model: nn.Module, loader: Any, kind: Any = SGD) -> float:
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


def with_a_scaler(model: nn.Module, loader: Any, fused: bool = False) -> float:
    optimizer = SGD(model.parameters(), lr=RATE, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    for (batch,) in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    return 0.0


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_the_proximal_term_pulls_to_the_received_model() -> None:
    start = Point()
    start.x.data.fill_(3.0)
    assert trained(ask(app_of(), {"proximal-mu": 0.7}, model=start)) == EXACTLY(
        steps(mu=0.7, x=3.0)
    )


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("own", [0.0, 0.9])
def test_momentum_is_added_to_each_step(own: float) -> None:
    app = app_of(lambda m, loader: descend(m, loader, SGD(m.parameters(), lr=RATE, momentum=own)))
    assert trained(ask(app, {"client-momentum": 0.6})) == EXACTLY(steps(beta=0.6))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_terms_are_kept_for_the_users_model_alone() -> None:
    other = Point()
    others = SGD(other.parameters(), lr=RATE)

    def train(model: nn.Module, loader: Any) -> float:
        other.x.grad = torch.ones_like(other.x)
        others.step()  # a teacher, say
        return train_point(model, loader)

    ask(app_of(train), {"proximal-mu": 5.0, "client-momentum": 0.9})
    assert other.x.item() == EXACTLY(-RATE)
    assert others.param_groups[0]["momentum"] == 0.0


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_client_with_its_own_proximal_term_adds_it_once() -> None:
    app = fair(train_point, measure_point)

    @app.train()
    def on_train(message: Message, _: Any) -> Message:
        model = Point()  # type: ignore[arg-type]
        mu = float(message.content.config_records["config"]["proximal-mu"])  # type: ignore[arg-type]
        model.forward = lambda batch: Point.forward(model, batch) + mu / 2 * model.x.square().sum()  # type: ignore[assignment, method-assign]
        app.train_fn(model, LOADER)
        metrics = MetricRecord({"num-examples": 5, "mu": mu})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    content = ask(app, {"proximal-mu": 0.7})
    assert trained(content) == EXACTLY(steps(mu=0.7))
    assert content.metric_records["metrics"]["mu"] == 0.0


def by_hand(model: nn.Module, loader: Any) -> float:
    for (batch,) in loader:
        model(batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=RATE)  # type: ignore[arg-type] # it has one
    return 0.0


def on_a_copy(model: nn.Module, loader: Any) -> float:
    other = copy.deepcopy(model)
    train_point(other, loader)
    model.load_state_dict(other.state_dict())
    return 0.0


def with_two_rates(model: nn.Module, loader: Any) -> float:
    groups: Any = [
        {"params": list(model.parameters())},
        {"params": [torch.zeros(1, requires_grad=True)], "lr": 7.0},
    ]
    return descend(model, loader, SGD(groups, lr=RATE))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("train", "asked", "words"),
    [
        (
            lambda model, loader: descend(model, loader, Adam(model.parameters(), lr=RATE)),
            {"client-momentum": 0.9},
            "client-momentum = 0.9: Adam has no momentum",
        ),
        (
            partial(with_closures, kind=torch.optim.LBFGS),
            {"proximal-mu": 0.1},
            "proximal-mu = 0.1: LBFGS",
        ),
        (
            by_hand,
            {"proximal-mu": 0.1},
            "proximal-mu = 0.1: no optimizer of torch.optim took a step",
        ),
        (by_hand, {"measure": ["learning-rate"]}, "measure = learning-rate: no optimizer"),
        (on_a_copy, {"proximal-mu": 0.1}, "proximal-mu = 0.1: no optimizer .* on the model"),
        (
            with_two_rates,
            {"measure": ["learning-rate"]},
            "the optimizer has several learning rates, .0.1, 7.0.",
        ),
    ],
)
def test_a_term_that_a_function_cannot_keep_is_named(
    train: Callable[..., float], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ask(app_of(train), asked)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("calls", [0, 2])
def test_terms_need_one_call_of_the_training_function(calls: int) -> None:
    assert trained(ask(app_of(calls=calls))) == EXACTLY(steps(epochs=calls))
    with pytest.raises(
        ValueError, match=rf"proximal-mu = 0.1, measure = loss-before, .*called it {calls} times"
    ):
        ask(app_of(calls=calls), {"proximal-mu": 0.1, **MEASURED})


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "asked",
    [
        *(
            {"local-only": True},
            {"full-batch-step": True},
            {"local-steps": 7},
            {"baseline-epochs": 200},
        ),
        *({"control-variates": True}, {"dynamic-alpha": 0.1}, {"disparity": "demographic-parity"}),
        *(
            {"measure": ["hits-0"]},
            {"measure": ["loss-baseline"]},
            {"personal-lambda": 0.5, "personal-epochs": 1},
        ),
        {"loss-transform": "propfair", "propfair-baseline": 5.0, "propfair-epsilon": 0.2},
    ],
)
def test_what_only_a_task_can_do_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    said = f"^{next(iter(asked))}.*: .*own client with a task of yours"
    assert re.search(said, unknown_to(app_of(), asked))
    said = "^measure = train-loss: .*own client with a task of yours"
    assert re.search(said, unknown_to(app_of(), {"measure": ["train-loss"]}, MessageType.EVALUATE))
    # As if a term had been added to the protocol and forgotten here:
    monkeypatch.setattr(
        fair_package, "SUPPORTED", replace(SUPPORTED, rules=frozenset({ClientMomentum}))
    )
    said = r"^proximal-mu = 0\.5: this client does not know it"
    assert re.search(said, unknown_to(app_of(), {"proximal-mu": 0.5}))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_train_function_that_raises_leaves_nothing_behind() -> None:
    def failing(model: nn.Module, loader: Any) -> float:
        train_point(model, loader)
        raise OSError("the disk is full")

    before = torch.get_rng_state()
    with pytest.raises(OSError, match="disk is full"):
        ask(app_of(failing), {"proximal-mu": 0.1, **MEASURED})
    assert not hooks._global_optimizer_pre_hooks
    assert torch.equal(torch.get_rng_state(), before)
    train_fn = fair(train_point, measure_point).train_fn
    model = Point()
    assert train_fn.__name__ == "train_point"
    train_fn(model, LOADER)  # outside a message it is the user's
    assert model.x.item() == EXACTLY(steps())


# What a client draws, and who it is ---------------------------------------------------------------


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_draws_depend_on_client_round_and_the_seeds() -> None:
    drawn: list[Any] = []

    def draws(asked: dict[str, Any], name: str = "a", seed: int = 0, **how: Any) -> Any:
        app = app_of(
            lambda model, loader: drawn.append(draw()) or train_point(model, loader), **how
        )  # type: ignore[func-returns-value]
        ask(app, asked, where=context({"seed": seed}, name=name))
        return drawn[-1]

    places: list[Any] = [({}, "a"), ({}, "b"), ({}, "a", 5)]
    places += [
        ({key: value}, "a") for key, value in (("server-round", 2), ("seed", 1), ("seed", 2))
    ]
    assert len({draws(*place) for place in places}) == len(places)
    assert draws({"seed": 1}) == draws({"seed": 1, "proximal-mu": 3.0, **MEASURED})
    assert draws({}, seeded=False) != draws({}, seeded=False)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_handler_draws_alike_in_the_whole_run_and_no_further() -> None:
    app = fair(train_point, measure_point)
    drawn = list[Any]()
    handler = lambda message, where: drawn.append(draw()) or reply(message)  # type: ignore[func-returns-value]  # noqa: E731
    app.train()(handler)
    app.evaluate()(handler)
    outside = []
    for number in (1, 2):
        for kind in (MessageType.TRAIN, MessageType.EVALUATE):
            random.seed(1), np.random.seed(1), torch.manual_seed(1)
            ask(app, {"server-round": number}, kind)
            outside.append(draw())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert {*outside} == {draw()}
    assert len({*drawn}) == 1
    ask(app, where=context(name="another"))
    assert drawn[-1] != drawn[0]


class NoisySGD(Optimizer):
    """An optimizer that adds noise before another one steps, as Opacus' DPOptimizer does."""

    def __init__(self, inner: Optimizer, noise_multiplier: float) -> None:
        self.inner = inner
        self.noise_multiplier = noise_multiplier

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        for parameter in self.inner.param_groups[0]["params"]:
            parameter.grad += self.noise_multiplier * torch.randn_like(parameter)
        return self.inner.step()


def train_with_noise(model: nn.Module, loader: Any, noise: float = 1.0) -> float:
    return descend(model, loader, NoisySGD(SGD(model.parameters(), lr=RATE), noise))


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "train",
    [
        with_closures,
        with_a_scaler,
        partial(with_a_scaler, fused=True),
        partial(train_with_noise, noise=0.0),
    ],
)
def test_the_proximal_term_is_added_in_any_kind_of_loop(train: Callable[..., float]) -> None:
    assert trained(ask(app_of(train), {"proximal-mu": 0.7})) == pytest.approx(
        steps(mu=0.7), rel=1e-6
    )


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("asked", [{}, MEASURED, {"proximal-mu": 0.7}])
def test_noise_is_refused_where_the_server_knows_the_seed(asked: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"NoisySGD adds noise .*: write fair\(\.\.\., seeded=False\)"
    ):
        ask(app_of(train_with_noise), asked)
    assert len({trained(ask(app_of(train_with_noise, seeded=False), asked)) for _ in range(2)}) == 2


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
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
    content = ask(app_of(), kind=MessageType.QUERY, where=context(**node))
    assert dict(content.config_records["client"]) == {
        "name": name,
        "honours": SUPPORTED.wire_keys,
    }


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_mods_are_around_the_handlers_that_they_are_given_to() -> None:
    seen: list[tuple[str, str, list[str]]] = []

    def watching(who: str) -> Callable[..., Message]:
        def watch(
            message: Message, context: Context, call: Callable[[Message, Context], Message]
        ) -> Message:
            answer = call(message, context)
            seen.append(
                (
                    who,
                    message.metadata.message_type,
                    sorted(answer.content.metric_records["metrics"]),
                )
            )
            return answer

        return watch

    app = app_of(
        mods=[watching("outer")],
        handler_mods=[watching("inner")],
        handler_evaluate_mods=[watching("other")],
    )
    ask(app, kind=MessageType.QUERY)
    ask(app, MEASURED)
    ask(app, kind=MessageType.EVALUATE)
    trained = ["loss-before", "num-examples", "returned"]
    assert seen == [
        ("inner", "train", trained),
        ("outer", "train", trained),
        ("other", "evaluate", ["eval_acc", "eval_loss", "num-examples"]),
    ]


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
def test_a_message_of_another_strategy_goes_to_the_users_handler() -> None:
    content = RecordDict(
        {"arrays": ArrayRecord(Point().state_dict()), "config": ConfigRecord({"lr": 1.0})}
    )
    answer = app_of()(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), context())
    assert trained(answer.content) == EXACTLY(steps())
