"""Flower's own loop and wrappers, a user's subclass, and users' clients and grids.

QUERY for names and examples, apps that do not answer it, and the roster of a method.
"""

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.app.error import Error
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg as FlowersFedAvg,
    Strategy,
)

from fairbloom.protocol.advice import ADVICE
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.quorum import QuorumError
from fairbloom.strategies import FairStrategy, FedAvg, FedMGDA
from tests.federation import (
    BUFFERS,
    KINDS,
    OPTIONS,
    Answer,
    MemoryGrid,
    about_itself,
    answering,
    bits,
    error,
    flat,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
    replying,
    run,
    undisturbed,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, Arrays, make

FIRST = record(initial_model())


@pytest.mark.parametrize("name", KINDS)
def test_flowers_own_loop_gives_the_same_model(name: str) -> None:
    ours, _ = undisturbed(name)
    strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
    theirs = Strategy.start(strategy, MemoryGrid(quadratics(6)), FIRST, num_rounds=4)
    assert bits(theirs.arrays) == bits(ours.arrays), name
    assert dict(theirs.train_metrics_clientapp[4]) == dict(ours.train_metrics_clientapp[4]), name


def test_decay_in_another_loop_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="decay needs the number of rounds"):
        Strategy.start(FedMGDA(decay=0.5), MemoryGrid(quadratics(2)), FIRST, num_rounds=1)


@pytest.mark.parametrize("method", [FedAvg, FedMGDA])
def test_a_foreign_client_with_flowers_usual_metrics_takes_part(method: type) -> None:
    def halve(model: Arrays, number: int) -> Arrays:
        return {name: (0.5 * array).astype(array.dtype) for name, array in model.items()}

    numbers = MetricRecord(
        {"eval_loss": 0.5, "eval_acc": 0.9, "num-examples": 10, "train_loss": 1.5}
    )
    client = answering(
        replying("", halve, numbers), query=lambda message: error(message, message)[0]
    )
    result, (finished,) = run(method(buffers=BUFFERS), dict.fromkeys("abc", client), rounds=1)
    assert finished.refused == {}
    assert finished.metrics["train_loss"] == pytest.approx(1.5)
    assert finished.evaluations[finished.participants[0]]["eval_acc"] == 0.9
    np.testing.assert_allclose(flat(unpack(result.arrays)), 0.5 * flat(initial_model()), rtol=1e-6)


