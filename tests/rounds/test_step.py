"""The model after some rounds: where the papers' vectors end, and what a method sees on the way."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fairbloom.rounds.cohort import Cohort, Kept, Probed, UndeclaredRoster
from fairbloom.rounds.updates import FloatArray, Layout
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedFV, Round
from tests.strategies.helpers import (
    BUFFERS,
    TRAINABLE,
    Arrays,
    MemoryGrid,
    Quadratic,
    duplicate,
    error,
    flat,
    initial_model,
    make,
    no_reply,
    quadratics,
    record,
    unpack,
)
from tests.strategies.reference import WEIGHTING, Seen, expected_step

from .helpers import OPTIONS, bits, every_kind, every_method, run

GROUP_COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")


def expected_model(
    name: str, arguments: dict[str, Any], rounds: Sequence[Round], clients: Mapping[str, Quadratic] | None = None
) -> Arrays:
    """Run the method on whole float64 vectors, given whose replies were used in each round."""
    clients, history = clients or quadratics(6), []
    if name == "local":  # its clients return what they received
        return initial_model()
    steps = arguments.get("local_steps", 10) if name == "drfa" else 1
    model = {key: a.astype(np.float64) if a.dtype.kind == "f" else a for key, a in initial_model().items()}
    weighting = arguments.get("weighting", WEIGHTING[name])
    for finished in rounds:
        if not finished.coefficients:
            continue
        replies = {client: clients[client].trained(model, steps) for client in sorted(finished.coefficients)}
        counts = {client: float(clients[client].examples) for client in replies}
        updates = {client: flat(model) - flat(after) for client, after in replies.items()}
        losses = {client: clients[client].loss(model) for client in replies}
        accuracies = {client: clients[client].accuracy(after) for client, after in replies.items()}
        rates = {client: clients[client].rate for client in replies}
        draws = draws_in(finished) if name == "drfa" else {}
        before = {client: clients[client].group_counts(model) for client in replies}
        groups = {metric: {client: before[client][metric] for client in replies} for metric in GROUP_COUNTS}
        if name == "fairfed":
            accuracies = {client: clients[client].accuracy(model) for client in replies}
        known = {client: float(each.examples) for client, each in clients.items()}
        baselines = {client: clients[client].baseline for client in replies}
        seconds = {client: flat(model) - flat(clients[client].evened(model)) for client in replies}
        disparities = {client: clients[client].disparity(model) for client in replies}
        columns = (updates, losses, counts, accuracies, rates, draws, groups, known, baselines, seconds, disparities)
        history.append(Seen(finished.number, len(rounds), *columns))
        extra = {"seed": OPTIONS["seed"]} if name == "fedfv" else {}
        w = flat(model) - expected_step(name, {**arguments, **extra}, history)
        p = counts if weighting == "examples" else dict.fromkeys(replies, 1.0)
        mean = np.sum([p[c] * after["norm.mean"] for c, after in replies.items()], axis=0) / sum(p.values())
        most = max(sorted(replies), key=lambda client: counts[client])
        places = np.split(w, np.cumsum([model[key].size for key in TRAINABLE])[:-1])
        parts = {key: place.reshape(model[key].shape) for key, place in zip(TRAINABLE, places, strict=True)}
        model = {key: {**parts, "norm.mean": mean, "norm.steps": replies[most]["norm.steps"]}[key] for key in model}
    return model


def plain(memory: Any) -> Any:
    """Return a method's memory with its arrays as bytes, which can be compared."""
    if isinstance(memory, np.ndarray):
        return memory.shape, memory.tobytes()
    return {key: plain(value) for key, value in memory.items()} if isinstance(memory, dict) else memory


def draws_in(finished: Round) -> dict[str, int]:
    """How often DRFA drew each client, from its coefficients draws / Σ draws; test_drfa.py tests the draw itself."""
    (total,) = [
        n
        for n in range(1, 7)
        if all(float(n * c).is_integer() or abs(n * c - round(n * c)) < 1e-9 for c in finished.coefficients.values())
    ][:1]
    return {name: round(total * c) for name, c in finished.coefficients.items()}


