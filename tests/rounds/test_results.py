"""The results of a round and of a run."""

import math
from io import BytesIO

import numpy as np
import pytest
from flwr.app import MessageType

from fairbloom.protocol.names import LOSS_BEFORE, TRAIN_LOSS
from fairbloom.rounds.clients import average_metrics
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FedAvg, Round
from tests.federation import (
    BUFFERS,
    MemoryGrid,
    bits,
    error,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
    run,
)

from .implementations import IMPLEMENTATIONS, PLAIN, method_and_model


def test_a_finished_round_has_its_participants_and_results() -> None:
    faults = {("site-1", 1): error, ("site-3", 1): no_reply}
    result, rounds = run(FedAvg(buffers=BUFFERS), quadratics(5), 2, faults)
    first = rounds[0]
    clients = quadratics(5)
    used = ["site-0", "site-2", "site-4"]
    examples = sum(clients[name].examples for name in used)
    assert first.number == 1
    assert first.participants == tuple(clients)
    assert list(first.refused) == ["site-1"]
    assert first.missing == ("site-3",)
    assert list(first.coefficients) == used
    assert first.coefficients == pytest.approx(
        {name: clients[name].examples / examples for name in used}
    )
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


def test_on_round_precedes_the_next_round_and_may_end_the_run() -> None:
    grid = MemoryGrid(quadratics(2))

    def stop(finished: Round) -> None:
        assert len(grid.sent_to(MessageType.TRAIN)) == 2 * finished.number
        if finished.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FedAvg().start(grid, record(initial_model()), num_rounds=5, on_round=stop)
    assert len(grid.sent_to(MessageType.TRAIN)) == 4


@pytest.mark.parametrize(
    ("every", "share", "evaluated"), [(2, 1.0, [2, 4, 5]), (9, 1.0, [5]), (0, 0.0, [])]
)
def test_clients_evaluate_at_the_interval_and_after_the_last(
    every: int, share: float, evaluated: list[int]
) -> None:
    result, rounds = run(FedAvg(evaluate_every=every, fraction_evaluate=share), rounds=5)
    assert [r.number for r in rounds if r.evaluations] == evaluated
    assert list(result.evaluate_metrics_clientapp) == evaluated


@pytest.mark.parametrize(("share", "clients"), [(1.0, 6), (0.5, 3), (0.34, 3), (0.01, 1)])
def test_those_who_evaluate_are_drawn_apart(share: float, clients: int) -> None:
    _, rounds = run(FedAvg(fraction_train=0.5, fraction_evaluate=share), rounds=3)
    assert [len(each.evaluations) for each in rounds] == [clients] * 3
    assert any(set(each.evaluations) != set(each.participants) for each in rounds)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_recorded_losses_are_of_clients_that_evaluate(implementation: str) -> None:
    """No table has a row of the others, and a loss costs a pass over their data."""
    settings = Settings.of({**PLAIN, "method": "fedavg", "fraction-evaluate": 0.4})
    method, model = method_and_model(settings)
    clients = IMPLEMENTATIONS[implementation](method, dict(settings.run_config()))
    loop = Rounds(method, clients, settings.num_rounds)
    asked = [LOSS_BEFORE]
    rounds = list(loop.run(model, measure=lambda number: asked, measure_after=[TRAIN_LOSS]))
    if isinstance(clients, LocalClients):
        clients.close()
    for finished in rounds:
        report = finished.train_metrics
        assert set(report) - set(finished.evaluations)
        measured = {name for name in report if LOSS_BEFORE in report[name]}
        assert measured == set(report) & set(finished.evaluations)


def test_means_are_weighted_and_of_what_half_of_them_report() -> None:
    reports = {
        "a": {"num-examples": 1, "loss": 4.0, "own": 1.0},
        "b": {"loss": 8.0, "num-examples": 3},
    }
    assert average_metrics(reports, "num-examples") == {"loss": pytest.approx(7.0), "own": 1.0}
    assert average_metrics({**reports, "c": reports["b"]}, "num-examples") == {
        "loss": pytest.approx(52.0 / 7.0)
    }
    assert average_metrics({"a": {"num-examples": 3}}, "num-examples") == {}
    assert average_metrics({}, "num-examples") == {}
    largest = np.finfo(np.float64).max
    most = {str(k): {"num-examples": k, "loss": largest} for k in range(1, 50)}
    # Without a warning.
    assert average_metrics(most, "num-examples")["loss"] >= largest * (1.0 - 1e-12)


def test_a_metric_that_is_no_number_at_one_client_is_averaged() -> None:
    mine = {"site-0": 0.0, "site-1": math.nan, "site-2": 2.0}
    faults = {
        (name, number): metrics({"mine": value})
        for name, value in mine.items()
        for number in (1, 2)
    }
    result, _ = run(FedAvg(), quadratics(3), 2, faults)
    counts = [client.examples for name, client in quadratics(3).items() if name != "site-1"]
    assert result.train_metrics_clientapp[2]["mine"] == pytest.approx(2.0 * counts[1] / sum(counts))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(()),
        np.zeros((3, 4), np.float32),
        np.zeros((3, 4), order="F"),
        np.zeros((0, 2), ">i2"),
    ],
)
def test_the_size_of_an_array_on_the_wire_is_that_of_its_file(array: object) -> None:
    for _ in range(2):  # the second time from the cache
        file = BytesIO()
        np.save(file, array)
        assert size_on_the_wire(array) == file.tell()
