"""The limits on the norms of updates and steps: the rule, its refusals, and a run's memory.

Implausible numbers are refused by name, and the round ends as without that client.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from hypothesis import example, given, strategies as st

from fairbloom.protocol.names import HITS, LEARNING_RATE, LOSS_BEFORE, POSITIVES
from fairbloom.rounds.arrays import norm
from fairbloom.rounds.cohort import Cohort, Decision
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.run_state import NormHistory
from fairbloom.rounds.screening import (
    BrokenModelError,
    find_outlier_norms,
    implausible_counts,
    largest_in_proportion,
    out_of_proportion,
    proportionate_rates,
    usable_metrics,
)
from fairbloom.strategies import FairStrategy, FedAvg, FedFV, QFedAvg, Round, VRed
from tests.federation import (
    BUFFERS,
    Answer,
    Fault,
    assert_resumes,
    bits,
    metrics,
    one_faulty,
    quadratics,
    record,
    replying,
    run,
    unpack,
)
from tests.strategies.helpers import Arrays

INF = math.inf
SIZE = 16


# The rule, implemented a second time --------------------------------------------------------------


def middle(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def by_the_letter(
    replies: Mapping[int, tuple[float, float]], past: Sequence[float], model: float, limit: float
) -> tuple[list[int], float]:
    """Return the refused clients, in turn, and the final r, for replies (‖u‖, n)."""
    left = dict(replies)
    refused = list[int]()
    while left:
        moving = [u for u, _ in left.values() if u > 0.0]
        candidates = [middle(moving)] if len(moving) > 1 else []
        candidates += [middle(past)] if past else []
        r = max(candidates, default=0.0) or max(model, 1.0)
        n = middle([n for _, n in left.values()])
        bounds = {
            k: max(model, limit * min(max(m / n, 1.0), 1000.0) * r) for k, (_, m) in left.items()
        }
        beyond = {k: u / bounds[k] for k, (u, _) in left.items() if u > bounds[k] * (1.0 + 1e-6)}
        if not beyond:
            return refused, r
        refused.append(max(beyond, key=lambda k: (beyond[k], -k)))
        del left[refused[-1]]
    return refused, 0.0


some_lengths = st.sampled_from([0.0, 0.0, 1e-3, 0.5, 1.0, 1.5, 90.0, 400.0, 1e6, 1e30, 1e38])


@given(
    replies=st.lists(
        st.tuples(some_lengths, st.sampled_from([1, 3, 10, 20_000, 10**7])), min_size=1, max_size=9
    ),
    past=st.lists(some_lengths, max_size=9),
    model=st.sampled_from([0.0, 1e-3, 1.0, 500.0]),
    limit=st.sampled_from([1.0, 2.0, 100.0, INF]),
)
def test_the_rule_is_the_one_by_the_letter(
    replies: list[tuple[float, float]], past: list[float], model: float, limit: float
) -> None:
    u, n = (np.array(column, np.float64) for column in zip(*replies, strict=True))
    refused, found = find_outlier_norms(u, n, np.array(past), lambda: model, limit)
    expected, r = by_the_letter(dict(enumerate(replies)), past, model, limit)
    assert [*refused] == expected
    assert (found is None) == (len(expected) == len(replies))
    if found is not None:
        assert found.norm == r
        left = [k for k in range(len(replies)) if k not in expected]
        alone = find_outlier_norms(u[left], n[left], np.array(past), lambda: model, limit)
        assert alone[0] == {}
        assert alone[1] is not None
        # as if the others had not come
        np.testing.assert_array_equal(alone[1].allowances, found.allowances)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *((np.float32, size) for size in (0.0, 1e-30, 1.0, 1e38)),
        *((np.float64, size) for size in (1e-300, 1e200, 1e307)),
    ],
)
def test_norms_neither_overflow_nor_vanish(dtype: type, size: float) -> None:
    values = np.full(9, size, dtype)
    assert norm(values) == pytest.approx(3.0 * float(values[0]), rel=1e-6)
    assert norm(values, values) == 0.0


# Clients with updates of given lengths ------------------------------------------------------------

Plan = Callable[[int], float]


ZEROS = record({"w": np.zeros(SIZE, np.float32)})


def moving(name: str, plan: Plan, examples: int = 10) -> Answer:
    """Return a client with updates along (1, 1, …), of the length that `plan` returns."""

    def train(model: Arrays, number: int) -> Arrays:
        return {"w": model["w"] - np.float32(plan(number) / math.sqrt(SIZE))}

    return replying(name, train, {"num-examples": examples, "loss": 1.0, "loss-before": 1.0})


def always(value: float) -> Plan:
    return lambda number: value


def rounds_of(
    strategy: FairStrategy,
    plans: Mapping[str, Plan],
    rounds: int = 1,
    sizes: Mapping[str, int] = MappingProxyType({}),
    model: ArrayRecord = ZEROS,
) -> list[Round]:
    clients = {name: moving(name, plan, sizes.get(name, 10)) for name, plan in plans.items()}
    return run(strategy, clients, rounds, initial_arrays=model)[1]


def refused_in(rounds: Sequence[Round]) -> list[list[str]]:
    return [list(each.refused) for each in rounds]


@pytest.mark.parametrize(
    ("size", "limit", "refused"),
    [
        (99.0, 100.0, []),
        (101.0, 100.0, ["c"]),
        (3.0, 2.0, ["c"]),
        (1e30, INF, []),
    ],
)
def test_an_update_beyond_the_limit_is_refused_with_its_length(
    size: float, limit: float, refused: list[str]
) -> None:
    (finished,) = rounds_of(
        FedAvg(update_limit=limit), {"a": always(1.0), "b": always(1.0), "c": always(size)}
    )
    assert list(finished.refused) == refused
    for reason in finished.refused.values():
        assert reason.startswith(f"its update has the length {size:g}, beyond {limit:g}: ")
        assert f"{limit:g} times (update_limit)" in reason


# No honest reply is refused -----------------------------------------------------------------------


def test_hospitals_of_10_and_20000_rows_are_used() -> None:
    sizes = {"a": 10, "b": 10, "c": 20_000, "d": 12}
    plans = {"a": always(0.01), "b": always(0.01), "c": always(2.5), "d": always(0.01)}
    assert refused_in(rounds_of(FedAvg(), plans, 3, sizes=sizes)) == [[]] * 3
    # with as many rows as the others it would be absurd
    assert refused_in(rounds_of(FedAvg(), plans, 1)) == [["c"]]


# What came before ---------------------------------------------------------------------------------


def test_replies_of_the_last_five_rounds_count_by_their_number() -> None:
    """The first round's updates are 1 long, the later ones 1e-6: the fifth after it still knows the
    first, not more."""
    lengths = NormHistory()
    for number in range(1, 8):
        lengths = lengths.plus(number, np.array([float(number)]), 0.0)
    assert lengths.before(8).tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert lengths.before(10).tolist() == [5.0, 6.0, 7.0]
    assert lengths.before(20).tolist() == []


def test_a_skipped_round_leaves_no_length_behind() -> None:
    strategy = Leap(unused_rounds=0, factors={2: 1e9})
    rounds_of(strategy, {"a": always(1.0), "b": always(1.0)}, 3)
    assert sorted(strategy.run_state.norms.used) == [1, 3]


def test_norms_survive_a_kill_to_the_bit() -> None:
    """Without those of before, a single participant's update in the last round would be used."""
    clients = {"a": moving("a", lambda number: 0.001 * number if number < 6 else 90.0)}
    assert refused_in(
        assert_resumes(lambda: FedAvg(unused_rounds=0), 6, (1, 3, 5), clients, ZEROS)
    )[-1] == ["a"]