def assert_model(arrays: ArrayRecord, expected: Arrays) -> None:
    model = unpack(arrays)
    assert list(model) == list(expected)
    assert {k: (a.dtype, a.shape) for k, a in model.items()} == {
        k: (a.dtype, a.shape) for k, a in initial_model().items()
    }
    for name, array in model.items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=2e-5 * np.abs(expected[name]).max())


@every_method
def test_a_run_ends_where_the_papers_vectors_end(name: str, arguments: dict[str, Any]) -> None:
    grid = MemoryGrid(quadratics(6), faults={("site-2", 2): error, ("site-0", 3): no_reply, ("site-4", 1): duplicate})
    result, rounds = run(make(name, arguments, **OPTIONS), grid, rounds=6)
    assert any(len(r.coefficients) < len(r.participants) for r in rounds) or name == "drfa"
    assert_model(result.arrays, expected_model(name, arguments, rounds))


@every_kind
def test_a_round_without_usable_replies_keeps_all_and_counts(name: str, arguments: dict[str, Any]) -> None:
    clients = quadratics(6)
    states: list[dict[str, Any]] = []
    strategy = make(name, arguments, **OPTIONS)
    finished: list[Round] = []

    def on_round(r: Round) -> None:
        finished.append(r)
        states.append(copy.deepcopy(strategy.state_dict()))

    grid = MemoryGrid(clients, faults={(client, 2): error for client in clients})
    result = strategy.start(grid, record(initial_model()), num_rounds=4, on_round=on_round)
    assert [r.number for r in finished] == [1, 2, 3, 4]
    assert finished[1].coefficients == {}
    assert bits(finished[1].arrays) == bits(finished[0].arrays)
    assert [state["round"] for state in states] == [1, 2, 3, 4]
    assert plain(states[1]["memory"]) == plain(states[0]["memory"])
    assert [row["values"].tobytes() for row in states[1]["rows"]] == [
        row["values"].tobytes() for row in states[0]["rows"]
    ]
    assert_model(result.arrays, expected_model(name, arguments, finished))


def edge_clients(kind: str) -> dict[str, Quadratic]:
    clients = quadratics(1 if kind == "one client" else 3)
    if kind == "equal clients":
        twin = clients["site-0"]
        clients = dict.fromkeys(clients, twin)
    if kind == "a zero update":
        clients["site-1"].target = flat(initial_model())
    if kind == "only zero updates":
        for client in clients.values():
            client.target = flat(initial_model())
    return clients


@every_method
@pytest.mark.parametrize("kind", ["one client", "equal clients", "a zero update", "only zero updates"])
def test_edge_cases_of_a_round_end_where_the_papers_vectors_end(
    name: str, arguments: dict[str, Any], kind: str
) -> None:
    clients = edge_clients(kind)
    named = {client: as_named(client, clients[client]) for client in clients}
    result, (finished,) = run(make(name, arguments, buffers=BUFFERS), MemoryGrid(named), rounds=1)
    assert finished.refused == {}
    assert_model(result.arrays, expected_model(name, arguments, [finished], clients))


def as_named(name: str, client: Quadratic) -> Callable[[Message], Message]:
    """The client under another name."""

    def answer(message: Message) -> Message:
        reply = client(message)
        if message.metadata.message_type == MessageType.QUERY:
            reply.content["client"]["name"] = name
        return reply

    return answer


def sizes_in(value: Any) -> list[int]:
    """The number of entries of every array, list and mapping in a value, functions aside."""
    if isinstance(value, np.ndarray):
        return [value.size]
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [len(value), *(size for part in inner for size in sizes_in(part))]
    plain = int | float | str | Kept | UndeclaredRoster | None
    assert callable(value) or isinstance(value, plain), type(value)
    return []


