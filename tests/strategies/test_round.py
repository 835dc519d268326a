"""Whole runs over a grid in memory: the model, what travels, what is refused, what is kept."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.rounds.method import Cohort, FloatArray, Kept, Probed
from fairbloom.rounds.screening import LONGEST_REASON, one_line
from fairbloom.strategies import METHODS, Ditto, FairStrategy, FedAvg, FedFV, FedMGDA, FedProx, MGDAProx, QFedAvg, Round

from .helpers import (
    ARGUMENTS,
    BROKEN,
    BUFFERS,
    CASES,
    TRAINABLE,
    UNMEASURED,
    Arrays,
    Fault,
    MemoryGrid,
    Quadratic,
    arrays,
    duplicate,
    error,
    flat,
    initial_model,
    make,
    metrics,
    no_reply,
    node_unavailable,
    quadratics,
    record,
    to_unknown_message,
    told,
    unpack,
)
from .reference import WEIGHTING, Seen, expected_step

every_method = pytest.mark.parametrize(("name", "arguments"), CASES)
MEASURED = {
    **{name: ["loss-before"] for name in ("qfedavg", "term", "afl", "deltafl", "gifair", "vred", "semivred")},
    **{name: ["loss-before"] for name in ("fedfv", "adafed")},
    "qfedsgd": ["learning-rate", "loss-before"],
    "fedfa": ["accuracy-after"],
}
"""What the clients are asked to measure; nothing for the other methods."""

TERMS: dict[str, Callable[..., dict[str, Any]]] = {
    "fedprox": lambda mu: {"proximal-mu": mu},
    "mgdaprox": lambda mu, **_: {"proximal-mu": mu} if mu > 0 else {},
    "qfedsgd": lambda **_: {"full-batch-step": True},
    "propfair": lambda baseline, epsilon=0.2, **_: {
        "loss-transform": "propfair",
        "propfair-baseline": baseline,
        "propfair-epsilon": epsilon,
    },
    "fedfa": lambda client_momentum=0.9, **_: {"client-momentum": client_momentum},
    "drfa": lambda local_steps=10, **_: {"local-steps": local_steps},
    "ditto": lambda lam, personal_epochs=1, **_: {"personal-lambda": lam, "personal-epochs": personal_epochs},
    "local": lambda: {"personal-lambda": 0.0, "personal-epochs": 1, "local-only": True},
}
"""What else the clients are told, from the method's arguments; nothing for the other methods."""

OPTIONS: dict[str, Any] = {"buffers": BUFFERS, "fraction_train": 0.6, "seed": 3}


def run(
    strategy: FairStrategy, grid: MemoryGrid | None = None, rounds: int = 4, **arguments: Any
) -> tuple[Result, list[Round]]:
    finished: list[Round] = []
    arguments.setdefault("initial_arrays", record(initial_model()))
    result = strategy.start(grid or MemoryGrid(quadratics(6)), num_rounds=rounds, on_round=finished.append, **arguments)
    return result, finished


def bits(arrays: ArrayRecord) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in unpack(arrays).items()}


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
        history.append(Seen(finished.number, len(rounds), updates, losses, counts, accuracies, rates, draws))
        extra = {"seed": OPTIONS["seed"]} if name == "fedfv" else {}
        w = flat(model) - expected_step(name, {**arguments, **extra}, history)
        p = counts if weighting == "examples" else dict.fromkeys(replies, 1.0)
        mean = np.sum([p[c] * after["norm.mean"] for c, after in replies.items()], axis=0) / sum(p.values())
        most = max(sorted(replies), key=lambda client: counts[client])
        places = np.split(w, np.cumsum([model[key].size for key in TRAINABLE])[:-1])
        parts = {key: place.reshape(model[key].shape) for key, place in zip(TRAINABLE, places, strict=True)}
        model = {key: {**parts, "norm.mean": mean, "norm.steps": replies[most]["norm.steps"]}[key] for key in model}
    return model


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


# The model ----------------------------------------------------------------------------------------------------------


@every_method
def test_a_run_ends_where_the_papers_vectors_end(name: str, arguments: dict[str, Any]) -> None:
    grid = MemoryGrid(quadratics(6), faults={("site-2", 2): error, ("site-0", 3): no_reply, ("site-4", 1): duplicate})
    result, rounds = run(make(name, arguments, **OPTIONS), grid, rounds=6)
    assert any(len(r.coefficients) < len(r.participants) for r in rounds) or name == "drfa"
    assert_model(result.arrays, expected_model(name, arguments, rounds))


