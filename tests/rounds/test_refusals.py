"""Replies that are not used: each is refused by the name of its client, and the round goes on without it."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord
from flwr.app.error import Error

from fairbloom.protocol.helper import ADVICE
from fairbloom.rounds.screening import MAX_REASON_CHARACTERS, Refusals, one_line
from fairbloom.strategies import METHODS, FedAvg
from tests.strategies.helpers import (
    ARGUMENTS,
    BROKEN,
    BUFFERS,
    UNMEASURED,
    Fault,
    MemoryGrid,
    Quadratic,
    arrays,
    duplicate,
    error,
    initial_model,
    make,
    metrics,
    no_reply,
    quadratics,
    record,
    to_unknown_message,
    unpack,
)

from .helpers import KINDS, SITE_2_IS_DRAWN, bits, one_faulty, run


@pytest.mark.parametrize("name", ["fedavg", "fedmgda", "fedfv"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_reply_is_refused_and_changes_nothing_else(name: str, kind: str) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNMEASURED)
def test_a_missing_metric_matters_only_where_it_is_needed(kind: str) -> None:
    fault, reason = UNMEASURED[kind]
    for name in METHODS:
        result, finished = one_faulty(name, fault)
        if "loss-before" in METHODS[name].needs:
            assert reason in finished.refused["site-2"]
            assert "site-2" not in finished.coefficients
        else:
            assert finished.refused == {}
            assert bits(result.arrays) == bits(one_faulty(name, None)[0].arrays)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy-after", "learning-rate"])
@pytest.mark.parametrize("value", [None, np.nan, -np.inf, [0.5]])
def test_every_metric_is_needed_only_by_methods_that_ask_for_it(metric: str, value: Any) -> None:
    for name in METHODS:
        result, finished = one_faulty(name, metrics({metric: value}))
        if metric in METHODS[name].needs:
            assert f"metric '{metric}' must be a finite number" in finished.refused["site-2"]
            assert "site-2" not in finished.coefficients
        else:
            assert finished.refused == {}
            assert bits(result.arrays) == bits(one_faulty(name, None)[0].arrays)


@pytest.mark.parametrize("disparity", [1.0000001, -1.5, 1e300])
def test_an_impossible_disparity_is_refused_where_it_is_needed(disparity: float) -> None:
    _, finished = one_faulty("fcfl", metrics({"disparity": disparity}))
    assert finished.refused == {"site-2": f"metric 'disparity' must lie in [-1, 1], got {disparity}"}
    for fine in (-1.0, 0, 1):
        assert one_faulty("fcfl", metrics({"disparity": fine}))[1].refused == {}
    assert one_faulty("fedfv", metrics({"disparity": disparity}))[1].refused == {}


@pytest.mark.parametrize("rate", [0.0, -0.1])
def test_a_rate_of_0_or_less_is_refused_where_one_divides_by_it(rate: float) -> None:
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
def test_without_a_limit_a_finite_but_huge_reply_is_used(name: str) -> None:
    huge = arrays(bias=np.full(3, 1e30, np.float32))
    strategy = make(name, ARGUMENTS[name][0], buffers=BUFFERS, seed=SITE_2_IS_DRAWN, update_limit=math.inf)
    result, (finished,) = run(strategy, MemoryGrid(quadratics(6), faults={("site-2", 1): huge}), rounds=1)
    assert finished.refused == {}
    assert "site-2" in finished.coefficients
    assert all(np.isfinite(a).all() for a in unpack(result.arrays).values())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [1e160, 1.7e308])
def test_an_update_whose_square_overflows_is_refused(name: str, size: float) -> None:
    model = {key: a.astype(np.float64) if a.dtype.kind == "f" else a for key, a in initial_model().items()}
    huge = MemoryGrid(quadratics(4), faults={("site-2", 1): arrays(bias=np.full(3, size))})
    strategy = make(name, ARGUMENTS[name][0], buffers=BUFFERS, fraction_evaluate=0.0)
    result, (finished,) = run(strategy, huge, rounds=1, initial_arrays=record(model))
    assert list(finished.refused) == ["site-2"]
    assert "inner products overflow" in finished.refused["site-2"]
    assert set(finished.coefficients) == set(finished.participants) - {"site-2"}
    assert len(finished.coefficients) == 3 or name == "drfa"
    assert all(np.isfinite(a).all() for a in unpack(result.arrays).values())


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
def test_a_clients_reason_is_one_printable_short_line(reason: str, told: str) -> None:
    def failing(sent: Message, reply: Message) -> list[Message]:
        return [Message(Error(2, reason), reply_to=sent)]

    _, finished = one_faulty("fedavg", failing)
    assert one_line(reason) == told
    assert finished.refused == {"site-2": one_line(f"error 2: {reason}")}
    assert len(finished.refused["site-2"]) <= MAX_REASON_CHARACTERS + 3


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


def test_a_foreign_client_is_refused_with_reason_for_a_loss() -> None:
    _, finished = one_faulty("fedfv", UNMEASURED["no loss"][0])
    assert finished.refused == {"site-2": f"metric 'loss-before' must be a finite number, got None: {ADVICE}"}


def test_a_reason_that_several_clients_share_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refusals(3)
    for name in ("c", "a", "b"):
        refused.add(name, "it has no loss")
    refused.add("d", "its array is not finite")
    assert caplog.messages == []
    refused.log()
    assert caplog.messages == [
        "refused the replies of 3 clients (a, b, c): it has no loss",
        "refused a reply of client d: its array is not finite",
    ]
    assert [(each.client, each.round) for each in caplog.records] == [("a, b, c", 3), ("d", 3)]  # type: ignore[attr-defined]


def test_a_round_of_refused_replies_logs_a_line_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    clients = quadratics(3)
    grid = MemoryGrid(clients, faults={(name, 1): error for name in clients})
    FedAvg(fraction_evaluate=0.0, unused_rounds=0).start(grid, record(initial_model()), num_rounds=1)
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [each for each in warned if "out of memory" in each] == [
        "refused the replies of 3 clients (site-0, site-1, site-2): error 2: out of memory"
    ]
    assert "round 1 is skipped, and the model stays as it is" in warned