@every_method
def test_no_vector_of_the_models_length_reaches_the_method(
    name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method sees m or (m + r)² numbers, however large the model, in its cohort and in what it remembers."""
    d, seen = 10_007, []

    def large(client: str) -> Callable[[Message], Message]:
        small = Quadratic(client)

        def answer(message: Message) -> Message:
            content = message.content.array_records.get("arrays")
            if content is None:
                return small(message)
            w = content["w"].numpy()
            config = message.content.config_records["config"]
            after = record({"w": w + np.float32(len(client)) * np.sin(np.arange(d) * small.rate).astype(np.float32)})
            numbers = {"num-examples": small.examples, "loss-before": small.rate, "accuracy-after": small.rate}
            numbers |= {"loss-baseline": 0.5 * small.rate, "step-sum": small.rate}
            numbers |= {key: config[key] for key in ("state-round",) if key in config}
            numbers |= {"learning-rate": small.rate, "train-loss": small.rate, "disparity": small.rate}
            numbers |= {"accuracy-before": small.rate, **dict.fromkeys(GROUP_COUNTS, 1)}
            replied = RecordDict({"metrics": MetricRecord(numbers)})
            if message.metadata.message_type == MessageType.TRAIN:
                replied["arrays"] = after
                if "snapshot-step" in config:
                    replied["snapshot"] = after
                if "disparity" in config:
                    replied["arrays-disparity"] = after
            return Message(replied, reply_to=message)

        return answer

    method = METHODS[name]
    weighs, remembers = (next(each for each in method.__mro__ if what in vars(each)) for what in ("weigh", "remember"))
    original, original_remember = weighs.weigh, remembers.remember  # type: ignore[attr-defined]

    def weigh(self: FairStrategy, cohort: Cohort) -> FloatArray:
        seen.extend(sizes_in(vars(cohort)))
        c: FloatArray = original(self, cohort)
        seen.extend(sizes_in([vars(cohort), self.memory, c]))
        return c

    def remember(
        self: FairStrategy, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray | None]:
        kept: Mapping[Kept, FloatArray | None] = original_remember(self, cohort, coefficients, probed)
        seen.extend(sizes_in([vars(cohort), self.memory, dict(kept)]))
        return kept

    monkeypatch.setattr(weighs, "weigh", weigh)  # not a subclass: one with another `weigh` has no fixed weights
    monkeypatch.setattr(remembers, "remember", remember)
    clients = {client: large(client) for client in quadratics(4)}
    initial = record({"w": np.zeros(d, np.float32)})
    _, rounds = run(method(**arguments), MemoryGrid(clients), rounds=3, initial_arrays=initial)
    assert all(r.coefficients for r in rounds)
    assert max(seen) <= 8**2 < d


def test_the_integer_buffer_is_the_largest_clients() -> None:
    clients = quadratics(3)
    for client, examples in zip(clients.values(), (7, 9, 9), strict=True):
        client.examples = examples
    clients["site-2"].examples = 9
    counted = dict(clients)

    def other_steps(message: Message) -> Message:
        reply = clients["site-2"](message)
        if message.metadata.message_type == MessageType.TRAIN:
            reply.content["arrays"] = record(
                {**unpack(reply.content.array_records["arrays"]), "norm.steps": np.array(77, np.int64)}
            )
        return reply

    result, _ = run(FedAvg(buffers=BUFFERS), MemoryGrid({**counted, "site-2": other_steps}), rounds=1)
    assert unpack(result.arrays)["norm.steps"] == 5 + 9


@pytest.mark.parametrize("options", [{}, {"buffers": None}, {"buffers": ["norm.running_mean", "norm.running_var"]}])
def test_batch_norms_statistics_are_buffers_by_default(options: dict[str, Any]) -> None:
    """Clients whose weights conflict, and whose statistics are far from 0, as those of unscaled features are."""
    received = {f"norm.{name}": value.numpy() for name, value in torch.nn.BatchNorm1d(2).state_dict().items()}
    examples, lengths = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32), {"a": 30.0, "b": 3.0}

    def client(name: str) -> Callable[[Message], Message]:
        def answer(message: Message) -> Message:
            if message.metadata.message_type == MessageType.QUERY:
                return error(message, message)[0]
            arrays = dict(unpack(message.content.array_records["arrays"]))
            values = lengths[name] * examples
            arrays["norm.weight"] = arrays["norm.weight"] + np.float32(1.0 if name == "a" else -2.0)
            arrays["norm.running_mean"], arrays["norm.running_var"] = values.mean(axis=0), values.var(axis=0)
            numbers = MetricRecord({"num-examples": 64, "loss-before": 1.0})
            return Message(RecordDict({"metrics": numbers, "arrays": record(arrays)}), reply_to=message)

        return answer

    grid = MemoryGrid({name: client(name) for name in lengths})
    result = FedFV(fraction_evaluate=0.0, **options).start(grid, record(received), num_rounds=4)
    expected = np.mean([(length * examples).var(axis=0) for length in lengths.values()], axis=0)
    np.testing.assert_allclose(unpack(result.arrays)["norm.running_var"], expected, rtol=1e-5)


def test_a_parameter_may_have_the_name_of_a_statistic() -> None:
    arrays = {"own.running_mean": np.ones(3, np.float32), "w": np.ones(2, np.float32), "running_var": np.array(1)}
    assert Layout(arrays).buffers == ("own.running_mean",)
    assert Layout(arrays, buffers=()).trainable == ("own.running_mean", "w")
    assert Layout(arrays, buffers=("w",)).trainable == ("own.running_mean",)


def test_a_buffer_that_is_not_named_is_part_of_the_update() -> None:
    gram_sizes = []

    class Watching(FedAvg):
        def weigh(self, cohort: Cohort) -> FloatArray:
            gram_sizes.append(float(np.trace(cohort.gram)))
            return super().weigh(cohort)

    run(Watching(buffers=BUFFERS), rounds=1)
    run(Watching(), rounds=1)
    assert gram_sizes[1] > gram_sizes[0]


def twice(client: Quadratic) -> Callable[[Message], Message]:
    """Return a client of a model in which the first parameter has a second name, too."""

    def answer(message: Message) -> Message:
        sent = message.content.array_records.get("arrays")
        if sent is not None:
            message.content["arrays"] = record({k: a for k, a in unpack(sent).items() if k != "twin"})
        reply = client(message)
        if "arrays" in reply.content:
            arrays = unpack(reply.content.array_records["arrays"])
            reply.content["arrays"] = record({**arrays, "twin": arrays[TRAINABLE[0]]})
        if "snapshot" in reply.content:
            arrays = unpack(reply.content.array_records["snapshot"])
            reply.content["snapshot"] = record({**arrays, "twin": arrays[TRAINABLE[0]]})
        return reply

    return answer


@every_kind
def test_a_shared_parameter_changes_no_bit_of_a_run(name: str, arguments: dict[str, Any]) -> None:
    """It is the run of a model that has the parameter once; counted twice, it would weigh double in the geometry."""
    first = TRAINABLE[0]
    initial = record({**initial_model(), "twin": initial_model()[first]})
    clients = {client: twice(quadratic) for client, quadratic in quadratics(4).items()}
    tied = make(name, arguments, buffers=BUFFERS, shared={"twin": first}, seed=3)
    result, rounds = run(tied, MemoryGrid(clients), rounds=3, initial_arrays=initial)
    expected, once = run(make(name, arguments, buffers=BUFFERS, seed=3), MemoryGrid(quadratics(4)), rounds=3)
    assert [r.coefficients for r in rounds] == [r.coefficients for r in once]
    model = bits(result.arrays)
    assert model.pop("twin") == model[first]
    assert model == bits(expected.arrays)


@pytest.mark.parametrize("buffers", [("norm.steps",), ("unknown",)])
def test_a_buffer_that_is_no_float_array_is_refused_by_name(buffers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=buffers[0]):
        run(FedAvg(buffers=buffers))


def test_no_rounds_leave_the_model_as_it_is() -> None:
    result, rounds = run(FedAvg(), rounds=0)
    assert rounds == []
    assert bits(result.arrays) == bits(record(initial_model()))