@every_method
def test_a_round_without_usable_replies_keeps_model_and_memory_and_counts(name: str, arguments: dict[str, Any]) -> None:
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
    assert states[1]["memory"] == states[0]["memory"]
    assert [row["values"].tobytes() for row in states[1]["rows"]] == [
        row["values"].tobytes() for row in states[0]["rows"]
    ]
    assert_model(result.arrays, expected_model(name, arguments, finished))


@every_method
def test_arrival_order_and_node_ids_do_not_matter(name: str, arguments: dict[str, Any]) -> None:
    runs = [run(make(name, arguments, **OPTIONS), MemoryGrid(quadratics(6), seed=seed)) for seed in (0, 1, 2)]
    for result, rounds in runs[1:]:
        assert bits(result.arrays) == bits(runs[0][0].arrays)
        assert [r.coefficients for r in rounds] == [r.coefficients for r in runs[0][1]]
        assert [list(r.coefficients) for r in rounds] == [list(r.coefficients) for r in runs[0][1]]


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
            reply.content["client"] = ConfigRecord({"name": name, "num-examples": client.examples})
        return reply

    return answer


def sizes_in(value: Any) -> list[int]:
    """The number of entries of every array, list and mapping in a value, functions aside."""
    if isinstance(value, np.ndarray):
        return [value.size]
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [len(value), *(size for part in inner for size in sizes_in(part))]
    assert callable(value) or isinstance(value, int | float | str | Kept | type(None)), type(value)
    return []


