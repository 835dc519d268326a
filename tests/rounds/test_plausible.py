"""Implausible numbers are refused by name, and the round ends as without that client."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import example, given, strategies as st

from fairbloom.protocol.names import HITS, LEARNING_RATE, LOSS_BEFORE, POSITIVES
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.screening import (
    implausible_counts,
    largest_in_proportion,
    out_of_proportion,
    proportionate_rates,
    usable_metrics,
)
from fairbloom.strategies import FedAvg, QFedAvg, VRed
from tests.federation import (
    BUFFERS,
    Fault,
    bits,
    metrics,
    one_faulty,
    quadratics,
    record,
    run,
    unpack,
)

INF = math.inf
sizes_strategy = st.lists(st.floats(0.0, 1e300), min_size=1, max_size=9)
limits = st.floats(1.0, 1e6)


def test_an_unweighable_round_is_skipped_and_names_the_client() -> None:
    strategy = VRed(beta=5.0, buffers=BUFFERS, loss_limit=INF, unused_rounds=1)
    fault = metrics({"loss-before": 1.7e308})
    with (
        np.errstate(all="ignore"),
        pytest.raises(
            NothingLearnedError,
            match=r"client site-2 reports 1.7e\+308 as 'loss-before': lower loss_limit",
        ),
    ):
        run(strategy, rounds=1, faults={("site-2", 1): fault})
    # with the limit, it is refused alone
    assert list(one_faulty("vred", fault)[1].refused) == ["site-2"]


# The rule for losses ------------------------------------------------------------------------------


def test_the_bound_is_the_limit_times_the_lower_median(subtests: pytest.Subtests) -> None:
    for sizes, bound in [
        ([], INF),
        ([1e300], 1e303),  # one alone is never too large
        ([2.0, 1e300], 2000.0),  # of two the smaller one is the median
        ([0.0, 0.0, 900.0], 1000.0),  # all may have what an untrained model has
        ([1.0, 1e300, 1e300], 1e303),  # a majority that lies together
    ]:
        with subtests.test(sizes=sizes, bound=bound):
            assert largest_in_proportion(sizes, 1000.0, floor=1.0) == pytest.approx(bound)


@given(sizes=sizes_strategy, limit=limits, lies=st.lists(st.floats(1.0, 1e6), max_size=9))
def test_who_keeps_to_the_bound_has_it_by_themselves(
    sizes: list[float], limit: float, lies: list[float]
) -> None:
    """So a client that is refused for its loss has no say in who else is, in the same round without
    it."""
    bound = largest_in_proportion(sizes, limit, 1.0)
    kept = [size for size in sizes if size <= bound]
    assert largest_in_proportion(kept, limit, 1.0) == bound
    few_lies = lies[: len(kept) // 2]  # fewer than half of all
    larger = [math.nextafter(bound, INF) * lie for lie in few_lies]
    if all(map(math.isfinite, larger)):
        with_lies = largest_in_proportion([*kept, *larger], limit, 1.0)
        assert all(size <= with_lies for size in kept)


def test_a_reply_that_is_not_finite_has_no_say_in_the_median() -> None:
    """Two of five lie about their loss: with a third, which has broken arrays, they would be the
    median."""

    def broken(sent: Message, reply: Message) -> list[Message]:
        (changed,) = metrics({"loss-before": 1e300})(sent, reply)
        arrays = unpack(changed.content.array_records["arrays"])
        changed.content["arrays"] = record({**arrays, "bias": np.full(3, np.nan, np.float32)})
        return [changed]

    lie = metrics({"loss-before": 1e300})
    faults = {("site-0", 1): lie, ("site-1", 1): lie, ("site-2", 1): broken}
    _, (finished,) = run(QFedAvg(q=1.0, lipschitz=1.0), quadratics(5), 1, faults)
    assert list(finished.refused) == ["site-0", "site-1", "site-2"]
    assert list(finished.coefficients) == ["site-3", "site-4"]


# Learning rates and accuracies --------------------------------------------------------------------


def test_rates_are_compared_with_the_lower_median_of_three(subtests: pytest.Subtests) -> None:
    for rates, bounds in [
        ([], (0.0, INF)),
        ([1e-300], (0.0, INF)),
        ([0.1, 1e-300], (0.0, INF)),  # either may be the wrong one
        ([0.5, 1e-300, 0.5], (0.0005, 500.0)),
        ([0.5, 1e300, 0.5], (0.0005, 500.0)),
        ([0.5, 1e300, 1e-300, 2.0], (0.0005, 500.0)),
    ]:
        with subtests.test(rates=rates, bounds=bounds):
            assert proportionate_rates(rates, 1000.0) == pytest.approx(bounds)
            assert proportionate_rates(rates, INF) == (0.0, INF)


LOSSES_AND_RATES = st.tuples(
    st.sampled_from([1.0, 2.0, -10.0, 10.0, 20.0, 21.0, 1e6]),
    st.sampled_from([0.0, 0.01, 0.1, 1.0, 10.0, 11.0]),
)


@given(reported=st.lists(LOSSES_AND_RATES, min_size=1, max_size=6))
@example(reported=[(1.0, 1.0), (1.0, 1.0), (1.0, 10.0), (10.0, 0.1), (21.0, 0.01)])
@example(reported=[(1.0, 0.1), (1.0, 0.1), (1.0, 10.0), (21.0, 10.0), (21.0, 10.0)])
def test_who_is_refused_for_a_loss_has_no_say_in_the_rates(
    reported: list[tuple[float, float]],
) -> None:
    replies = {
        str(place): {LOSS_BEFORE: loss, LEARNING_RATE: rate}
        for place, (loss, rate) in enumerate(reported)
    }
    bound = largest_in_proportion((abs(loss) for loss, _ in reported), 10.0, 1.0)
    left = {name: each for name, each in replies.items() if abs(each[LOSS_BEFORE]) <= bound}
    rates = [each[LEARNING_RATE] for each in left.values()]
    low, high = proportionate_rates(filter(None, rates), 10.0)
    used = {name for name, rate in zip(left, rates, strict=True) if not rate or low <= rate <= high}
    refused = out_of_proportion(replies, {LOSS_BEFORE, LEARNING_RATE}, 10.0)
    assert refused.keys() == replies.keys() - used


# Counts -------------------------------------------------------------------------------------------


def counting(*counts: int | None) -> dict[tuple[str, int], Fault]:
    """Return faults by which site-2 claims these counts in rounds 1, 2, …; None: no count."""
    return {
        ("site-2", number): metrics({"num-examples": count})
        for number, count in enumerate(counts, start=1)
    }


def test_a_count_that_jumps_is_refused_and_changes_nothing_else() -> None:
    result, rounds = run(FedAvg(), rounds=5, faults=counting(50, 501, 500, 7, 500))
    reason = "num-examples 501 is more than 10 times (max_growth) the 50 that it said at first"
    assert [r.refused for r in rounds] == [{}, {"site-2": reason}, {}, {}, {}]
    assert [r.train_metrics.get("site-2", {}).get("num-examples") for r in rounds] == [
        50,
        None,
        500,
        7,
        500,
    ]
    without, _ = run(FedAvg(), rounds=5, faults=counting(50, None, 500, 7, 500))
    assert bits(result.arrays) == bits(without.arrays)


def test_a_refused_reply_is_no_first_one() -> None:
    """Otherwise a broken reply with many examples would raise the limit for later ones."""
    broken = {("site-2", 1): metrics({"num-examples": 2**50, "loss-before": 1e300})}
    _, rounds = run(QFedAvg(q=1.0, lipschitz=1.0), rounds=3, faults=counting(1, 50, 501) | broken)
    assert [list(r.refused) for r in rounds] == [["site-2"], [], ["site-2"]]
    assert "the 50 that it said at first" in rounds[2].refused["site-2"]


def test_more_examples_than_enrolled_are_refused_in_round_1() -> None:
    enrolled = {"site-2": 1200, "elsewhere": 1}
    _, rounds = run(FedAvg(enrolled_sizes=enrolled), rounds=3, faults=counting(100_000, 1201, 1200))
    words = "is more than the 1200 examples that it was enrolled with"
    reasons = [f"num-examples {count} {words}" for count in (100_000, 1201)]
    assert [r.refused.get("site-2") for r in rounds] == [*reasons, None]
    assert all(len(r.coefficients) >= 5 for r in rounds)


PAIRS = st.tuples(st.integers(-1, 6), st.integers(-1, 6))


@given(count=st.integers(1, 10), positives=PAIRS, hits=PAIRS)
@example(count=5, positives=(5, 0), hits=(5, 0))
@example(count=5, positives=(4, 2), hits=(0, 0))
def test_positives_and_hits_are_counts_of_parts(
    count: int, positives: tuple[int, int], hits: tuple[int, int]
) -> None:
    record = {"num-examples": count, **dict(zip(POSITIVES, positives, strict=True))}
    record |= dict(zip(HITS, hits, strict=True))
    fits = sum(positives) <= count and all(
        0 <= h <= p for h, p in zip(hits, positives, strict=True)
    )
    with nullcontext() if fits else pytest.raises(ValueError, match=r"positives|hits"):
        usable_metrics(record, "num-examples", frozenset({*POSITIVES, *HITS}))


@given(
    enrolled=st.integers(1, 2**53) | st.just(INF),
    first=st.integers(1, 2**53) | st.just(INF),
    count=st.integers(1, 2**53),
    growth=st.floats(1.0, 1e6) | st.just(INF),
)
def test_a_count_is_taken_up_to_both_bounds(
    enrolled: float, first: float, count: int, growth: float
) -> None:
    reports = {"new": {"num-examples": count}, "a": {"num-examples": count}}
    known = {"enrolled": {"a": enrolled}, "first": {"a": first}}
    refused = implausible_counts(reports, "num-examples", **known, max_growth=growth)
    assert ("a" not in refused) == (count <= enrolled and count <= growth * first)
    assert "new" not in refused
