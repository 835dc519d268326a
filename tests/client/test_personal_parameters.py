"""Parameters that clients keep for themselves, and the adaptation of evaluated models."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom import load
from fairbloom.client.app import app
from fairbloom.client.guard.disclosure import guarded
from fairbloom.client.guard.log_files import read_entries
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.rules.personal import FineTuning
from fairbloom.client.work import run_work
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.results.run import Run
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import BrokenModelError, check_model
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS, SCAFFOLD, Ditto, FedAvg, FedDyn, Local
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of, personal_arrays

from .helpers import ask, context, fresh, run_config

SMALL: Mapping[str, Any] = {
    "task": "digits",
    "model": "mlp",
    "clients": 4,
    "partition": "shards",
    "num-rounds": 2,
    "seed": 1,  # no hidden unit is near zero, where rounding decides
    "engine": "loop",
}


# These refuse personal parameters, and these need groups, which digits have not.
REFUSING = {"ditto", "local", "feddyn", "scaffold"}
OF_GROUPS = {"fairfed", "fcfl"}


def run(place: Path, **changes: Any) -> Run:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return load(simulate(Settings.of({**SMALL, "out": str(place), **named})))


def kept_by(finished: Run, client: str) -> dict[str, Any]:
    state = finished.model(client=client, model="personal").state_dict()
    return {name: tensor.numpy() for name, tensor in state.items()}


def check_continued(place: Path, rounds: int, **changes: Any) -> None:
    """Assert that a run that stopped after one round ends with the heads of a whole one."""
    chosen = {"personal_parameters": "head", **changes}
    run(place / "parts", num_rounds=1, **chosen)
    parts = run(place / "parts", num_rounds=rounds, **chosen)
    whole = run(place / "whole", num_rounds=rounds, **chosen)
    for client in whole.tested:
        np.testing.assert_equal(kept_by(parts, client), kept_by(whole, client))


class Net(nn.Module):
    """A layer of each kind that has a word of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x.flatten(1))))


# Which arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", set()),
        ("head", {"last.weight", "last.bias"}),
        ("norm, last.b*", {"norm", "last.bias"}),
        ("body", {"first.weight", "first.bias", "norm"}),
        ("*.weight", {"first.weight", "norm.weight", "last.weight"}),
    ],
)
def test_words_and_patterns_name_arrays(words: str, expected: set[str]) -> None:
    net = Net()
    whole = {name for name in net.state_dict() if name.startswith("norm.")}
    assert set(personal_arrays(net, words)) == (
        expected - {"norm"} | (whole if "norm" in expected else set())
    )


def test_a_frozen_layer_is_no_head() -> None:
    net = Net()
    net.last.requires_grad_(False)
    assert set(personal_arrays(net, "head")) == {n for n in net.state_dict() if "norm" in n}


@pytest.mark.parametrize("words", ["head nose", "norm"])
def test_a_word_without_arrays_is_an_error(words: str) -> None:
    with pytest.raises(FairbloomError, match=f"'{words.split()[-1]}' names no array .* 0.weight"):
        personal_arrays(nn.Sequential(nn.Linear(2, 2)), words)


