"""QUERY for names and examples, apps that do not answer it, and the roster of a method."""

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from fairbloom.protocol.advice import ADVICE
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedAvg, Round
from tests.federation import (
    BUFFERS,
    Answer,
    MemoryGrid,
    about_itself,
    answering,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
    replying,
    run,
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
    app = ClientApp()  # as Flower's templates are
    client = replying("", lambda m, number: {**m, "bias": m["bias"] + 1}, {"eval_acc": 0.5})
    for kind in (app.train, app.evaluate):
        kind()(lambda message, context: client(message))

    class Grid(InProcessGrid):
        asked: ClassVar[list[int]] = []

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.asked.extend(
                m.metadata.dst_node_id
                for m in messages
                if m.metadata.message_type == MessageType.QUERY
            )
            return super().push_messages(messages)

    finished = list[Round]()
    with caplog.at_level(logging.INFO, "flwr"):
        FedAvg().start(Grid(app, {}, 5), record(initial_model()), 3, on_round=finished.append)
    assert Grid.asked == [2]
    assert (
        len([each for each in caplog.messages if "answers no QUERY" in each and ADVICE in each])
        == 1
    )
    assert all(each.participants == ("2", "3", "4", "5", "6") for each in finished)
    assert all(each.evaluations["4"]["eval_acc"] == 0.5 for each in finished)


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