@every_method
def test_no_vector_of_the_models_length_reaches_the_method(name: str, arguments: dict[str, Any]) -> None:
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
            numbers |= {"learning-rate": small.rate, "train-loss": small.rate}
            replied = RecordDict({"metrics": MetricRecord(numbers)})
            if message.metadata.message_type == MessageType.TRAIN:
                replied["arrays"] = after
                if "snapshot-step" in config:
                    replied["snapshot"] = after
            return Message(replied, reply_to=message)

        return answer

    method = METHODS[name]

    def weigh(self: FairStrategy, cohort: Cohort) -> FloatArray:
        seen.extend(sizes_in(vars(cohort)))
        c = method.weigh(self, cohort)
        seen.extend(sizes_in([vars(cohort), self.memory, c]))
        return c

    def remember(
        self: FairStrategy, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        kept = method.remember(self, cohort, coefficients, probed)
        seen.extend(sizes_in([vars(cohort), self.memory, dict(kept)]))
        return kept

    spied = type(name, (method,), {"weigh": weigh, "remember": remember})
    clients = {client: large(client) for client in quadratics(4)}
    initial = record({"w": np.zeros(d, np.float32)})
    _, rounds = run(spied(**arguments), MemoryGrid(clients), rounds=3, initial_arrays=initial)
    assert all(r.coefficients for r in rounds)
    assert max(seen) <= 8**2 < d


def test_the_same_seed_draws_the_same_participants_for_every_method() -> None:
    drawn = {}
    for name in METHODS:
        _, rounds = run(make(name, ARGUMENTS[name][0], **OPTIONS), rounds=3)
        drawn[name] = [r.participants for r in rounds]
    first, weighted = drawn["fedavg"], drawn.pop("drfa")
    assert all(participants == first for participants in drawn.values())
    assert all(1 <= len(participants) <= 4 for participants in weighted)
    assert all(len(participants) == 4 for participants in first)
    assert len(set(first)) > 1


def test_the_integer_buffer_is_of_the_client_with_the_most_examples_and_ties_go_to_the_first_name() -> None:
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


def test_a_buffer_that_is_not_named_is_part_of_the_update() -> None:
    gram_sizes = []

    class Watching(FedAvg):
        def weigh(self, cohort: Cohort) -> FloatArray:
            gram_sizes.append(float(np.trace(cohort.gram)))
            return super().weigh(cohort)

    run(Watching(buffers=BUFFERS), rounds=1)
    run(Watching(), rounds=1)
    assert gram_sizes[1] > gram_sizes[0]


@pytest.mark.parametrize("buffers", [("norm.steps",), ("unknown",)])
def test_a_buffer_that_is_no_float_array_of_the_model_is_refused_by_name(buffers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=buffers[0]):
        run(FedAvg(buffers=buffers))


# Broken replies -----------------------------------------------------------------------------------------------------


SITE_2_IS_DRAWN = 4
"""A seed with which DRFA, too, draws site-2 in round 1."""


def one_faulty(name: str, fault: Fault | None) -> tuple[Result, Round]:
    grid = MemoryGrid(quadratics(6), faults={} if fault is None else {("site-2", 1): fault})
    result, (only,) = run(make(name, ARGUMENTS[name][0], buffers=BUFFERS, seed=SITE_2_IS_DRAWN), grid, rounds=1)
    return result, only


@pytest.mark.parametrize("name", ["fedavg", "fedmgda", "fedfv"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_reply_is_refused_by_client_name_and_changes_nothing_else(name: str, kind: str) -> None:
    fault, reason = BROKEN[kind]
    result, finished = one_faulty(name, fault)
    without, absent = one_faulty(name, no_reply)
    assert list(finished.refused) == ["site-2"]
    assert reason in finished.refused["site-2"]
    assert finished.missing == ()
    assert absent.refused == {}
    assert absent.missing == ("site-2",)
    assert bits(result.arrays) == bits(without.arrays)
    assert finished.coefficients == absent.coefficients
    assert finished.metrics["replies-refused"] == 1
    assert finished.metrics["replies-used"] == 5


@pytest.mark.parametrize("kind", UNMEASURED)
def test_a_reply_without_a_needed_metric_is_refused_and_one_that_is_not_needed_is_ignored(kind: str) -> None:
    fault, reason = UNMEASURED[kind]
    for name in METHODS:
        result, finished = one_faulty(name, fault)
        if "loss-before" in METHODS[name].needs:
            assert reason in finished.refused["site-2"]
            assert "site-2" not in finished.coefficients
        else:
            assert finished.refused == {}
            assert bits(result.arrays) == bits(one_faulty(name, None)[0].arrays)


@pytest.mark.parametrize("metric", ["accuracy-after", "learning-rate"])
@pytest.mark.parametrize("value", [None, np.nan, -np.inf, [0.5]])
def test_every_metric_is_needed_by_the_methods_that_ask_for_it_alone(metric: str, value: Any) -> None:
    for name in METHODS:
        result, finished = one_faulty(name, metrics({metric: value}))
        if metric in METHODS[name].needs:
            assert f"metric '{metric}' must be a finite number" in finished.refused["site-2"]
            assert "site-2" not in finished.coefficients
        else:
            assert finished.refused == {}
            assert bits(result.arrays) == bits(one_faulty(name, None)[0].arrays)


@pytest.mark.parametrize("rate", [0.0, -0.1])
def test_a_learning_rate_that_is_not_positive_is_refused_by_the_method_that_divides_by_it(rate: float) -> None:
    _, finished = one_faulty("qfedsgd", metrics({"learning-rate": rate}))
    assert finished.refused == {"site-2": f"metric 'learning-rate' must be positive, got {rate}"}


@pytest.mark.parametrize(
    ("fault", "reason"), [(duplicate, "a second reply"), (to_unknown_message, "no message of this round")]
)
def test_a_reply_too_many_is_refused_and_the_first_is_used(fault: Fault, reason: str) -> None:
    result, finished = one_faulty("fedavg", fault)
    assert list(finished.refused) == ["site-2"]
    assert reason in finished.refused["site-2"]
    assert bits(result.arrays) == bits(one_faulty("fedavg", None)[0].arrays)


def test_all_kinds_of_broken_replies_at_once_are_each_refused() -> None:
    clients = {f"site-{k:02}": Quadratic(f"site-{k:02}") for k in range(len(BROKEN) + 2)}
    faults = {(name, 1): fault for name, (fault, _) in zip(clients, BROKEN.values(), strict=False)}
    _, (finished,) = run(FedAvg(buffers=BUFFERS), MemoryGrid(clients, faults=faults), rounds=1)
    assert list(finished.refused) == [name for name, _ in faults]
    assert list(finished.coefficients) == [name for name in clients if (name, 1) not in faults]


@pytest.mark.parametrize("name", METHODS)
def test_a_finite_but_huge_reply_is_used(name: str) -> None:
    def huge(sent: Message, reply: Message) -> list[Message]:
        arrays = unpack(reply.content.array_records["arrays"])
        reply.content["arrays"] = record({**arrays, "bias": np.full(3, 1e30, np.float32)})
        return [reply]

    result, finished = one_faulty(name, huge)
    assert finished.refused == {}
    assert "site-2" in finished.coefficients
    assert all(np.isfinite(a).all() for a in unpack(result.arrays).values())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [1e160, 1.7e308])
def test_an_update_whose_square_overflows_is_refused_and_the_others_are_used(name: str, size: float) -> None:
    model = {key: a.astype(np.float64) if a.dtype.kind == "f" else a for key, a in initial_model().items()}
    huge = MemoryGrid(quadratics(4), faults={("site-2", 1): arrays(bias=np.full(3, size))})
    strategy = make(name, ARGUMENTS[name][0], buffers=BUFFERS, fraction_evaluate=0.0)
    result, (finished,) = run(strategy, huge, rounds=1, initial_arrays=record(model))
    assert list(finished.refused) == ["site-2"]
    assert "inner products overflow" in finished.refused["site-2"]
    assert set(finished.coefficients) == set(finished.participants) - {"site-2"}
    assert len(finished.coefficients) == 3 or name == "drfa"
    assert all(np.isfinite(a).all() for a in unpack(result.arrays).values())


def test_a_client_that_owes_a_reply_is_not_asked_again_until_it_has_answered() -> None:
    grid = MemoryGrid(quadratics(6), faults={("site-2", 1): no_reply})

    def on_round(finished: Round) -> None:
        asked.append(finished.participants)
        if finished.number == 2:
            grid.release()

    asked: list[tuple[str, ...]] = []
    FedAvg(fraction_evaluate=0.0).start(grid, record(initial_model()), num_rounds=3, on_round=on_round)
    assert ["site-2" in participants for participants in asked] == [True, False, True]


def test_a_node_that_is_gone_is_named_though_its_error_carries_the_servers_id() -> None:
    _, finished = one_faulty("fedavg", node_unavailable)
    assert list(finished.refused) == ["site-2"]
    assert finished.missing == ()


@pytest.mark.parametrize("code", [3, 4])
def test_a_message_that_has_expired_is_no_answer(code: int) -> None:
    def expired(sent: Message, reply: Message) -> list[Message]:
        return [Message(Error(code, "it may have expired"), reply_to=sent)]

    result, finished = one_faulty("fedavg", expired)
    without, absent = one_faulty("fedavg", no_reply)
    assert (finished.missing, finished.refused) == (absent.missing, absent.refused) == (("site-2",), {})
    assert bits(result.arrays) == bits(without.arrays)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Traceback:\n  File x\r\n\tValueError: no", "Traceback: File x ValueError: no"),
        ("red \x1b[31m and a bell \x07", "red \ufffd[31m and a bell \ufffd"),
        ("begin" + 10**6 * "x" + "end", "begin" + 995 * "x" + " … " + 997 * "x" + "end"),
    ],
)
def test_what_a_client_gives_as_a_reason_is_one_printable_line_of_bounded_length(reason: str, told: str) -> None:
    def failing(sent: Message, reply: Message) -> list[Message]:
        return [Message(Error(2, reason), reply_to=sent)]

    _, finished = one_faulty("fedavg", failing)
    assert one_line(reason) == told
    assert finished.refused == {"site-2": one_line(f"error 2: {reason}")}
    assert len(finished.refused["site-2"]) <= LONGEST_REASON + 3