@pytest.mark.parametrize("words", ["head", "1.*", "0.*"])
def test_one_of_two_names_of_a_parameter_is_refused(words: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    with pytest.raises(FairbloomError, match="are the same parameter"):
        personal_arrays(net, words)
    assert "1.weight" in personal_arrays(net, "*.weight")


class Forward(nn.Module):
    """A model with its classifier defined first, which ends as `end` says."""

    def __init__(self, end: Callable[[nn.Module, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.body = nn.Linear(3, 4)
        self.end = end

    def forward(self, x: Tensor) -> object:
        """Return the classifier's outputs."""
        hidden = self.body(x).relu()
        return self.end(self, self.fc(hidden), hidden)


@pytest.mark.parametrize(
    ("end", "head"),
    [
        (lambda model, y, h: y, "fc"),
        (lambda model, y, h: y.flatten(1).softmax(1), "fc"),
        (lambda model, y, h: {"logits": y}, "fc"),
        (lambda model, y, h: {"logits": y, "features": h}, "fc"),
        (lambda model, y, h: {"features": y}, "fc"),
        (lambda model, y, h: model.norm(y), "norm"),
        (lambda model, y, h: {"a": y, "b": h}, ""),
        (lambda model, y, h: (y, h), ""),
        (lambda model, y, h: y + h[:, :2], ""),
        (lambda model, y, h: h @ model.fc.weight.T, ""),
        (lambda model, y, h: y if y.sum() > 0 else -y, ""),
        (lambda model, y, h: torch.ones(2), ""),
    ],
)
def test_head_is_the_layer_that_makes_the_outputs(end: Any, head: str) -> None:
    model = Forward(end)
    names = [*model.state_dict()]
    if not head:
        with pytest.raises(
            ReportableError, match=r"'head' has no meaning for Forward, .* body\.bias"
        ):
            personal_arrays(model, "head")
        return
    expected = {name for name in names if name.startswith(head)}
    assert set(personal_arrays(model, "head")) == expected
    assert set(personal_arrays(model, "body")) == {*names} - expected
    frozen = Forward(end)
    frozen.fc.requires_grad_(False)
    if head == "fc":
        assert set(personal_arrays(frozen, "head")) == {"body.weight", "body.bias"}


@pytest.mark.parametrize("output", ["scores", "features"])
def test_head_makes_the_outputs_that_the_task_names(output: str) -> None:
    model = Forward(lambda model, y, h: {"scores": y, "features": h})
    layer = {"scores": "fc", "features": "body"}[output]
    expected = {f"{layer}.weight", f"{layer}.bias"}
    assert set(personal_arrays(model, "head", output)) == expected
    assert set(personal_arrays(model, "body", output)) == set(model.state_dict()) - expected
    with pytest.raises(ReportableError, match="'head' has no meaning"):
        personal_arrays(model, "head", "logits")


OWN_TASK = """
from dataclasses import replace
from torch import nn
from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks import load_task
class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.end = nn.Linear(64, 8), nn.Linear(8, 10)
    def forward(self, x):
        hidden = self.body(x.flatten(1)).relu()
        return {"scores": self.end(hidden), "hidden": hidden}
def task(setup):
    digits = load_task(RunSettings.of({"task": "digits", "clients": 3}))
    return replace(digits, model=Named, output="scores")
"""


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_run_keeps_the_head_of_the_named_outputs(
    tmp_path: Path,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "head_of_scores.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    run(
        tmp_path / "out",
        task="head_of_scores:task",
        personal_parameters="head",
        engine=engine,
    )
    assert "each client keeps end.weight, end.bias" in caplog.text


# Reductions -----------------------------------------------------------------------------------------


def test_all_parameters_are_local_training(tmp_path: Path) -> None:
    plain = {"batch_size": 0, "local_epochs": 1}
    own = run(tmp_path / "own", personal_parameters="*", **plain)
    local = run(tmp_path / "local", method="local", **plain)
    for client in own.tested:
        for name, array in kept_by(own, client).items():
            np.testing.assert_allclose(array, kept_by(local, client)[name], atol=1e-6)


def test_fine_tuning_leaves_the_global_model_alone(tmp_path: Path) -> None:
    tuned = run(tmp_path / "tuned", fine_tune_epochs=2)
    plain = run(tmp_path / "plain")
    np.testing.assert_equal(tuned.arrays(), plain.arrays())
    column = "test_accuracy_of_global_model"
    assert tuned.clients[column].equals(plain.clients[column])
    assert tuned.clients["test_accuracy_of_personal_model"].mean() > tuned.clients[column].mean()


def test_fine_tuning_takes_the_rate_of_the_round() -> None:
    work = FineTuning(Terms(server_round=3, fine_tune_epochs=2)).adapt(
        run_work(Settings.of({"num-rounds": 4, "schedule": "linear", "learning-rate": 0.5}), 3)
    )
    assert (work.learning_rate, work.epochs) == (0.25, 2)


# Engines, and runs that continue ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedfv", "fedmgda", "qfedavg"])
def test_stacked_clients_have_the_same_heads(tmp_path: Path, method: str) -> None:
    loop, stacked = (
        run(tmp_path / engine, engine=engine, method=method, personal_parameters="head")
        for engine in ("loop", "stacked")
    )
    assert not stacked.engine.get("fell-back")
    for client in loop.tested:
        for name, array in kept_by(loop, client).items():
            np.testing.assert_allclose(array, kept_by(stacked, client)[name], atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("kept", [{"personal_parameters": "head"}, {"method": "ditto"}])
def test_a_row_says_whether_a_client_has_trained(
    tmp_path: Path, engine: str, kept: dict[str, str]
) -> None:
    finished = run(tmp_path / "run", engine=engine, clients=8, fraction=0.3, **kept)
    trained: dict[str, int] = {}
    for number, rows in finished.clients.groupby("round"):
        trained |= dict.fromkeys(rows["client"][rows["participated"] == 1], int(str(number)))
        own = dict(zip(rows["client"], rows["personal_model_of_round"], strict=True))
        assert own == {client: trained.get(client, 0) for client in own}
    newcomer = min(finished.clients["client"][~finished.clients["client"].isin([*trained])])
    assert "personal model of round" in str(page_of(finished).sections)
    with pytest.raises(FairbloomError, match="without a client, the common model is taken"):
        finished.model(client=newcomer, model="personal")


@pytest.mark.parametrize("changes", [{}, {"personal_steps": "head-first", "head_epochs": 2}])
def test_a_run_continues_with_its_heads(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_continued(tmp_path, rounds=3, **changes)


def test_the_head_is_trained_first_and_then_fixed(tmp_path: Path) -> None:
    chosen = {"personal_parameters": "head", "num_rounds": 1}
    together = run(tmp_path / "together", **chosen)
    first = run(tmp_path / "first", personal_steps="head-first", **chosen)
    client = min(first.tested)
    assert not np.array_equal(
        kept_by(together, client)["5.weight"], kept_by(first, client)["5.weight"]
    )
    assert not np.array_equal(together.arrays()["1.weight"], first.arrays()["1.weight"])


@pytest.mark.parametrize("method", ["afl", "drfa", "fedprox", "term", "semivred", "propfair"])
def test_other_methods_train_with_heads(tmp_path: Path, method: str) -> None:
    table = run(tmp_path, method=method, personal_parameters="head").clients
    own, common = (
        table[f"test_accuracy_of_{kind}_model"].mean() for kind in ("personal", "global")
    )
    assert own > common


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({*METHODS} - REFUSING - OF_GROUPS))
def test_each_method_continues_with_heads(tmp_path: Path, method: str) -> None:
    check_continued(tmp_path, rounds=2, method=method, batch_size=0)


def test_messages_do_not_have_the_head(tmp_path: Path) -> None:
    head = 4 * (10 * 64 + 10)  # bytes of float32, of the last layer of the network mlp
    sent = []
    for words in ("", "head"):
        rows = run(tmp_path / f"run{words}", personal_parameters=words).rounds
        sent.append(float(rows["bytes_sent"].iloc[0]))
    assert sent[0] - sent[1] >= 4 * head


# Refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Ditto, Local, FedDyn, SCAFFOLD])
def test_methods_with_states_of_whole_models_refuse(method: type[Method]) -> None:
    with pytest.raises(ValueError, match="personal_parameters = 'head': with"):
        method(personal_parameters="head")


def test_fine_tuning_and_personal_models_are_refused() -> None:
    with pytest.raises(
        ValueError, match="fine_tune_epochs = 1: with FedAvg and its other options, clients have"
    ):
        FedAvg(fine_tune_epochs=1, personal_lambda=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"personal_steps": "head-first"}, "name parameters by personal_parameters"),
        ({"head_epochs": 2}, "set personal_steps to 'head-first'"),
        ({"head_epochs": 2, "personal_parameters": "head"}, "set personal_steps"),
    ],
)
def test_steps_without_personal_parameters_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FedAvg(**options)


BATCHNORM = {
    **{f"bn.{name}": np.zeros(2, np.float32) for name in ("weight", "running_mean")},
    "bn.num_batches_tracked": np.zeros((), np.int64),
    "fc": np.zeros(1, np.float32),
}


@pytest.mark.parametrize(
    ("words", "frozen", "said"),
    [
        ("bn.*", (), ""),
        ("bn.*", ("fc", *(name for name in BATCHNORM if name != "fc")), ""),
        ("head", (), "'head' matches no array; name arrays by patterns.*; the model has bn.weight"),
        ("fc, bm.*", (), r"'bm\.\*' matches no array"),
        ("bn.*", ("fc",), "matches bn.weight, bn.running_mean, bn.num_batches_tracked; name"),
        ("fc bn.*", ("bn.weight", "fc"), "matches bn.running_mean, bn.num_batches_tracked; name"),
    ],
)
def test_a_strategy_finds_what_clients_keep_by_patterns(
    words: str, frozen: tuple[str, ...], said: str
) -> None:
    method = FedAvg(personal_parameters=words, frozen=frozen)
    with pytest.raises(BrokenModelError, match=said) if said else nullcontext():
        check_model(method, BATCHNORM)
        assert {name for name in BATCHNORM if "bn" in name} <= method.layout_of(BATCHNORM).frozen


# Messages -------------------------------------------------------------------------------------------

ASKED = {"personal-parameters": "head"}
HEAD = {"5.weight", "5.bias"}


def test_no_reply_has_what_a_client_keeps() -> None:
    whole = ask(
        MessageType.TRAIN, ASKED, context(1, run_config(model="mlp", personal_parameters="head"))
    )
    assert HEAD.isdisjoint(whole["arrays"])
    assert {"1.weight", "1.bias", "3.weight", "3.bias"} == set(whole["arrays"])


def test_initial_values_travel_once() -> None:
    config = run_config(model="mlp", personal_parameters="head")
    _, model = fresh(config)
    digest = digest_arrays(
        arrays_of({name: each.clone() for name, each in model.state_dict().items() if name in HEAD})
    )
    where = context(1, config)
    asked = {**ASKED, "frozen": digest}
    assert ask(MessageType.EVALUATE, asked, where)["client"]["frozen"] == digest
    shared = {name: each for name, each in model.state_dict().items() if name not in HEAD}

    def send(to: Context) -> Message:
        config = ConfigRecord({"server-round": 2, **asked})
        content = RecordDict({"arrays": ArrayRecord(OrderedDict(shared)), "config": config})
        return app(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), to)

    assert send(where).content["client"]["frozen"] == digest
    assert any(name.startswith("kept:personal:2") for name in where.state)
    with pytest.raises(FairbloomError, match="which its next message will bring"):
        send(context(1, config))


def send_in_round(number: int, arrays: Mapping[str, Any], where: Context, **asked: Any) -> Message:
    """Return a client's reply to these arrays and terms."""
    terms = {key.replace("_", "-"): value for key, value in asked.items()}
    config = ConfigRecord({"server-round": number, **terms})
    content = RecordDict({"arrays": ArrayRecord(OrderedDict(arrays)), "config": config})
    return app(Message(content, dst_node_id=2, message_type=MessageType.TRAIN), where)


def replied(answer: Message) -> dict[str, Any]:
    return {name: each.numpy() for name, each in answer.content.array_records["arrays"].items()}


def kept_in(where: Context, number: int) -> dict[str, Any]:
    """Return what a client keeps since a round."""
    arrays = where.state.array_records[f"kept:personal:{number}"].items()
    return {name: each.numpy() for name, each in arrays}


@pytest.fixture
def trained() -> Context:
    """A client that keeps its head since round 1."""
    where = context(1, run_config(model="mlp"))
    ask(MessageType.TRAIN, ASKED, where)
    return where


def test_a_head_that_a_server_sends_later_has_no_effect(trained: Context) -> None:
    _, model = fresh(dict(trained.run_config))
    changed = {n: each * 0.5 if n in HEAD else each for n, each in model.state_dict().items()}
    other = context(1, dict(trained.run_config))
    other.state = copy.deepcopy(trained.state)
    answers = [
        send_in_round(2, arrays, where, **ASKED)
        for arrays, where in ((model.state_dict(), trained), (changed, other))
    ]
    first, second = map(replied, answers)
    assert first.keys() == second.keys() == set(model.state_dict()) - HEAD
    np.testing.assert_equal(second, first)
    np.testing.assert_equal(kept_in(other, 2), kept_in(trained, 2))


@pytest.mark.parametrize(
    "asked", [{}, {"personal_parameters": "body"}, {"personal_parameters": "1.weight"}]
)
def test_a_server_that_asks_for_the_head_gets_none(trained: Context, asked: dict[str, str]) -> None:
    """The terms no longer leave the head out: the client trains the one that was sent."""
    _, model = fresh(dict(trained.run_config))
    given, expected = (
        replied(send_in_round(2, model.state_dict(), where, **asked))
        for where in (trained, context(1, dict(trained.run_config)))
    )
    assert given.keys() == expected.keys()
    np.testing.assert_equal(given, expected)


def test_a_kept_whole_model_is_no_part_of_a_later_reply() -> None:
    where, stranger = (context(1, run_config(model="mlp")) for _ in range(2))
    _, model = fresh(dict(where.run_config))
    send_in_round(1, model.state_dict(), where, personal_lambda=0.1)
    given, expected = (
        replied(send_in_round(2, model.state_dict(), each, **ASKED)) for each in (where, stranger)
    )
    np.testing.assert_equal(given, expected)


# Fixed points and an independent loop -----------------------------------------------------------------


def test_norm_is_fedbn_of_an_independent_loop(tmp_path: Path) -> None:
    net = "tests.client.nets:Normed"
    finished = run(tmp_path, model=net, personal_parameters="norm", batch_size=0, learning_rate=0.1)
    task = load_task(finished.settings)
    common = task.model()
    own = {
        name: {key: each.clone() for key, each in common.state_dict().items() if is_norm(key)}
        for name in task.clients
    }
    for _ in range(2):
        sizes = [len(task.splits(name).train) for name in task.clients]
        trained = []
        for name in task.clients:
            net_of_client = copy.deepcopy(common)
            net_of_client.load_state_dict({**common.state_dict(), **own[name]})
            net_of_client.train()
            inputs, targets = task.splits(name).train[:]
            cross_entropy(net_of_client(inputs), targets).backward()
            with torch.no_grad():
                for each in net_of_client.parameters():
                    each -= 0.1 * each.grad
            state = net_of_client.state_dict()
            own[name] = {key: state[key] for key in own[name]}
            trained.append(state)
        mean = {
            key: sum(n * state[key] for n, state in zip(sizes, trained, strict=True)) / sum(sizes)
            for key in common.state_dict()
            if not is_norm(key)
        }
        common.load_state_dict({**common.state_dict(), **mean})
    for name in task.clients:
        for key, array in kept_by(finished, name).items():
            np.testing.assert_allclose(
                array, own[name].get(key, common.state_dict()[key]).numpy(), atol=5e-6
            )


def is_norm(name: str) -> bool:
    return name.startswith(("layers.1.", "layers.5."))


# What a device reports of them ----------------------------------------------------------------------


def on_device(tmp_path: Path, head: float) -> tuple[Context, nn.Module]:
    """Return a device whose own head, kept in round 1, is moved by a number, and its first model."""
    place = context(1, run_config(model="mlp", **{"batch-size": 0}), **{"state-dir": str(tmp_path)})
    _, first = fresh(dict(place.run_config))
    ask(MessageType.TRAIN, OWN_HEAD, place)
    moved = copy.deepcopy(first)
    with torch.no_grad():
        next(iter(moved.parameters())).add_(head)
    return place, moved


OWN_HEAD = {"personal-parameters": "head"}
SENT = {"measure": ["loss-before", "update-norm"]}


def metrics_of(place: Context, model: nn.Module, number: int, **asked: Any) -> dict[str, Any]:
    terms = {"server-round": number, **OWN_HEAD, **SENT, **asked}
    return dict(ask(MessageType.TRAIN, terms, place, model)["metrics"])


def test_each_loss_of_a_round_leaves_once_in_three_digits(tmp_path: Path) -> None:
    """The same again leaves again; of another model of the same round, it is held back."""
    place, first = on_device(tmp_path, 0.0)
    _, other = on_device(tmp_path, 0.3)
    one = metrics_of(place, first, 2)
    assert one["loss-before"] == float(f"{one['loss-before']:.3g}")
    assert metrics_of(place, first, 2) == one
    assert metrics_of(place, other, 2).keys() == one.keys() - {"loss-before"}
    assert "loss-before" in metrics_of(place, other, 3)
    evaluated = [
        dict(ask(MessageType.EVALUATE, {"server-round": 2, **OWN_HEAD}, place, model)["metrics"])
        for model in (first, first, other)
    ]
    assert evaluated[0] == evaluated[1]
    assert evaluated[2].keys() == evaluated[0].keys() - {"loss-personal"}
    here = LocalClient.of(run_config(model="mlp", **{"batch-size": 0}), 1)
    terms = Terms.of({"server-round": 2, **OWN_HEAD, **SENT})
    exact = train_client(here, first.state_dict(), terms).metrics["loss-before"]
    assert float(f"{exact:.3g}") != exact


def test_no_norm_has_what_stays(tmp_path: Path) -> None:
    """With a body that hides the head from the loss, it says the same of every head."""
    config = run_config(model="mlp", **{"batch-size": 0})
    found = []
    for moved in (0.0, 5.0):
        here = LocalClient.of(config, 1)
        _, model = fresh(config)
        state = {name: torch.zeros_like(each) for name, each in model.state_dict().items()}
        own = {name: torch.full_like(state[name], moved) for name in personal_arrays(model, "head")}
        here.states.keep("personal", 1, own)
        terms = Terms.of({"server-round": 2, **OWN_HEAD, "measure": ["update-norm"]})
        found.append(train_client(here, state, terms).metrics)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("number", [1, 2])
def test_locals_loss_is_of_its_own_model(tmp_path: Path, number: int) -> None:
    """On a device, no message without a common step tells the loss of the model in it."""
    place = context(1, run_config(), **{"state-dir": str(tmp_path)})
    _, model = fresh(dict(place.run_config))
    terms = {"local-only": True, "personal-lambda": 0.0, "personal-epochs": 1}
    found = {}
    for planted in (0.0, 1.0):
        for each in range(1, number):
            ask(MessageType.TRAIN, {"server-round": each, **terms}, place)
        changed = copy.deepcopy(model)
        with torch.no_grad():
            for each in changed.parameters() if number > 1 else ():
                each.add_(planted)
        asked = {"server-round": number, "measure": ["loss-before"], **terms}
        found[planted] = dict(ask(MessageType.TRAIN, asked, place, changed)["metrics"])
    assert found[0.0] == found[1.0]
    assert ("loss-before" in found[0.0]) == (number > 1)


@pytest.mark.parametrize(
    "terms",
    [
        {"local-only": True, "personal-lambda": 0.0, "personal-epochs": 1},
        {"personal-lambda": 0.5, "personal-epochs": 1},
        {"fine-tune-epochs": 1},
    ],
    ids=str,
)
def test_other_terms_load_no_kept_head(tmp_path: Path, terms: dict[str, Any]) -> None:
    """Their losses would be exact."""
    place, model = on_device(tmp_path / "kept", 0.0)
    bare = context(1, dict(place.run_config), **{"state-dir": str(tmp_path / "bare")})
    found = [
        dict(
            ask(kind, {"server-round": 2, "measure": ["loss-before"], **terms}, each, model)[
                "metrics"
            ]
        )
        for each in (place, bare)
        for kind in (MessageType.TRAIN, MessageType.EVALUATE)
    ]
    assert found[:2] == found[2:]


def test_all_numbers_of_a_kept_head_leave_once(tmp_path: Path) -> None:
    """Scores, too, as a Brier score is as exact as a loss; counts stay whole."""
    place, first = on_device(tmp_path, 0.0)
    _, other = on_device(tmp_path, 0.3)
    asked = {"server-round": 2, **OWN_HEAD}
    one, two = (
        dict(ask(MessageType.EVALUATE, asked, place, model)["metrics"]) for model in (first, other)
    )
    own = {name for name in one if name.endswith("-personal")}
    assert own
    assert all(float(one[name]) == float(f"{one[name]:.3g}") for name in own)
    assert not any(one[name] != two[name] for name in own & two.keys())
    assert one["num-examples"] == two["num-examples"]
    *_, last = read_entries(tmp_path)
    gone = own - two.keys()
    assert {f"{name}, because another one has left in round 2" for name in gone} == {
        *last["held-back"]
    }
    assert gone


def test_a_model_without_arrays_of_its_own_has_exact_losses(tmp_path: Path) -> None:
    """And any number of them."""
    place, first = on_device(tmp_path, 0.0)
    _, other = on_device(tmp_path, 0.3)
    asked = {"server-round": 2, "measure": ["loss-before"]}
    one, two = (
        float(dict(ask(MessageType.TRAIN, asked, place, model)["metrics"])["loss-before"])
        for model in (first, other)
    )
    assert one != two
    assert one != float(f"{one:.3g}")


@pytest.mark.parametrize("terms", [{"local_steps": 0}, {"local_only": True}])
@pytest.mark.parametrize("min_rows", [None, 5])
def test_only_a_device_keeps_the_loss_of_a_model_without_steps(
    terms: dict[str, Any], min_rows: int | None
) -> None:
    """In one process, where nothing leaves, the table has it."""
    here = LocalClient.of(run_config(), 1)
    local = here if min_rows is None else guarded(here, min_rows)
    asked = Terms(server_round=1, measure=("loss-before",), **terms)
    _, model = fresh(run_config())
    found = train_client(local, model.state_dict(), asked).metrics
    assert ("loss-before" in found) == (min_rows is None)


@pytest.mark.parametrize(("words", "named"), [("head", True), ("norm, 1.*", False), ("1.*", False)])
def test_a_run_names_what_a_word_chose(
    words: str, named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"clients": 4, "num-rounds": 1, "device": "cpu", "personal-parameters": words}
    with suppress(FairbloomError):  # the model has no norms
        simulate(Settings.of({**settings, "model": "logistic", "out": str(tmp_path / "run")}))
    assert ("each client keeps 1.weight, 1.bias" in caplog.text) == named
