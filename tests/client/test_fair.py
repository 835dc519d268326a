"""The app in quickstart/, made fair as docs/flower.md says, against our own client and Flower's own
strategies."""

import copy
import importlib
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import Result
from torch.utils.data import DataLoader

from fairbloom.client import work
from fairbloom.client.app import app as our_app
from fairbloom.client.fair import fair
from fairbloom.client.fair.contexts import RECORD, keep_own
from fairbloom.client.fair.training import SUPPORTED
from fairbloom.client.rules.registry import kinds_of
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import WORK, Terms
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedMGDA, FedProx, QFedAvg, Round
from fairbloom.tasks import load_task
from tests.docs.pages import ROOT, blocks
from tests.simulation.helpers import table
from tests.strategies.helpers import ARGUMENTS, CASES, make

from . import changed
from .helpers import run_config
from .points import app_of, ask, context, trained

CLIENTS = 4
RATE = 0.1

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
    result: Result = strategy.start(
        InProcessGrid(app, config, CLIENTS), train_config=ConfigRecord({"lr": RATE}), **arguments
    )
    return result


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


BY_FUNCTIONS = [
    (name, arguments) for name, arguments in CASES if not lacking(make(name, arguments))
]
"""The cases of the 19 methods that a user's functions serve."""


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
    task = "tests.client.changed:task"
    epochs = 3
    ours = run_config(
        task=task, clients=CLIENTS, batch_size=batch_size, local_epochs=epochs, learning_rate=RATE
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
    counts = [
        tuple("".join(side).count("\n") for side in zip(*pairs, strict=True))
        for pairs in (client, server)
    ]
    assert counts == [(2, 3), (3, 5)]  # lines that go, and that come
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
    server_app = importlib.import_module("mydigits.server_app").app
    server_app(InProcessGrid(quickstart[0].app, config, CLIENTS), context(config))
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
    assert len(METHODS) - len(unsupported) == 20  # as docs/flower.md says
    readme = " ".join((ROOT / "scaffold/template/README.md").read_text().split())
    template = readme.partition("Ten of them need")[2]
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
        (flowers.QFedAvg(client_learning_rate=RATE, q=0.0), QFedAvg(q=0.0, lipschitz=1 / RATE)),
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
    arrays = ArrayRecord(model.state_dict())
    FedMGDA().start(grid, arrays, num_rounds=2, timeout=60.0, on_round=finished.append)
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
    strategy = FedAvg(personal_parameters="second.*", frozen=head)
    result = strategy.start(
        grid, initial_arrays=initial, num_rounds=3, train_config=ConfigRecord({"lr": RATE})
    )
    for name, array in result.arrays.items():
        assert np.array_equal(array.numpy(), initial[name].numpy()) == (name in head)
    heads = [context.state.array_records[RECORD] for context in grid.contexts.values()]
    assert all(set(each) == set(head) for each in heads)
    first, second, *_ = (each["second.weight"].numpy() for each in heads)
    assert not np.allclose(first, second)


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
    for used_by in used.contexts.values():
        assert set(used_by.state.array_records[RECORD]) == set(head)
    given = continued(used)
    expected = continued(InProcessGrid(quickstart[0].app, SMALL, CLIENTS))
    for name in head:
        assert np.array_equal(given[name].numpy(), expected[name].numpy())


def start_from(initial: ArrayRecord, strategy: FedAvg, grid: InProcessGrid) -> ArrayRecord:
    """Return the common model after a round."""
    config = ConfigRecord({"lr": RATE})
    result = strategy.start(grid, initial_arrays=initial, num_rounds=1, train_config=config)
    return result.arrays


def test_an_app_names_what_it_keeps_by_patterns(quickstart: Modules) -> None:
    strategy = FedAvg(personal_parameters="head", frozen=("second.weight", "second.bias"))
    with pytest.raises(FairbloomError, match="name them by patterns, as in 'fc2"):
        start(strategy, quickstart[0].app, SMALL, quickstart)