# Steps --------------------------------------------------------------------------------------------


class Leap(FedAvg):
    """FedAvg with coefficients multiplied in some rounds; it remembers the rounds that it has
    seen."""

    def __init__(self, *, factors: Mapping[int, float], **options: Any) -> None:
        super().__init__(**options)
        self.factors = factors

    def weigh(self, cohort: Cohort) -> Decision:
        seen = [*cohort.past.memory.get("seen", []), cohort.round]
        return Decision(cohort.prior * self.factors.get(cohort.round, 1.0), {"seen": seen})


TWO = {"a": always(1.0), "b": always(3.0)}


def test_a_step_that_is_too_long_is_not_taken(said: pytest.LogCaptureFixture) -> None:
    strategy = Leap(factors={2: 500.0})
    one, two, three = rounds_of(strategy, TWO, 3)
    assert two.coefficients == {}
    assert unpack(two.arrays)["w"].tobytes() == unpack(one.arrays)["w"].tobytes()
    assert three.coefficients == {"a": 0.5, "b": 0.5}
    assert strategy.past.memory["seen"] == [1, 3]  # the method's memory is unchanged, too
    (line,) = {message for message in said.messages if "round 2 is skipped" in message}
    assert "the step has the length 1000, beyond 100 times (update_limit)" in line
    assert "client b" in line
    _, two = rounds_of(Leap(factors={2: 500.0}, update_limit=INF), TWO, 2)
    assert set(two.coefficients) == {"a", "b"}