def test_a_broken_evaluation_is_refused_by_client_name() -> None:
    clients = quadratics(3)

    def without_count(message: Message) -> Message:
        reply = clients["site-1"](message)
        if message.metadata.message_type == MessageType.EVALUATE:
            reply.content["metrics"] = MetricRecord({"loss": 1.0})
        return reply

    _, (finished,) = run(FedAvg(), MemoryGrid({**clients, "site-1": without_count}), rounds=1)
    assert list(finished.evaluations) == ["site-0", "site-2"]
    assert list(finished.refused) == ["site-1"]
    assert finished.refused["site-1"].startswith("evaluation: num-examples")


# On the wire --------------------------------------------------------------------------------------------------------


@every_method
def test_train_messages_hold_the_arrays_and_the_config_to_the_letter(name: str, arguments: dict[str, Any]) -> None:
    grid = MemoryGrid(quadratics(6))
    run(make(name, arguments, **OPTIONS), grid, rounds=2, timeout=60.0)
    sent = grid.sent_to(MessageType.TRAIN)
    if name != "drfa":
        assert [m.content.config_records["config"]["server-round"] for _, m in sent] == [1] * 4 + [2] * 4
    for _, message in sent:
        assert set(message.content) == {"arrays", "config"}
        config = dict(message.content.config_records["config"])
        assert type(config.pop("server-round")) is int
        if name == "drfa":
            assert 1 <= config.pop("snapshot-step") <= arguments.get("local_steps", 10)
        expected = {"measure": MEASURED.get(name, []), **TERMS.get(name, lambda **_: {})(**arguments)}
        assert config == expected
        assert {key: type(value) for key, value in config.items()} == {k: type(v) for k, v in expected.items()}
        assert message.metadata.ttl == 60.0
        assert RecordDict.inflate(
            message.content.deflate(), {child.object_id: child for child in message.content.values()}
        )
    for _, message in sent:
        if message.content.config_records["config"]["server-round"] == 1:
            assert bits(message.content.array_records["arrays"]) == bits(record(initial_model()))