def test_a_grid_that_only_sends_and_receives_is_enough() -> None:
    class Bare(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise NotImplementedError

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            return MemoryGrid.pull_messages(self, self.push_messages(messages))

    _, rounds = run(FedAvg(), Bare(quadratics(3), faults={("site-1", 1): no_reply}), 2)
    assert [r.participants for r in rounds] == [
        ("site-0", "site-1", "site-2"),
        ("site-0", "site-2"),
    ]


# Hooks --------------------------------------------------------------------------------------------


def test_a_subclass_may_change_what_is_sent_and_used() -> None:
    class Choosy(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config = ConfigRecord({**config, "phase": f"round {server_round}"})
            return list(super().configure_train(server_round, arrays, config, grid))[1:]

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            heard.append(sorted(grid.nodes[reply.metadata.src_node_id] for reply in replies))
            kept = [
                reply for reply in replies if grid.nodes[reply.metadata.src_node_id] != "site-3"
            ]
            arrays, numbers = super().aggregate_train(server_round, kept)
            return arrays, MetricRecord({**(numbers or {}), "heard": len(heard[-1])})

        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return list(super().configure_evaluate(server_round, arrays, config, grid))[:2]

        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            return MetricRecord(
                {**(super().aggregate_evaluate(server_round, replies) or {}), "mine": 1.0}
            )

    heard: list[list[str]] = []
    grid = MemoryGrid(quadratics(4))
    result, rounds = run(Choosy(buffers=BUFFERS), grid, rounds=2)
    assert (
        heard == [["site-1", "site-2", "site-3"]] * 2
    )  # no reply is expected for one that was held back
    first, last = rounds
    assert list(first.coefficients) == ["site-1", "site-2"]
    assert first.missing == ("site-0", "site-3")
    assert first.metrics["heard"] == 3
    assert [
        message.content.config_records["config"]["phase"]
        for _, message in grid.sent_to(MessageType.TRAIN)
    ] == (["round 1"] * 3 + ["round 2"] * 3)
    assert len(grid.sent_to(MessageType.EVALUATE)) == 4
    assert result.evaluate_metrics_clientapp[2]["mine"] == 1.0
    assert bits(result.arrays) == bits(last.arrays)


def test_a_subclass_may_return_the_arrays_of_the_next_round(subtests: pytest.Subtests) -> None:
    class Still(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            return FIRST, super().aggregate_train(server_round, replies)[1]

    grid = MemoryGrid(quadratics(3))
    result, rounds = run(Still(buffers=BUFFERS), grid, rounds=3)
    sent = [
        message.content.array_records["arrays"] for _, message in grid.sent_to(MessageType.TRAIN)
    ]
    for arrays in (*(each.arrays for each in rounds), *sent, result.arrays):
        with subtests.test(arrays=arrays):
            assert bits(arrays) == bits(FIRST)


def test_replies_to_no_messages_of_ours_say_what_to_call() -> None:
    class WrittenOut(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            return [Message(content, node_id, MessageType.TRAIN) for node_id in grid.get_node_ids()]

    with pytest.raises(RuntimeError, match="call configure_train first"):
        FedAvg().aggregate_train(1, [])
    with pytest.raises(RuntimeError, match=r"super\(\).configure_train"):
        run(WrittenOut(), MemoryGrid(quadratics(2)), rounds=1)


def test_the_hooks_stop_a_run_that_learns_nothing_too() -> None:
    grid = MemoryGrid(dict.fromkeys("abc", lambda message: error(message, message)[0]))
    with pytest.raises(
        NothingLearnedError, match="for 3 rounds: in round 3, 3 of 3 replies were refused"
    ):
        Strategy.start(FedAvg(), grid, FIRST, num_rounds=8)


# Flower's wrappers for differential privacy -------------------------------------------------------


def completes(strategy: Strategy, mod: Callable[..., Message] | None = None) -> bool:
    """Return whether a run of two rounds uses each reply, with one of Flower's mods on its
    training."""
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    clients: dict[str, Answer] = dict(quadratics(3))
    if mod is not None:
        for name, client in quadratics(3).items():
            through = lambda message, client=client: mod(  # noqa: E731
                message, context, lambda sent, _: client(sent)
            )
            clients[name] = answering(client, train=through)
    try:
        result = strategy.start(MemoryGrid(clients), FIRST, num_rounds=2)
    except (NothingLearnedError, QuorumError, ValueError, ZeroDivisionError):
        return False
    means = result.train_metrics_clientapp.values()
    return len(means) == 2 and all(
        each["replies-refused"] == each["replies-missing"] == 0 for each in means
    )


CLIPPING: dict[str, Any] = {
    "noise_multiplier": 0.0,  # which methods the noise covers: tests/strategies/test_noise.py
    "clipping_norm": 1.0,
    "num_sampled_clients": 3,
}


def test_flowers_noise_works_with_the_methods_of_the_page(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    # An error of a mod answers the client's reply instead of the message, so that the client seems
    # silent.
    monkeypatch.setattr("fairbloom.rounds.flower.PATIENCE_SECONDS", 0.0)
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=15.0, delta=1e-5)
    central = partial(DifferentialPrivacyServerSideFixedClipping, **CLIPPING)
    of_clients = partial(DifferentialPrivacyClientSideFixedClipping, **CLIPPING)
    for wrapper, mods, fails in (
        (lambda strategy: strategy, mod, {"scaffold", "drfa", "fcfl", "local"}),
        (central, None, {"fcfl", "local"}),
        (of_clients, fixedclipping_mod, {"scaffold", "drfa", "fcfl", "local"}),
    ):
        with subtests.test(wrapper=wrapper, mods=mods):
            made = {name: wrapper(make(name, ARGUMENTS[name][0])) for name in (*KINDS, "local")}
            assert {
                name for name, strategy in made.items() if not completes(strategy, mods)
            } == fails


# Arguments of Flower's FedAvg ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameter"), inspect.signature(FlowersFedAvg).parameters.items())
def test_flowers_fedavg_arguments_have_flowers_defaults(name: str, parameter: Any) -> None:
    assert [
        method
        for method in (FedAvg, FedMGDA)
        if getattr(method(**{name: parameter.default}), name) != parameter.default
    ] == []


def test_own_aggregation_is_not_called_without_usable_replies() -> None:
    def never(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        raise AssertionError("there is nothing to aggregate")

    faults = {(site, 1): error for site in quadratics(6)}
    result, _ = run(FedAvg(train_metrics_aggr_fn=never, unused_rounds=0), rounds=1, faults=faults)
    assert result.train_metrics_clientapp[1]["replies-used"] == 0
    own = FedMGDA(
        train_metrics_aggr_fn=lambda contents, weighted_by_key: MetricRecord({"mine": 1.0})
    )
    result, _ = run(own, rounds=1)
    # what the method reports stays
    assert {"mine", *FedMGDA().all_reports} <= set(result.train_metrics_clientapp[1])


# Flower's log lines -------------------------------------------------------------------------------


def steps_of(strategy: Strategy, caplog: pytest.LogCaptureFixture, start: Any) -> list[str]:
    """Return what a run of two rounds logs, without its numbers, the method's options and the
    summary."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "flwr"):
        start(strategy, MemoryGrid(quadratics(3)), FIRST, num_rounds=2)
    steps = (
        "Starting",
        "[ROUND",
        "configure_",
        "aggregate_",
        "Strategy execution",
        "Final results:",
    )
    lines = [line.strip() for line in caplog.messages]
    return [line.partition(":")[0].partition(" in ")[0] for line in lines if line.startswith(steps)]


def test_flowers_loop_and_ours_log_the_same_steps(caplog: pytest.LogCaptureFixture) -> None:
    flowers = steps_of(FlowersFedAvg(), caplog, FlowersFedAvg.start)
    assert "[ROUND 2/2]" in flowers
    assert (
        steps_of(FedAvg(), caplog, FedAvg.start)
        == steps_of(FedAvg(), caplog, Strategy.start)
        == flowers
    )


FLOWER = logging.getLogger("flwr")
EXAMPLES = {name: client.examples for name, client in quadratics(5).items()}


class Asking(MemoryGrid):
    """Notes which nodes are asked for a name, and which together."""

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        asked = [
            m.metadata.dst_node_id for m in messages if m.metadata.message_type == MessageType.QUERY
        ]
        self.asked = [*vars(self).get("asked", []), *([asked] if asked else [])]
        return super().push_messages(messages)


def failing(reason: str) -> Answer:
    return lambda message: Message(Error(2, reason), reply_to=message)


# Names --------------------------------------------------------------------------------------------


def test_nodes_are_asked_once_the_first_alone_the_named_never(subtests: pytest.Subtests) -> None:
    names = tuple(quadratics(5))
    grid = Asking(quadratics(5))
    named = Asking(quadratics(5), registered=names)
    for each in (grid, named):
        with subtests.test(each=each):
            assert run(FedAvg(), each, rounds=3)[1][0].participants == names
    first, others = grid.asked
    assert len(first) == 1
    assert sorted(first + others) == sorted(grid.nodes)
    assert all(not message.content for _, message in grid.sent_to(MessageType.QUERY))
    assert named.asked == []  # an operator has registered their names


def test_an_app_without_a_query_function_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    """As Flower's templates are: the first node's answer is that of all."""
    bare = answering(quadratics(1)["site-0"], query=failing("No query function registered"))
    grid = Asking(dict.fromkeys("abcde", bare))
    with caplog.at_level(logging.INFO, "flwr"):
        _, rounds = run(FedAvg(), grid, rounds=3)
    assert grid.asked == [[min(grid.nodes)]]
    said = [each for each in caplog.messages if "answers no QUERY" in each and ADVICE in each]
    assert len(said) == 1
    assert all(set(each.participants) == {str(node) for node in grid.nodes} for each in rounds)


def test_a_node_without_a_name_is_called_by_its_id(subtests: pytest.Subtests) -> None:
    """The first one, and a later one: the others keep their names. One that is silent takes no
    part."""
    clients: dict[str, Answer] = dict(quadratics(4))
    nodes = MemoryGrid(clients).nodes
    for node, reason in (
        (min(nodes), "out of memory"),
        (max(nodes), "No query function registered"),
    ):
        with subtests.test(node=node, reason=reason):
            bare = answering(clients[nodes[node]], query=failing(reason))
            _, (finished,) = run(FedAvg(), clients | {nodes[node]: bare}, rounds=1)
            assert set(finished.participants) == (clients.keys() - {nodes[node]}) | {str(node)}
    first = nodes[min(nodes)]
    silent = answering(clients[first], query=lambda message: None)
    _, rounds = run(FedAvg(), clients | {first: silent}, rounds=2, timeout=0.001)
    assert [each.participants for each in rounds] == [tuple(sorted(clients.keys() - {first}))] * 2


def test_only_the_simulations_traceback_about_query_is_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reason = "No query function registered with name 'default'"

    def simulated(message: Message) -> Message:
        """Answer with an error that the same process logs."""
        FLOWER.error("An exception was raised when processing a message by %s", "RayBackend")
        FLOWER.error(f"Traceback (most recent call last):\nValueError: {reason}\n")
        return Message(Error(2, f"<class 'ValueError'>:<'{reason}'>"), reply_to=message)

    client = answering(quadratics(1)["site-0"], query=simulated)
    with caplog.at_level(logging.INFO, "flwr"):
        _, (finished,) = run(FedAvg(), MemoryGrid(dict.fromkeys("abc", client)), rounds=1)
        FLOWER.error("No query function registered, somebody else says")
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
    assert len(finished.participants) == 3


def test_failures_at_query_are_one_warning_with_a_remedy(caplog: pytest.LogCaptureFixture) -> None:
    bare = answering(
        quadratics(1)["site-0"], query=failing(f"LocalDpMod is not compatible {'x' * 1000}")
    )
    with caplog.at_level(logging.WARNING, "flwr"):
        _, rounds = run(
            FedAvg(), MemoryGrid({**quadratics(1), "site-1": bare, "site-2": bare}), rounds=3
        )
    (warning,) = [each for each in caplog.messages if "QUERY" in each]
    assert [
        words
        for words in ("2 nodes", "LocalDpMod is not compatible", "@app.train(mods=[...])")
        if words not in warning
    ] == []
    assert len(warning) < 1000
    assert len(rounds[-1].participants) == 3


# The roster ---------------------------------------------------------------------------------------


class Noting(FairStrategy):
    """FedAvg that notes the roster of each cohort."""

    requires = frozenset({"roster"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"buffers": BUFFERS, "fraction_evaluate": 0.0, **options})
        self.rosters: list[dict[str, float]] = []

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.rosters.append(dict(cohort.roster))
        return cohort.prior


def rosters(
    method: Noting, clients: Mapping[str, Answer], rounds: int = 1, **grid: Any
) -> list[dict[str, float]]:
    run(method, MemoryGrid(clients, **grid), rounds)
    return method.rosters


def known(*names: str) -> dict[str, float]:
    return {name: EXAMPLES[name] for name in names}


ALL = known("site-0", "site-1", "site-2")


def test_all_training_clients_are_on_the_roster_by_name() -> None:
    clients = dict(reversed(quadratics(5).items()))
    (roster,) = rosters(Noting(fraction_train=0.2), clients)
    assert list(roster.items()) == sorted(EXAMPLES.items())
    assert rosters(Noting(training_clients=("site-3", "site-1")), clients) == [
        known("site-1", "site-3")
    ]


@pytest.mark.parametrize("number", [None, 0, -3, 2.5, 7.0, True, "many", 2**60])
def test_the_first_usable_reply_replaces_a_missing_number(number: Any) -> None:
    about = {} if number is None else {"num-examples": number}
    clients = {
        name: about_itself(client, name=name, **about) for name, client in quadratics(3).items()
    }
    first, second = rosters(
        Noting(), clients, 2, faults={("site-2", 1): metrics({"num-examples": 0})}
    )
    assert first == known("site-0", "site-1") | {"site-2": 0.0}
    assert second == ALL
    growing = {("site-1", 2): metrics({"num-examples": EXAMPLES["site-1"] + 5})}
    assert rosters(Noting(), quadratics(3), 3, faults=growing) == [ALL] * 3


def test_an_answer_beyond_the_enrolled_size_is_not_believed() -> None:
    boasting = about_itself(quadratics(3)["site-1"], name="site-1", **{"num-examples": 10**9})
    clients: dict[str, Answer] = {**quadratics(3), "site-1": boasting}
    enrolled = {"enrolled_sizes": {"site-1": 200}}
    assert (
        rosters(Noting(**enrolled), clients, faults={("site-1", 1): no_reply})[0]["site-1"] == 0.0
    )
    assert rosters(Noting(**enrolled), clients)[0]["site-1"] == EXAMPLES["site-1"]


def test_clients_that_answer_no_query_are_on_it_by_node_ids() -> None:
    clients = {name: answering(client, query=failing("")) for name, client in quadratics(3).items()}
    grid = MemoryGrid(clients)
    method = Noting()
    run(method, grid, 1)
    assert method.rosters == [
        {str(node): float(EXAMPLES[name]) for node, name in sorted(grid.nodes.items(), key=str)}
    ]
    # SCAFFOLD divides by a sum over the roster
    assert {type(number) for number in method.rosters[0].values()} == {float}


def test_who_was_asked_about_its_data_is_not_asked_again() -> None:
    """As when clients with registered names agree on something before the first round."""
    method = Noting()
    grid = Asking(quadratics(3), registered=ALL)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 2)
    list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))
    assert method.rosters == [ALL] * 2
    assert [sorted(grid.nodes[node] for node in asked) for asked in grid.asked] == [list(ALL)]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Noting(), "out of memory"),
        (FedAvg(proximal_mu=0.1, unused_rounds=0), "No query function registered"),
    ],
)
def test_who_fails_when_asked_is_not_asked_again(method: FairStrategy, reason: str) -> None:
    """Neither for a number of examples nor for supported terms."""
    bare = answering(quadratics(1)["site-0"], query=failing(reason))
    grid = Asking({"site-0": bare}, registered=["site-0"])
    clients = FlowerClients(method, grid, 60.0)
    loop = Rounds(method, clients, 2)
    list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))
    assert clients.sizes(["site-0"]) == {}
    assert grid.asked == [[*grid.nodes]]


def test_absent_clients_stay_on_it_and_newcomers_are_added() -> None:
    """The grid loses a client after the first round and gains another; a third was known before the
    run began."""
    clients = quadratics(4)
    grid = MemoryGrid({name: clients[name] for name in ("site-0", "site-1")})
    method = Noting()
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 3, known=["site-9"])
    rounds = loop.run(initial_model(), measure=lambda number: [], measure_after=[])
    next(rounds)
    grid.nodes = {node: name for node, name in grid.nodes.items() if name != "site-0"} | {
        77: "site-3"
    }
    grid.clients = clients
    next(rounds)
    first = known("site-0", "site-1") | {"site-9": 0.0}
    assert method.rosters == [first, {**first, **known("site-3")}]
    assert list(method.rosters[1]) == sorted(method.rosters[1])


def test_the_roster_survives_a_kill() -> None:
    """What the killed server knew of a client that has gone since is known to the one that
    continues."""
    killed = Noting()
    continued = Noting()
    _, (first,) = run(killed, MemoryGrid(quadratics(3)), 1)
    state = killed.state_dict()
    state |= {"roster": json.loads(json.dumps(state["roster"]))}
    left = {name: client for name, client in quadratics(3).items() if name != "site-1"}
    run(continued, MemoryGrid(left), 2, initial_arrays=first.arrays, resume=state)
    assert continued.rosters == [ALL]