def test_steps_may_be_as_long_as_any_earlier_one() -> None:
    """q-FedAvg's steps grow by a millionfold from one round to the next."""
    strategy = Leap(factors={1: 90.0, 2: 1e-9, 3: 1e-3, 4: 90.0})
    assert [bool(each.coefficients) for each in rounds_of(strategy, TWO, 4)] == [True] * 4


# A model that is broken ---------------------------------------------------------------------------


def test_a_model_that_is_not_finite_is_refused_at_once() -> None:
    with pytest.raises(BrokenModelError, match="no client can train: array 'w'"):
        rounds_of(FedAvg(), TWO, model=record({"w": np.full(SIZE, np.nan, np.float32)}))


# Kept updates of FedFV ----------------------------------------------------------------------------


def test_a_refused_update_is_not_remembered() -> None:
    strategy = FedFV(tau=2)
    rounds_of(strategy, {"a": always(1.0), "b": always(1.0), "c": always(1e20)}, 2)
    assert {kept.key for kept in strategy.run_state.kept} == {"a", "b"}


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


@pytest.mark.parametrize(
    ("sizes", "bound"),
    [
        ([], INF),
        ([1e300], 1e303),  # one alone is never too large
        ([2.0, 1e300], 2000.0),  # of two the smaller one is the median
        ([0.0, 0.0, 900.0], 1000.0),  # all may have what an untrained model has
        ([1.0, 1e300, 1e300], 1e303),  # a majority that lies together
    ],
)
def test_the_bound_is_the_limit_times_the_lower_median(sizes: list[float], bound: float) -> None:
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
    # fewer than half of all
    larger = [math.nextafter(bound, INF) * lie for lie in lies[: len(kept) // 2]]
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


@pytest.mark.parametrize(
    ("rates", "bounds"),
    [
        ([], (0.0, INF)),
        ([1e-300], (0.0, INF)),
        ([0.1, 1e-300], (0.0, INF)),  # either may be the wrong one
        ([0.5, 1e-300, 0.5], (0.0005, 500.0)),
        ([0.5, 1e300, 0.5], (0.0005, 500.0)),
        ([0.5, 1e300, 1e-300, 2.0], (0.0005, 500.0)),
    ],
)
def test_rates_are_compared_with_the_lower_median_of_three(
    rates: list[float], bounds: tuple[float, ...]
) -> None:
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
    sizes = {"a": enrolled} if enrolled < INF else {}
    method = FedAvg(enrolled_sizes=sizes, max_growth=growth)
    refused = implausible_counts(method, reports, INF, {"a": first})
    assert ("a" not in refused) == (count <= enrolled and count <= growth * first)
    assert "new" not in refused