def test_the_metrics_needed_are_those_of_the_papers() -> None:
    for name, method in METHODS.items():
        assert method.needs == set(MEASURED.get(name, [])), name


@pytest.mark.parametrize("name", METHODS)
def test_common_local_terms_are_told_with_every_method_and_only_where_they_apply(name: str) -> None:
    own = METHODS[name].own_terms
    options = {key: value for key, value in {"proximal_mu": 0.25, "personal_lambda": 0.5}.items() if key not in own}
    grid = MemoryGrid(quadratics(2))
    run(make(name, ARGUMENTS[name][0], **options), grid, rounds=1)
    alone = MemoryGrid(quadratics(2))
    run(make(name, ARGUMENTS[name][0]), alone, rounds=1)
    with_both, without = (
        dict(g.sent_to(MessageType.TRAIN)[0][1].content.config_records["config"]) for g in (grid, alone)
    )
    told = {}
    if "proximal_mu" not in own:
        told["proximal-mu"] = 0.25
    if "personal_lambda" not in own:
        told |= {"personal-lambda": 0.5, "personal-epochs": 1}
    assert with_both == {**without, **told}
    assert not set(told) & set(without)
    for sent, personal in ((grid, with_both), (alone, without)):
        evaluated = [m.content.config_records["config"] for _, m in sent.sent_to(MessageType.EVALUATE)]
        last = [config for config in evaluated if "measure" not in config]
        assert len(last) == 2
        for config in last:
            expected = {key: value for key, value in personal.items() if key in ("personal-lambda", "server-round")}
            assert dict(config) == expected


def test_terms_of_strength_zero_are_not_told_except_that_ditto_keeps_its_personal_model() -> None:
    assert told(FedProx(mu=0.0), 1) == told(FedAvg(proximal_mu=0.0, personal_lambda=0.0), 1) == {}
    assert told(MGDAProx(mu=0.0), 1) == {}
    assert told(Ditto(lam=0.0), 1) == {"personal-lambda": 0.0, "personal-epochs": 1}


def test_the_users_config_and_further_measures_travel_along() -> None:
    grid, config = MemoryGrid(quadratics(2)), ConfigRecord({"lr": 0.1, "measure": ["accuracy-after"]})
    run(QFedAvg(q=1.0, lipschitz=1.0), grid, rounds=1, train_config=config)
    told = grid.sent_to(MessageType.TRAIN)[0][1].content.config_records["config"]
    assert dict(told) == {"lr": 0.1, "measure": ["accuracy-after", "loss-before"], "server-round": 1}
    assert dict(config) == {"lr": 0.1, "measure": ["accuracy-after"]}


