"""Who takes part in a round: the same clients for the same seed, whatever node ids they have."""

from typing import Any

from flwr.app import Message, MessageType

from fairbloom.strategies import METHODS, FedAvg
from tests.strategies.helpers import (
    ARGUMENTS,
    MemoryGrid,
    error,
    initial_model,
    make,
    quadratics,
    record,
)

from .helpers import OPTIONS, bits, every_kind, run, undisturbed


@every_kind
def test_arrival_order_and_node_ids_do_not_matter(name: str, arguments: dict[str, Any]) -> None:
    expected, same = undisturbed(name, arguments)
    for seed in (1, 2):
        result, rounds = run(make(name, arguments, **OPTIONS), MemoryGrid(quadratics(6), seed=seed))
        assert bits(result.arrays) == bits(expected.arrays)
        assert [list(r.coefficients.items()) for r in rounds] == [list(r.coefficients.items()) for r in same]


def test_a_seed_draws_the_same_participants_for_every_method() -> None:
    drawn = {}
    for name in METHODS:
        _, rounds = undisturbed(name, ARGUMENTS[name][0])
        drawn[name] = [r.participants for r in rounds]
    first, weighted = drawn["fedavg"], drawn.pop("drfa")
    assert all(participants == first for participants in drawn.values())
    assert all(1 <= len(participants) <= 4 for participants in weighted)
    assert all(len(participants) == 4 for participants in first)
    assert len(set(first)) > 1


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


def test_a_node_that_answers_the_query_with_an_error_has_its_id() -> None:
    clients = quadratics(3)

    def shy(message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return error(message, message)[0]
        return clients["site-1"](message)

    grid = MemoryGrid({**clients, "site-1": shy})
    node_id = next(node for node, name in grid.nodes.items() if name == "site-1")
    _, rounds = run(FedAvg(), grid, rounds=2)
    assert all(set(r.participants) == {"site-0", "site-2", str(node_id)} for r in rounds)


def test_with_too_few_clients_a_round_is_skipped_at_the_timeout() -> None:
    grid = MemoryGrid(quadratics(2))
    result, rounds = run(FedAvg(min_available_nodes=3, unused_rounds=0), grid, rounds=1, timeout=0.01)
    assert [(r.number, r.participants, r.coefficients) for r in rounds] == [(1, (), {})]
    assert grid.sent_to(MessageType.TRAIN) == []
    assert bits(result.arrays) == bits(record(initial_model()))
