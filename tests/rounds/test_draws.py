"""Who takes part in a round: the same clients for the same seed, whatever node ids they have."""

from flwr.app import MessageType

from fairbloom.strategies import METHODS, FedAvg
from tests.federation import OPTIONS, MemoryGrid, bits, initial_model, quadratics, record, run, undisturbed
from tests.strategies.helpers import ARGUMENTS, make


def test_arrival_order_and_node_ids_do_not_matter() -> None:
    for name in ("fedavg", "fedfv", "drfa", "scaffold"):
        expected, same = undisturbed(name, ARGUMENTS[name][0])
        result, rounds = run(make(name, ARGUMENTS[name][0], **OPTIONS), MemoryGrid(quadratics(6), seed=1))
        assert bits(result.arrays) == bits(expected.arrays), name
        assert [list(r.coefficients.items()) for r in rounds] == [list(r.coefficients.items()) for r in same], name


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
    names = ("site-0", "site-1", "site-2")
    grid, named = MemoryGrid(quadratics(3)), MemoryGrid(quadratics(3), registered=names)
    for each in (grid, named):
        assert run(FedAvg(), each, rounds=3)[1][0].participants == names
    queries = grid.sent_to(MessageType.QUERY)
    assert tuple(sorted(name for name, _ in queries)) == names
    assert all(not message.content for _, message in queries)
    assert named.sent_to(MessageType.QUERY) == []  # an operator has registered their names


def test_with_too_few_clients_a_round_is_skipped_at_the_timeout() -> None:
    grid = MemoryGrid(quadratics(2))
    result, rounds = run(FedAvg(min_available_nodes=3, unused_rounds=0), grid, rounds=1, timeout=0.01)
    assert [(r.number, r.participants, r.coefficients) for r in rounds] == [(1, (), {})]
    assert grid.sent_to(MessageType.TRAIN) == []
    assert bits(result.arrays) == bits(record(initial_model()))
