"""The roster of a cohort: which training clients the server has known up to now, and how many examples each has."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fairbloom.rounds.cohort import Cohort, UndeclaredRosterError
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FairStrategy, FedAvg
from tests.federation import (
    BUFFERS,
    Answer,
    MemoryGrid,
    Quadratic,
    error,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
)

EXAMPLES = {name: client.examples for name, client in quadratics(5).items()}


class Noting(FairStrategy):
    """FedAvg that notes the roster of each cohort."""

    requires = frozenset({"roster"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"buffers": BUFFERS, "fraction_evaluate": 0.0, **options})
        self.rosters: list[dict[str, float]] = []

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.rosters.append(dict(cohort.roster))
        return cohort.prior


def run(method: Noting, clients: Mapping[str, Answer], rounds: int = 1, **grid: Any) -> list[dict[str, float]]:
    method.start(MemoryGrid(clients, **grid), initial_arrays=record(initial_model()), num_rounds=rounds)
    return method.rosters


def saying(number: Any) -> Callable[[Quadratic], Answer]:
    """Make a client say in its answer to QUERY that it has so many examples; None: it says nothing of them."""

    def of(client: Quadratic) -> Answer:
        def answer(message: Message) -> Message:
            if message.metadata.message_type != MessageType.QUERY:
                return client(message)
            said = {} if number is None else {"num-examples": number}
            return Message(RecordDict({"client": ConfigRecord({"name": client.name, **said})}), reply_to=message)

        return answer

    return of


def without_query(client: Quadratic) -> Answer:
    def answer(message: Message) -> Message:
        query = message.metadata.message_type == MessageType.QUERY
        return error(message, message)[0] if query else client(message)

    return answer


def test_all_online_clients_are_on_it_in_order_of_names() -> None:
    clients = dict(reversed(quadratics(5).items()))
    (roster,) = run(Noting(fraction_train=0.2), clients)
    assert roster == EXAMPLES
    assert list(roster) == sorted(EXAMPLES)
    assert run(Noting(training_clients=("site-3", "site-1")), clients) == [
        {k: EXAMPLES[k] for k in ("site-1", "site-3")}
    ]


def test_a_method_that_does_not_ask_for_it_gets_none() -> None:
    class Plain(Noting):
        requires = frozenset[str]()

    method = Plain()
    with pytest.raises(UndeclaredRosterError, match="requires"):
        run(method, quadratics(3))
    assert "roster" not in method.state_dict()
    assert "roster" not in FedAvg().state_dict()


def test_the_first_usable_reply_replaces_a_missing_number() -> None:
    for number in (None, 0, -3, 2.5, 7.0, True, "many", 2**60):
        clients = {name: saying(number)(client) for name, client in quadratics(3).items()}
        refused = {("site-2", 1): metrics({"num-examples": 0})}
        first, second = run(Noting(), clients, rounds=2, faults=refused)
        assert first == {"site-0": EXAMPLES["site-0"], "site-1": EXAMPLES["site-1"], "site-2": 0.0}
        assert second == {name: EXAMPLES[name] for name in clients}


def test_clients_that_answer_no_query_are_on_it_by_node_ids() -> None:
    clients = {name: without_query(client) for name, client in quadratics(3).items()}
    grid, method = MemoryGrid(clients), Noting()
    method.start(grid, initial_arrays=record(initial_model()), num_rounds=1)
    assert method.rosters == [{str(node): float(EXAMPLES[name]) for node, name in sorted(grid.nodes.items(), key=str)}]
    assert {type(number) for number in method.rosters[0].values()} == {float}  # SCAFFOLD divides by what it makes of it


def test_who_was_asked_about_its_data_is_not_asked_again() -> None:
    """As where clients, whose names an operator registered, agree on something before the first round."""
    asked: list[str] = []

    def answering(client: Quadratic) -> Answer:
        def answer(message: Message) -> Message:
            reply = client(message)
            if message.metadata.message_type == MessageType.QUERY:
                asked.append(client.name)
            return reply

        return answer

    clients = {name: answering(client) for name, client in quadratics(3).items()}
    method = Noting()
    nodes = FlowerClients(method, MemoryGrid(clients, registered=clients), 60.0)
    list(Rounds(method, nodes, 2).run(initial_model(), measure=lambda number: [], measure_after=[]))
    assert method.rosters == [{name: EXAMPLES[name] for name in clients}] * 2
    assert sorted(asked) == sorted(clients)


def test_a_number_stays_as_first_known() -> None:
    growing = {("site-1", 2): metrics({"num-examples": EXAMPLES["site-1"] + 5})}
    rosters = run(Noting(), quadratics(3), rounds=3, faults=growing)
    assert rosters == [{name: EXAMPLES[name] for name in quadratics(3)}] * 3


def test_an_answer_beyond_the_enrolled_size_is_not_believed() -> None:
    clients: dict[str, Answer] = {**quadratics(3), "site-1": saying(10**9)(quadratics(3)["site-1"])}
    enrolled = {"enrolled_sizes": {"site-1": 200}}
    away = {("site-1", 1): no_reply}
    assert run(Noting(**enrolled), clients, faults=away)[0]["site-1"] == 0.0
    assert run(Noting(**enrolled), clients)[0]["site-1"] == EXAMPLES["site-1"]


def test_absent_clients_stay_on_it_and_newcomers_are_added() -> None:
    """The grid loses a client after the first round and gains another; a third was known before the run began."""
    clients = quadratics(4)
    grid, method = MemoryGrid({name: clients[name] for name in ("site-0", "site-1")}), Noting()
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 3, known=["site-9"])
    rounds = loop.run(initial_model(), measure=lambda number: [], measure_after=[])
    next(rounds)
    gone = next(node for node, name in grid.nodes.items() if name == "site-0")
    del grid.nodes[gone]
    grid.nodes[77], grid.clients = "site-3", clients
    next(rounds)
    first = {"site-0": EXAMPLES["site-0"], "site-1": EXAMPLES["site-1"], "site-9": 0.0}
    second = {**first, "site-3": EXAMPLES["site-3"]}
    assert method.rosters == [first, second]
    assert list(method.rosters[1]) == sorted(second)


def test_it_survives_a_kill() -> None:
    """What the killed server knew of a client that has gone since is known to the one that continues."""
    method = Noting()
    states: list[dict[str, Any]] = []
    grid = MemoryGrid(quadratics(3))
    arrays: list[Any] = [record(initial_model())]

    def note(finished: Any) -> None:
        states.append(json.loads(json.dumps({"roster": method.state_dict()["roster"]})))
        arrays.append(finished.arrays)

    method.start(grid, initial_arrays=arrays[0], num_rounds=1, on_round=note)
    state = {**method.state_dict(), **states[0]}
    left, continued = {name: client for name, client in quadratics(3).items() if name != "site-1"}, Noting()
    continued.start(MemoryGrid(left), initial_arrays=arrays[1], num_rounds=2, resume=state)
    assert continued.rosters == [{name: EXAMPLES[name] for name in quadratics(3)}]