def test_evaluate_messages_hold_the_new_model_and_the_round() -> None:
    grid = MemoryGrid(quadratics(3))
    _, rounds = run(FedAvg(), grid, rounds=2)
    sent = grid.sent_to(MessageType.EVALUATE)
    assert sorted(name for name, _ in sent[:3]) == ["site-0", "site-1", "site-2"]
    for i, (_, message) in enumerate(sent):
        assert set(message.content) == {"arrays", "config"}
        assert dict(message.content.config_records["config"]) == {"server-round": 1 + i // 3}
        assert bits(message.content.array_records["arrays"]) == bits(rounds[i // 3].arrays)


def test_measures_in_evaluation_are_asked_of_the_participants_alone() -> None:
    grid = MemoryGrid(quadratics(6))
    config = ConfigRecord({"measure": ["loss-before"]})
    _, (finished,) = run(FedAvg(fraction_train=0.5), grid, rounds=1, evaluate_config=config)
    for name, message in grid.sent_to(MessageType.EVALUATE):
        assert ("measure" in message.content.config_records["config"]) == (name in finished.participants)


def test_nodes_are_asked_for_their_name_once() -> None:
    grid = MemoryGrid(quadratics(3))
    run(FedAvg(), grid, rounds=3)
    queries = grid.sent_to(MessageType.QUERY)
    assert sorted(name for name, _ in queries) == ["site-0", "site-1", "site-2"]
    assert all(not message.content for _, message in queries)


def test_registered_nodes_are_not_asked() -> None:
    grid = MemoryGrid(quadratics(3), registered=("site-0", "site-1", "site-2"))
    _, rounds = run(FedAvg(), grid, rounds=1)
    assert grid.sent_to(MessageType.QUERY) == []
    assert rounds[0].participants == ("site-0", "site-1", "site-2")


def test_a_node_that_answers_the_query_with_an_error_is_named_by_its_id() -> None:
    clients = quadratics(3)

    def shy(message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return error(message, message)[0]
        return clients["site-1"](message)

    grid = MemoryGrid({**clients, "site-1": shy})
    node_id = next(node for node, name in grid.nodes.items() if name == "site-1")
    _, rounds = run(FedAvg(), grid, rounds=2)
    assert all(set(r.participants) == {"site-0", "site-2", str(node_id)} for r in rounds)


def test_other_record_keys_are_used_in_both_directions() -> None:
    clients = quadratics(2)

    def renamed(client: Quadratic, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return client(message)
        assert set(message.content) == {"model", "settings"}
        instruction = Message(RecordDict({"arrays": message.content["model"]}), reply_to=message)
        reply = client(instruction).content
        content = RecordDict({"metrics": reply["metrics"]})
        if "arrays" in reply:
            content["model"] = reply["arrays"]
        return Message(content, reply_to=message)

    grid = MemoryGrid({name: lambda m, c=client: renamed(c, m) for name, client in clients.items()})
    strategy = FedAvg(arrayrecord_key="model", configrecord_key="settings")
    result, rounds = run(strategy, grid, rounds=1)
    assert rounds[0].refused == {}
    assert bits(result.arrays) == bits(run(FedAvg(), MemoryGrid(quadratics(2)), rounds=1)[0].arrays)


# What a round hands on ----------------------------------------------------------------------------------------------


def test_a_finished_round_tells_who_took_part_and_what_came_of_it() -> None:
    faults = {("site-1", 1): error, ("site-3", 1): no_reply}
    result, rounds = run(FedAvg(buffers=BUFFERS), MemoryGrid(quadratics(5), faults=faults), rounds=2)
    first, clients = rounds[0], quadratics(5)
    used = ["site-0", "site-2", "site-4"]
    examples = sum(clients[name].examples for name in used)
    assert first.number == 1
    assert first.participants == tuple(clients)
    assert list(first.refused) == ["site-1"]
    assert first.missing == ("site-3",)
    assert list(first.coefficients) == used
    assert first.coefficients == pytest.approx({name: clients[name].examples / examples for name in used})
    assert all(type(c) is float for c in first.coefficients.values())
    assert list(first.train_metrics) == used
    assert all(first.train_metrics[name]["num-examples"] == clients[name].examples for name in used)
    counts = {"participants": 5, "replies-used": 3, "replies-refused": 1, "replies-missing": 1}
    assert {key: first.metrics[key] for key in counts} == counts
    mean = sum(clients[n].examples / examples * first.train_metrics[n]["loss-before"] for n in used)
    assert first.metrics["loss-before"] == pytest.approx(mean)
    assert set(first.evaluations) == set(clients) - {"site-3"}
    assert bits(rounds[1].arrays) == bits(result.arrays)
    assert bits(first.arrays) != bits(rounds[1].arrays)
    size = sum(len(array.data) for array in first.arrays.values())
    assert first.bytes_sent == size * (5 + 4)
    assert first.bytes_received == size * 3


def test_on_round_is_called_before_the_next_round_and_ends_the_run_by_raising() -> None:
    grid = MemoryGrid(quadratics(2))

    def stop(finished: Round) -> None:
        assert len(grid.sent_to(MessageType.TRAIN)) == 2 * finished.number
        if finished.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FedAvg().start(grid, record(initial_model()), num_rounds=5, on_round=stop)
    assert len(grid.sent_to(MessageType.TRAIN)) == 4


@pytest.mark.parametrize(
    ("options", "evaluated"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"evaluate_every": 2}, [2, 4, 5]),
        ({"evaluate_every": 0}, [5]),
        ({"evaluate_every": 9}, [5]),
        ({"fraction_evaluate": 0.0}, []),
        ({"fraction_evaluate": 0.0, "evaluate_every": 0}, []),
    ],
)
def test_clients_evaluate_every_so_many_rounds_and_after_the_last(
    options: dict[str, Any], evaluated: list[int]
) -> None:
    result, rounds = run(FedAvg(**options), rounds=5)
    assert [r.number for r in rounds if r.evaluations] == evaluated
    assert list(result.evaluate_metrics_clientapp) == evaluated


def test_the_result_is_flowers_result() -> None:
    def centrally(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"norm": float(np.linalg.norm(flat(unpack(arrays))))})

    result, rounds = run(FedAvg(), rounds=2, evaluate_fn=centrally)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert list(result.evaluate_metrics_clientapp) == [1, 2]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert bits(result.arrays) == bits(rounds[-1].arrays)
    weights = np.array([c.examples for c in quadratics(6).values()], np.float64)
    losses = np.array([rounds[-1].evaluations[name]["loss"] for name in quadratics(6)])
    assert result.evaluate_metrics_clientapp[2]["loss"] == pytest.approx(weights @ losses / weights.sum())


def test_no_rounds_leave_the_model_as_it_is() -> None:
    result, rounds = run(FedAvg(), rounds=0)
    assert rounds == []
    assert bits(result.arrays) == bits(record(initial_model()))


# State --------------------------------------------------------------------------------------------------------------


class Counting(FedAvg):
    """Keeps a momentum row and changes its memory in place."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.concatenate([cohort.prior, [0.5] * len(cohort.memory)])

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> dict[Kept, FloatArray]:
        seen = self.memory.setdefault("seen", {})
        for name in cohort.names:
            seen.setdefault(name, []).append(cohort.round)
        return {Kept("momentum", cohort.round): coefficients}


def assert_plain(value: Any) -> None:
    assert type(value) in (str, int, float, bool, type(None), list, dict, np.ndarray), type(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)


@every_method
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(name: str, arguments: dict[str, Any]) -> None:
    states: dict[int, dict[str, Any]] = {}
    strategy = make(name, arguments, **OPTIONS)
    finished: list[Round] = []

    def on_round(r: Round) -> None:
        finished.append(r)
        states[r.number] = strategy.state_dict()

    whole = strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=6, on_round=on_round)
    for stop in (1, 3, 5):
        assert_plain(states[stop])
        resumed, rest = run(
            make(name, arguments, **OPTIONS),
            MemoryGrid(quadratics(6), seed=9),
            rounds=6,
            initial_arrays=finished[stop - 1].arrays,
            resume=states[stop],
        )
        assert bits(resumed.arrays) == bits(whole.arrays)
        assert [r.number for r in rest] == list(range(stop + 1, 7))
        assert [r.coefficients for r in rest] == [r.coefficients for r in finished[stop:]]
        assert [r.evaluations for r in rest] == [r.evaluations for r in finished[stop:]]


def test_a_state_does_not_change_while_the_run_goes_on() -> None:
    states: list[dict[str, Any]] = []
    strategy = Counting(**OPTIONS)
    finished: list[Round] = []

    def on_round(r: Round) -> None:
        finished.append(r)
        states.append(strategy.state_dict())

    whole = strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=5, on_round=on_round)
    assert sum(map(len, states[1]["memory"]["seen"].values())) == 2 * 4
    again = Counting(**OPTIONS)
    resumed, _ = run(again, rounds=5, initial_arrays=finished[1].arrays, resume=states[1])
    assert bits(resumed.arrays) == bits(whole.arrays)
    assert again.memory == strategy.memory
    assert sum(map(len, states[1]["memory"]["seen"].values())) == 2 * 4


def test_a_row_made_of_several_updates_is_kept_as_their_combination() -> None:
    result, _ = run(Counting(buffers=BUFFERS), rounds=3)
    model, clients, v = {k: a.astype(np.float64) for k, a in initial_model().items()}, quadratics(6), np.zeros(10)
    n = np.array([c.examples for c in clients.values()], np.float64)
    for _ in range(3):
        U = np.array([flat(model) - flat(c.trained(model)) for c in clients.values()])
        v = 0.5 * v + n / n.sum() @ U
        places = np.split(flat(model) - v, np.cumsum([model[key].size for key in TRAINABLE])[:-1])
        model |= {key: place.reshape(model[key].shape) for key, place in zip(TRAINABLE, places, strict=True)}
    np.testing.assert_allclose(flat(unpack(result.arrays)), flat(model), rtol=2e-5)


def test_a_second_run_of_the_same_object_starts_afresh() -> None:
    strategy = FedFV(tau=2, **OPTIONS)
    first, _ = run(strategy)
    second, _ = run(strategy)
    assert bits(second.arrays) == bits(first.arrays)


def test_resuming_a_finished_run_changes_nothing() -> None:
    strategy = FedFV(**OPTIONS)
    whole, _ = run(strategy, rounds=3)
    again, rounds = run(FedFV(**OPTIONS), rounds=3, initial_arrays=whole.arrays, resume=strategy.state_dict())
    assert rounds == []
    assert bits(again.arrays) == bits(whole.arrays)


# In other hands -----------------------------------------------------------------------------------------------------


@every_method
def test_flowers_own_loop_gives_the_same_model(name: str, arguments: dict[str, Any]) -> None:
    if arguments.get("decay"):
        pytest.skip("decay needs the number of rounds")
    ours, _ = run(make(name, arguments, **OPTIONS))
    strategy = make(name, arguments, **OPTIONS)
    theirs = Strategy.start(strategy, MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=4)
    assert bits(theirs.arrays) == bits(ours.arrays)
    assert dict(theirs.train_metrics_clientapp[4]) == dict(ours.train_metrics_clientapp[4])


def test_decay_in_another_loop_says_what_to_do_and_is_no_skipped_round() -> None:
    strategy = FedMGDA(decay=0.5)
    with pytest.raises(ValueError, match="decay needs the number of rounds"):
        Strategy.start(strategy, MemoryGrid(quadratics(2)), record(initial_model()), num_rounds=1)


@pytest.mark.parametrize("method", [FedAvg, FedMGDA])
def test_a_foreign_client_with_flowers_usual_metrics_takes_part(method: type[FairStrategy]) -> None:
    def foreign(message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return error(message, message)[0]
        if message.metadata.message_type == MessageType.EVALUATE:
            numbers = MetricRecord({"eval_loss": 0.5, "eval_acc": 0.9, "num-examples": 10})
            return Message(RecordDict({"metrics": numbers}), reply_to=message)
        after = {
            k: np.asarray(a * 0.5).astype(a.dtype) for k, a in unpack(message.content.array_records["arrays"]).items()
        }
        numbers = MetricRecord({"train_loss": 1.5, "num-examples": 10})
        return Message(RecordDict({"arrays": record(after), "metrics": numbers}), reply_to=message)

    result, (finished,) = run(method(buffers=BUFFERS), MemoryGrid(dict.fromkeys("abc", foreign)), rounds=1)
    assert finished.refused == {}
    assert finished.metrics["train_loss"] == pytest.approx(1.5)
    np.testing.assert_allclose(flat(unpack(result.arrays)), 0.5 * flat(initial_model()), rtol=1e-6)


def test_a_method_that_needs_a_loss_refuses_a_foreign_client_with_the_reason() -> None:
    _, finished = one_faulty("fedfv", UNMEASURED["no loss"][0])
    assert finished.refused == {"site-2": "metric 'loss-before' must be a finite number, got None"}


def test_a_grid_that_only_sends_and_receives_is_enough() -> None:
    class Bare(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise NotImplementedError

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            return MemoryGrid.pull_messages(self, self.push_messages(messages))

    _, rounds = run(FedAvg(), Bare(quadratics(3), faults={("site-1", 1): no_reply}), rounds=2)
    assert [r.participants for r in rounds] == [("site-0", "site-1", "site-2"), ("site-0", "site-2")]


def test_too_few_clients_are_waited_for_no_longer_than_the_timeout_and_the_round_is_skipped() -> None:
    grid = MemoryGrid(quadratics(2))
    result, rounds = run(FedAvg(min_available_nodes=3), grid, rounds=1, timeout=0.01)
    assert [(r.number, r.participants, r.coefficients) for r in rounds] == [(1, (), {})]
    assert grid.sent_to(MessageType.TRAIN) == []
    assert bits(result.arrays) == bits(record(initial_model()))
